"""Read sections of ``params.yaml`` as typed, frozen dataclasses, with clear errors.

A config is a frozen dataclass beside its owner. ``read`` refuses unknown keys, missing keys and wrong types; the
dataclass checks ranges in ``__post_init__`` with ``errors.require``. The only implicit conversion is from an integer to
a float. The key ``name``, a ``Literal`` field of each dataclass, selects the member of a union of dataclasses. A kind
that plugins may extend (``open_kind``) is the union of all its dataclasses. If the variants of a field are not known in
advance, the field's metadata ``read`` has a reader, ``(value, path) -> value``.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ConfigError

T = TypeVar("T")

# Metadata of a field that was added later. ``to_mapping`` omits the field if it has its default, so that configs that
# were written earlier keep their bytes.
LATER: Final = types.MappingProxyType({"later": True})

_kinds: Final[dict[object, Callable[[], Mapping[str, type]]]] = {}  # a hint -> name -> dataclass


def open_kind(hint: object, variants: Callable[[], Mapping[str, type]]) -> None:
    """Make ``hint`` the union of the dataclasses of ``variants()``, chosen by the key ``name``."""
    _kinds[hint] = variants


def read(cls: type[T], mapping: object, path: str) -> T:
    """Read ``mapping`` as the dataclass ``cls``; ``path`` is its key in params.yaml.

    Raises:
        ConfigError: a key is unknown or missing, or a value has the wrong type or range.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(path, "must be a section (key: value)", mapping)
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in mapping:
        if key not in fields:
            raise ConfigError(f"{path}.{key}", f"is not a known key{nearest(key, fields)}")
    values = {}
    for name, field in fields.items():
        if name in mapping:
            reader = field.metadata.get("read", partial(_value, hints[name]))
            values[name] = reader(mapping[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}.{name}", "is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error.path}", error.rule, error.value) from None


def merge(base: Mapping[str, object], override: Mapping[str, object]) -> dict[str, Any]:
    """Overlay ``override`` on ``base``, section by section; a list or a number is replaced as a whole.

    A section that names another variant (its key ``name`` differs) also replaces the old one as a whole.
    """
    merged: dict[str, Any] = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and same_variant(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def same_variant(old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    """Return whether two sections have the same variant: ``new`` has the ``name`` of ``old`` or none."""
    return bool(new.get("name", old.get("name")) == old.get("name"))


def to_mapping(config: Any) -> dict[str, Any]:
    """Undo ``read``: write nested dicts, lists and numbers that JSON can hold."""
    values = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    return {f.name: _plain(value) for f, value in values if "later" not in f.metadata or value != f.default}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def nearest(key: object, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown key: the most similar known key, or all known keys.

    It is empty for a known key, of which callers make no error; the search takes longer than a check of the key.
    """
    names = list(known)
    if key in names:
        return ""
    close = difflib.get_close_matches(str(key), names, n=1)
    return f" (did you mean {close[0]}?)" if close else f" (known: {', '.join(names) or 'none'})"


_WORDS: Final = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _value(hint: Any, value: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(get_args(hint), value, path)
    if hint in _kinds:
        return variant(_kinds[hint](), value, path)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool) != isinstance(get_args(hint)[0], bool):
            raise ConfigError(path, f"must be one of {', '.join(map(str, get_args(hint)))}", value)
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(path, "must be a list", value)
        item = get_args(hint)[0]
        return tuple(_value(item, v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(path, "must be a section (key: value)", value)
        return {str(k): _value(get_args(hint)[1], v, f"{path}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return read(hint, value, path)  # type: ignore[arg-type]
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        hold = " (write 1.0e-3 rather than 1e-3)" if hint is float and isinstance(value, str) else ""
        raise ConfigError(path, f"must be {_WORDS.get(hint, hint)}{hold}", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(path, "must be finite", value)
    return value


def _union(options: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    rest = [o for o in options if o is not type(None)]
    if len(rest) == 1:
        return _value(rest[0], value, path)
    if all(dataclasses.is_dataclass(o) or o in _kinds for o in rest):
        named: dict[str, type] = {}
        for option in rest:
            if option in _kinds:
                named |= _kinds[option]()
            else:
                named[str(get_args(get_type_hints(option)["name"])[0])] = option
        return variant(named, value, path)
    for option in rest:
        try:
            return _value(option, value, path)
        except ConfigError:
            continue
    raise ConfigError(path, f"must be {' or '.join(getattr(o, '__name__', str(o)) for o in rest)}", value)


def variant(named: Mapping[str, type[T]], value: object, path: str) -> T:
    """Read ``value`` as the dataclass that its key ``name`` chooses.

    Raises:
        ConfigError: the name is missing or unknown, or the rest of the section is wrong.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(path, "must be a section (key: value)", value)
    if "name" not in value:
        raise ConfigError(f"{path}.name", f"is missing (one of {', '.join(named)})")
    if value["name"] not in list(named):  # a list, because the name may not be hashable
        raise ConfigError(f"{path}.name", f"must be one of {', '.join(named)}", value["name"])
    return read(named[value["name"]], value, path)
