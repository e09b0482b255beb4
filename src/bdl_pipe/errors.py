"""Errors that a user can act on: one line with the file or key, the rule and the value; warnings that tell nothing."""

import reprlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_REPR: Final = reprlib.Repr()  # writes only the beginning, so that nested YAML aliases are not expanded
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict = 3, 12, 12, 6
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 100
_FILTERS: Final = threading.RLock()
_LONGEST: Final = 200  # characters of a value, a key's path or another library's message


def brief(text: object, most: int = _LONGEST) -> str:
    """Write ``text`` on one line of at most ``most`` characters."""
    line = _one_line(str(text))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short(value: object) -> str:
    """Write the beginning of ``repr(value)`` on one line."""
    return brief(_REPR.repr(value))


def _one_line(text: str) -> str:
    """Replace line ends by blanks, and other characters that cannot be printed by their escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.splitlines()))


class UserError(ValueError):
    """Raised for bad input. The command line prints it as one line, without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class ConfigError(UserError):
    """Raised for a value in ``params.yaml`` that breaks its rule."""

    def __init__(self, path: str, rule: str, value: object = ...) -> None:
        self.path, self.rule, self.value = path, rule, value
        got = "" if value is ... else f", got {short(value)}"
        super().__init__(f"{brief(path)} {brief(rule, 2 * _LONGEST)}{got}")

    def __reduce__(self) -> tuple[type, tuple[str, str, object]]:
        return type(self), (self.path, self.rule, self.value)


class DataError(UserError):
    """Raised for a data set with wrong files, columns, rows, labels, shapes or values."""


class NothingToFit(DataError):
    """Raised if the rows of a fit show nothing: their target is constant, or none of their inputs varies.

    A decision then chooses at random until further rows differ.
    """


class Diverged(UserError):
    """Raised if the loss, weights or predictions of a fit became NaN or infinite.

    A search counts the fit as a bad trial and continues.
    """


class ArtifactError(UserError):
    """Raised for an artifact that is missing, truncated, altered or of another schema version."""


def require(condition: bool, path: str, rule: str, value: object = ...) -> None:
    """Raise :class:`ConfigError` unless ``condition`` holds; for ``__post_init__`` of configs."""
    if not condition:
        raise ConfigError(path, rule, value)


def require_positive(config: object, *names: str, or_null: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` unless these fields of a config are > 0; the fields ``or_null`` may be None."""
    for name in (*names, *or_null):
        value, rule = getattr(config, name), "must be > 0 or null" if name in or_null else "must be > 0"
        require((value is None and name in or_null) or value > 0, name, rule, value)


@contextmanager
def without_warnings(category: type[Warning] = Warning) -> Iterator[None]:
    """Ignore other packages' warnings inside the block; one thread at a time is inside.

    The filters belong to the whole process, and a block restores the filters that it found. If two threads were inside
    and left in the order in which they came, the first one's filters would stay.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield
