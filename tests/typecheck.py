"""The run-time checks of the tests: jaxtyping for shapes, beartype for the types beside them, at a small price.

jaxtyping's import hook puts ``jaxtyping.jaxtyped`` on every function and dataclass. It binds the arguments again and
calls beartype twice at every call, whatever the annotations are, which was a third of all time in tests. Here a
function without a shape in its annotations is left to mypy, which is strict. The first calls of each other function in
each test are checked by beartype once, arguments and result, in a scope of shapes; a loop would repeat the same shapes.
"""

import dataclasses
import functools
import inspect
import itertools
import typing
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

checked: Callable[[Any], Any] = beartype(  # an int may stand for a float
    conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
)
calls: Final[Counter[int]] = Counter()  # checked calls of each function in the running test; tiers.py empties it
_CHECKED: Final = 20  # calls of a function that are checked in each test
_whole: Final = jaxtyping.jaxtyped
_numbers: Final = itertools.count()


def install(packages: list[str]) -> None:
    """Check everything of ``packages`` that is imported from now on."""
    jaxtyping.jaxtyped = lambda *, typechecker: quick  # what the hook's decorators call
    jaxtyping.install_import_hook(packages, f"{__name__}.checked")


def quick(decorated: Any) -> Any:
    """Return ``decorated`` with its first calls checked, in jaxtyping's way where beartype would check differently."""
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
    if not any(map(_has_shape, hints.values())):
        return decorated
    quickly, number = checked(decorated), next(_numbers)

    @functools.wraps(decorated)
    def scoped(*arguments: Any, **named: Any) -> Any:
        if calls[number] >= _CHECKED:
            return decorated(*arguments, **named)
        calls[number] += 1
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
