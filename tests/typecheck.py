"""The run-time checks of the tests: beartype for types, jaxtyping for shapes, at a tenth of the price of both in full.

jaxtyping's import hook puts ``jaxtyping.jaxtyped`` on every function and dataclass. It binds the arguments again and
calls beartype twice at every call, whatever the annotations are, which was a third of all time in tests. Here a call is
checked by beartype once, arguments and result, and in a scope of shapes where an annotation has one.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

checked: Callable[[Any], Any] = beartype(  # an int may stand for a float
    conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
)
_whole: Final = jaxtyping.jaxtyped


def install(package: str) -> None:
    """Check everything of ``package`` that is imported from now on."""
    jaxtyping.jaxtyped = lambda *, typechecker: quick  # what the hook's decorators call
    jaxtyping.install_import_hook(package, f"{__name__}.checked")


def quick(decorated: Any) -> Any:
    """Return ``decorated`` with its calls checked, in jaxtyping's way where beartype alone would check differently."""
    if inspect.isclass(decorated):
        if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
            decorated.__init__ = quick(decorated.__init__)
        return decorated
    if not inspect.isfunction(decorated) or inspect.isgeneratorfunction(decorated):
        return _whole(decorated, typechecker=checked)  # a generator's body runs when its scope has ended
    try:
        hints = typing.get_type_hints(decorated, include_extras=True)
    except Exception:  # a name that only type checkers import
        return _whole(decorated, typechecker=checked)
    quickly = checked(decorated)
    if not any(map(_has_shape, hints.values())):
        return quickly

    @functools.wraps(decorated)
    def scoped(*arguments: Any, **named: Any) -> Any:
        with _whole("context"):
            return quickly(*arguments, **named)

    return scoped


def _has_shape(hint: Any) -> bool:
    """Whether an array with a shape is anywhere in ``hint``."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    parts = typing.get_args(hint)
    return any(
        _has_shape(part) for part in (p for group in parts for p in (group if isinstance(group, list) else [group]))
    )
