"""Plugins: methods, networks, data sources and scores of users, and the tables that plugins register them in.

A plugin is a Python file or an installed module that calls ``register_…`` functions on import. Only the plugins that
``params.yaml`` lists are imported. The module name of a file follows from its path as it is written, so it is the same
in every process and objects can be pickled between processes; a process that lacks the file receives its text.
"""

import hashlib
import importlib
import pickle
import re
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from .errors import UserError, brief, require

T = TypeVar("T")
GROUP: Final = "bdl_pipe.plugins"  # the group of entry points


class PluginError(UserError):
    """Raised for a plugin that is missing, cannot be imported, or registers a name that is taken."""


@dataclass(frozen=True)
class Plugin:
    """An imported plugin.

    Attributes:
        name: its name in params.yaml: a path that ends in ``.py``, an entry point, or a module.
        module: its key in ``sys.modules``.
        text: the text of a file; None for an installed module.
    """

    name: str
    module: str
    text: str | None

    @property
    def sha256(self) -> str:
        """Return the hash of the imported file's text."""
        return hashlib.sha256((self.text or "").encode()).hexdigest()

    def owns(self, module: str) -> bool:
        """Return whether a module belongs to this plugin: the file, or any module of the same top-level package."""
        if self.text is not None:
            return module == self.module
        return module.partition(".")[0] == self.module.partition(".")[0]


_loaded: Final[dict[str, Plugin]] = {}
_added: Final[list[tuple["Registered[Any]", str]]] = []  # in order, to remove the names of a plugin that fails


class Registered(Mapping[str, T], Generic[T]):
    """A table of names and values, from the library and from plugins."""

    def __init__(self, what: str, values: Mapping[str, T]) -> None:
        """Create a table of the library's values; ``what`` is the word for a value in errors."""
        self._what, self._values = what, dict(values)
        self._others: dict[str, tuple[T, str]] = {}  # name -> value, module that defines it

    def __getitem__(self, name: str) -> T:
        return self._others[name][0] if name in self._others else self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._others

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._others

    def __len__(self) -> int:
        return len(self._values) + len(self._others)

    def add(self, name: str, value: T, module: str) -> None:
        """Add ``value`` under ``name``; ``module`` is the module that defines it.

        Raises:
            PluginError: the name is taken or not an identifier.
        """
        if not isinstance(name, str) or re.fullmatch(r"[A-Za-z]\w*", name) is None:
            raise PluginError(f"the {self._what} {name!r} must have a name of letters, digits and _")
        if name in self:
            taken = self.module_of(name)
            plugin = plugin_of(taken or "")
            owner = taken or "the library" if plugin is None else plugin.name
            raise PluginError(f"the {self._what} {name} is taken: {owner} has one of this name")
        self._others[name] = (value, module)
        _added.append((self, name))

    def module_of(self, name: str) -> str | None:
        """Return the module that defines an added value; None for the library's values."""
        return self._others[name][1] if name in self._others else None


def load(names: object) -> list[Plugin]:
    """Import the plugins in ``names``, the section ``plugins`` of params.yaml; loaded ones are not imported again.

    Raises:
        ConfigError: ``names`` is not a list of different texts.
        PluginError: a plugin is missing or cannot be imported; the names that it registered are removed.
    """
    good = isinstance(names, list | tuple) and all(isinstance(name, str) and name.strip() for name in names)
    require(good, "plugins", "must be a list of Python files (….py), entry points or modules", names)
    assert isinstance(names, list | tuple)
    require(len({*names}) == len(names), "plugins", "must not name a plugin twice", list(names))
    return [_loaded[name] if name in _loaded else _import(name) for name in names]


def load_file(path: str, sha256: str | None = None) -> Plugin:
    """Import a Python file as a plugin, or return it if it is already imported.

    Args:
        sha256: the required hash of the text; a file with another hash is not run. None accepts any hash.

    Raises:
        PluginError: the file is missing, has another hash, or cannot be imported.
    """
    plugin = _loaded.get(path) or Plugin(path, module_name(path), _text(path))
    if sha256 not in (None, plugin.sha256):
        raise PluginError(f"the file {path} must have the SHA-256 {sha256}, and has {plugin.sha256}: it has changed")
    return _loaded[path] if path in _loaded else _import(path, plugin.text)


def module_of_file(path: str) -> types.ModuleType:
    """Return the module of an imported file."""
    return sys.modules[module_name(path)]


def install(plugins: Iterable[Plugin]) -> None:
    """Import, in this process, the plugins of another process.

    Raises:
        PluginError: see :func:`load`.
    """
    for plugin in plugins:
        if plugin.name not in _loaded:
            _import(plugin.name, plugin.text)


def loaded() -> tuple[Plugin, ...]:
    """Return the plugins of this process, in the order of import."""
    return tuple(_loaded.values())


def plugin_of(module: str) -> Plugin | None:
    """Return the plugin that a module belongs to; None for modules of the library and the running program."""
    return next((plugin for plugin in _loaded.values() if plugin.owns(module)), None)


def opened(plugins: Iterable[Plugin], blob: bytes) -> Any:
    """Import ``plugins``, then unpickle ``blob``.

    Raises:
        PluginError: see :func:`load`.
    """
    install(plugins)
    return pickle.loads(blob)


def module_name(path: str) -> str:
    """Return the module name of the file ``path``."""
    plain = Path(path).as_posix()
    stem = re.sub(r"\W", "_", Path(path).stem)
    return f"bdl_plugin_{stem}_{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def _import(name: str, text: str | None = None) -> Plugin:
    mark = len(_added)
    file = name.endswith(".py")
    module = module_name(name) if file else _installed(name)
    if file and text is None:
        text = _text(name)
    plugin = _loaded[name] = Plugin(name, module, text)  # before the import, so that registered names find it
    try:
        if text is None:
            importlib.import_module(module)
        else:
            imported = sys.modules[module] = types.ModuleType(module)
            imported.__file__ = name
            exec(compile(text, name, "exec"), imported.__dict__)
    except BaseException as error:
        for table, added in reversed(_added[mark:]):
            del table._others[added]
        del _added[mark:], _loaded[name]
        sys.modules.pop(module, None)
        if not isinstance(error, Exception | SystemExit):
            raise
        raise PluginError(f"the plugin {name} cannot be imported: {_cause(error, name)}") from error
    for table, added in _added[mark:]:
        value, owner = table._others[added]
        if plugin_of(owner) is None and owner.partition(".")[0] != __package__:  # such as functools, of a partial
            table._others[added] = (value, module)
    return plugin


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PluginError(f"the plugin {name} is missing: no such file in {Path.cwd()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"the plugin {name} cannot be read: {brief(error)}") from None


def _installed(name: str) -> str:
    """Return the module behind an entry point of :data:`GROUP`, or the module ``name`` itself."""
    from importlib.metadata import entry_points

    points = entry_points(group=GROUP, name=name)
    return next(iter(points)).module if points else name


def _cause(error: BaseException, name: str) -> str:
    """Return the reason why an import failed, and the line in the plugin's own file."""
    reason = brief(error) if isinstance(error, UserError) else f"{type(error).__name__}: {brief(error)}"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} in line {error.lineno}: {brief(error.msg)}"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return "there is no such module, and no such entry point; a file's name ends in .py"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return f"{reason} (line {lines[-1]})" if lines else reason


def variant_name(cls: type, what: str) -> str:
    """Return the name of a config class: the only value of its field ``name``, a ``Literal``.

    Raises:
        PluginError: the class is not a frozen dataclass with such a field.
    """
    if not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PluginError(f"the {what} {cls.__name__} must be a frozen dataclass")
    hint = get_type_hints(cls).get("name")
    if get_origin(hint) is not Literal or len(get_args(hint)) != 1:
        raise PluginError(f'the {what} {cls.__name__} must have a field name: Literal["<its name>"]')
    return str(get_args(hint)[0])
