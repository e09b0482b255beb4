"""Changes of params.yaml: merging an overlay, or removing a data set. Comments and order are kept.

An overlay contains only the keys that it changes. A change is written only if the whole result is valid. Commands that
change the same file at once wait for each other.
"""

import io
import os
import stat
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from bdl_pipe.config import merge, same_variant
from bdl_pipe.errors import ConfigError, DataError, UserError, require, short
from bdl_pipe.files import write_bytes
from bdl_pipe.yaml_files import read_yaml, write_yaml

from .load import load
from .model import SECTIONS
from .params_files import read_params

PARAMS: Final = Path("params.yaml")
_LONGEST: Final = 60.0  # seconds that a command waits for another one; a change takes less than one
_SHOWN: Final = 4  # the largest number of new entries of a section that a message names
_NULL: Final = "tag:yaml.org,2002:null"  # written as null, not as nothing


def apply(overlay: Path, target: Path = PARAMS) -> list[str]:
    """Merge the file ``overlay`` into ``target``, and return a line for each change and for each section's new entries.

    Raises:
        DataError: a file is missing or is not YAML.
        ConfigError: the merged file would break a rule, or a key shares its section by an anchor with another one;
            ``target`` is not changed.
    """
    with _alone(target):
        return _apply(overlay, target)


def set_values(values: Sequence[str], target: Path = PARAMS) -> list[str]:
    """Write each ``key=value`` into ``target``, and return a line for each change.

    A run whose ``override`` has a changed value of its method keeps its own value: a further line names that key.

    Args:
        values: a dotted key and a value in YAML, such as ``methods.vbpc.gamma=50``.

    Raises:
        ConfigError: a key or a value breaks its rule, or shares its section by an anchor with another key; ``target``
            is not changed.
        DataError: ``target`` is missing or is not YAML.
    """
    changes = read_values(values)
    with _alone(target):
        return [*_merged(changes, target), *_kept(changes, read_yaml(target))]


def _kept(changes: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    methods = changes.get("methods") or {}
    for section in SECTIONS.values():
        for name, run in (document.get(section) or {}).items():
            both = _common(methods.get(run["method"]), run.get("override"))
            yield from (f"{section}.{name}.override.{key} still has {short(value)} for this run" for key, value in both)


def _common(changed: Any, override: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that both sections have, with the values of the second."""
    if isinstance(changed, Mapping) and isinstance(override, Mapping):
        for key in [key for key in changed if key in override]:
            if isinstance(changed[key], Mapping):
                yield from ((f"{key}.{inner}", value) for inner, value in _common(changed[key], override[key]))
            elif changed[key] != override[key]:
                yield key, override[key]


def read_values(values: Sequence[str]) -> dict[str, Any]:
    """Read the ``key=value`` of :func:`set_values` as the overlay that they form.

    Raises:
        ConfigError: a key or a value cannot be read, or a key is given twice.
    """
    changes, keys = dict[str, Any](), set[str]()
    for text in values:
        key, _, value = text.partition("=")
        names = key.split(".")
        require(all(names), text, "must be a dotted key and a value, as in methods.vbpc.gamma=50")
        require(key not in keys, key, "must be given once")
        keys.add(key)
        changes = merge(changes, reduce(lambda inner, name: {name: inner}, reversed(names), _value(text, value)))
    return changes


def _value(text: str, value: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError, KeyError):  # ruamel raises the last two for a value that is not of its tag's type
        raise ConfigError(text, "must have a value in YAML", value) from None


def add(name: str, path: Path, overlay: Mapping[str, object], comments: list[str], target: Path = PARAMS) -> None:
    """Write a new data set's overlay to the file ``path``, and merge it into ``target``.

    Raises:
        UserError: ``target`` has the data set by now, or the merged file would break a rule; nothing is left.
    """
    with _alone(target):
        require_free(name, read_yaml(target).get("datasets") or {})
        write(path, overlay, comments)
        try:
            _apply(path, target)
        except UserError:
            path.unlink()
            raise


def require_free(name: str, taken: Collection[str]) -> None:
    """Raise UserError if params.yaml has a data set with the name of a new one."""
    if name in taken:
        cure = f"choose another with --name, or first: python -m pipeline remove {name}"
        raise UserError(f"--name: params.yaml has a data set {short(name)} already; {cure}")


def remove(name: str, target: Path = PARAMS) -> dict[str, int]:
    """Remove a data set and its runs from ``target``, and count the removed entries: section -> count.

    Raises:
        UserError: there is no such data set, or the rest would break a rule; ``target`` is not changed.
    """
    counts = {"datasets": 1}
    with _alone(target), _edited(target) as document:
        if name not in document["datasets"]:
            raise UserError(f"{target}: has no data set {short(name)} (it has {', '.join(document['datasets'])})")
        _delete(document, "datasets", [name])
        for section in SECTIONS.values():
            keys = [key for key, run in (document.get(section) or {}).items() if run.get("dataset") == name]
            _delete(document, section, keys)
            counts |= {section: len(keys)} if keys else {}
    return counts


def write(path: Path, overlay: Mapping[str, object], comments: list[str]) -> None:
    """Write an overlay file; ``comments`` at the top state the origin of its values."""
    head = "".join(f"# {part}\n" for line in comments for part in line.splitlines())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (head + write_yaml(overlay)).encode())


def _apply(overlay: Path, target: Path) -> list[str]:
    return _merged(read_params(overlay), target)


def _merged(changes: Mapping[str, Any], target: Path) -> list[str]:
    lines: list[str] = []
    new: dict[str, list[str]] = {}
    with _edited(target) as document:
        wanted = merge(_plain(document), changes)
        _merge(document, changes, "", lines, new)
        if shared := _differing(_plain(document), wanted):
            raise ConfigError(shared, f"is shared by an anchor of {target}, and would change as well; write it out")
    for section, names in new.items():  # one line a section, since an overlay may have a hundred entries
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        lines.append(f"{section}: {len(names)} new: {', '.join(names[:_SHOWN])}{more}")
    return lines


def _plain(value: Any) -> Any:
    """Copy a document, so that a section which several keys share by an anchor becomes a section of each."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _differing(found: Any, wanted: Any) -> str:
    """Return the dotted key of the first difference between two documents; empty if they are equal."""
    if found == wanted or not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return ""
    key = next(key for key in {**wanted, **found} if found.get(key, ...) != wanted.get(key, ...))
    inner = _differing(found.get(key), wanted.get(key))
    return f"{key}.{inner}" if inner else str(key)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the lock of the target's writers; a crash releases it.

    Raises:
        DataError: the lock's file cannot be made, or another command has held it for a minute.
    """
    path = target.parent / ".state" / f"{target.name}.lock"
    lock = FileLock(path, timeout=_LONGEST)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        rule = f"another command has been changing it for {_LONGEST:.0f} s"
        raise DataError(f"{target}: {rule} and holds {path}; wait for it, or stop it") from None
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror}: {path})") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _edited(target: Path) -> Iterator[Any]:
    """Yield a params file's document for changes in place, then check the changed document and write it.

    Raises:
        UserError: the file cannot be read, or the changed document breaks a rule; the file is not changed.
    """
    from ruamel.yaml import YAML

    read_yaml(target)
    yaml = YAML()  # The round trip keeps comments, order and flow style.
    yaml.preserve_quotes, yaml.width = True, 4096
    yaml.representer.add_representer(type(None), lambda writer, _: writer.represent_scalar(_NULL, "null"))
    document: Any = yaml.load(target.read_text(encoding="utf-8"))
    yield document
    text = io.StringIO()
    yaml.dump(document, text)
    _check(text.getvalue(), target)
    path = target.resolve()  # a link stays a link, and a file keeps its permissions
    mode = stat.S_IMODE(path.stat().st_mode)
    write_bytes(path, text.getvalue().encode())
    path.chmod(mode)


def _check(text: str, target: Path) -> None:
    """Check ``text`` as a params file before it replaces ``target``."""
    trial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        trial.write_text(text, encoding="utf-8")
        load(trial)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror})") from None
    finally:
        trial.unlink(missing_ok=True)


def _merge(
    base: MutableMapping[str, Any],
    overlay: Mapping[str, Any],
    prefix: str,
    lines: list[str],
    new: MutableMapping[str, list[str]],
) -> None:
    """Merge in place as ``config.merge`` does: a variant with another ``name`` replaces the old section."""
    for key, value in overlay.items():
        old = base.get(key)
        if isinstance(old, MutableMapping) and isinstance(value, Mapping) and same_variant(old, value):
            _merge(old, value, f"{prefix}{key}.", lines, new)
        elif old != value:
            base[key] = value
            if old is None and isinstance(value, Mapping):
                new.setdefault(prefix.removesuffix("."), []).append(key)
            else:
                lines.append(f"{prefix}{key}: {'(new)' if old is None else old} -> {value}")


def _delete(document: Any, section: str, keys: list[str]) -> None:
    """Delete entries of a section. An empty section is written as {}, since comments alone are not a section."""
    for key in keys:
        del document[section][key]
    if keys and not document[section]:
        document[section] = {}
