"""Plugins: methods, networks, data sources and scores from outside, and the tables of names that they add to.

A plugin is a Python file or an installed module that calls ``register_…`` functions as it is imported. ``params.yaml``
names those that it needs, and nothing else is ever imported. A file is imported under a name that follows from its
path as it is written, the same in every process, so that what it defines can be sent from one to another; a process
that lacks the file is sent its text.
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
GROUP: Final = "bdl_pipe.plugins"  # of entry points


class PluginError(UserError):
    """The error of a plugin that is missing, that cannot be imported, or that registers a name that is taken."""


@dataclass(frozen=True)
class Plugin:
    """A plugin that has been imported.

    Attributes:
        name: as params.yaml has it: a path that ends in ``.py``, an entry point, or a module.
        module: its name in ``sys.modules``.
        text: what a file holds; None: an installed module.
    """

    name: str
    module: str
    text: str | None

    @property
    def sha256(self) -> str:
        """Return the hash of a file's text, as it was imported."""
        return hashlib.sha256((self.text or "").encode()).hexdigest()

    def owns(self, module: str) -> bool:
        """Say whether a module is of this plugin: the file, or any of the same top-level package."""
        if self.text is not None:
            return module == self.module
        return module.partition(".")[0] == self.module.partition(".")[0]


_loaded: Final[dict[str, Plugin]] = {}
_added: Final[list[tuple["Registered[Any]", str]]] = []  # in order, so that a plugin that fails takes back its own


class Registered(Mapping[str, T], Generic[T]):
    """A table of names and values: those of the library, and those that were added."""

    def __init__(self, what: str, values: Mapping[str, T]) -> None:
        """Take the library's values, and ``what``, the word for a value in errors."""
        self._what, self._values = what, dict(values)
        self._others: dict[str, tuple[T, str]] = {}  # with the module that defines the value

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
        """Add ``name``, whose value is defined in ``module``.

        Raises:
            PluginError: the name is taken, or is no name.
        """
        if not isinstance(name, str) or re.fullmatch(r"[A-Za-z]\w*", name) is None:
            raise PluginError(f"the {self._what} {name!r} must have a name of letters, digits and _")
        if name in self:
            raise PluginError(f"the {self._what} {name} is taken: {self._owner(name)} has one of this name")
        self._others[name] = (value, module)
        _added.append((self, name))

    def module_of(self, name: str) -> str | None:
        """Return the module that defines a value that was added; None: it is the library's."""
        return self._others[name][1] if name in self._others else None

    def _owner(self, name: str) -> str:
        if name not in self._others:
            return "the library"
        plugin = plugin_of(self._others[name][1])
        return self._others[name][1] if plugin is None else plugin.name

    def _remove(self, name: str) -> None:
        del self._others[name]


def load(names: object) -> list[Plugin]:
    """Import the plugins that ``names``, the section ``plugins`` of params.yaml, lists; those that are there stay.

    Raises:
        ConfigError: it is not a list of different texts.
        PluginError: one is missing or cannot be imported; nothing that it has registered is left.
    """
    good = isinstance(names, list | tuple) and all(isinstance(name, str) and name.strip() for name in names)
    require(good, "plugins", "must be a list of Python files (….py), entry points or modules", names)
    assert isinstance(names, list | tuple)
    require(len({*names}) == len(names), "plugins", "must not name a plugin twice", list(names))
    return [_loaded[name] if name in _loaded else _import(name) for name in names]


def load_file(path: str, sha256: str | None = None) -> Plugin:
    """Import a Python file as a plugin, or return it where it is here.

    Args:
        sha256: of the text; a file of another one is not run. None: any.

    Raises:
        PluginError: it is missing, of another hash, or cannot be imported.
    """
    plugin = _loaded.get(path) or Plugin(path, module_name(path), _text(path))
    if sha256 not in (None, plugin.sha256):
        raise PluginError(f"the file {path} must have the SHA-256 {sha256}, and has {plugin.sha256}: it has changed")
    return _loaded[path] if path in _loaded else _import(path, plugin.text)


def module_of_file(path: str) -> types.ModuleType:
    """Return the module of a file that has been imported."""
    return sys.modules[module_name(path)]


def install(plugins: Iterable[Plugin]) -> None:
    """Import, in this process, plugins that another process has imported.

    Raises:
        PluginError: as :func:`load`.
    """
    for plugin in plugins:
        if plugin.name not in _loaded:
            _import(plugin.name, plugin.text)


def loaded() -> tuple[Plugin, ...]:
    """Return every plugin of this process, in the order of import."""
    return tuple(_loaded.values())


def plugin_of(module: str) -> Plugin | None:
    """Return the plugin that a module belongs to; None: it is the library's, or of the running program itself."""
    return next((plugin for plugin in _loaded.values() if plugin.owns(module)), None)


def opened(plugins: Iterable[Plugin], blob: bytes) -> Any:
    """Return the object whose pickle is ``blob``, which is read once ``plugins`` are here.

    Raises:
        PluginError: as :func:`load`.
    """
    install(plugins)
    return pickle.loads(blob)


def module_name(path: str) -> str:
    """Return the name that the file ``path`` is imported under."""
    plain = Path(path).as_posix()
    stem = re.sub(r"\W", "_", Path(path).stem)
    return f"bdl_plugin_{stem}_{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def _import(name: str, text: str | None = None) -> Plugin:
    mark = len(_added)
    file = name.endswith(".py")
    module = module_name(name) if file else _installed(name)
    if file and text is None:
        text = _text(name)
    plugin = _loaded[name] = Plugin(name, module, text)  # there already, for what it registers to be told whose it is
    try:
        if text is None:
            importlib.import_module(module)
        else:
            _execute(name, module, text)
    except BaseException as error:
        for table, added in reversed(_added[mark:]):
            table._remove(added)
        del _added[mark:], _loaded[name]
        sys.modules.pop(module, None)
        if not isinstance(error, Exception | SystemExit):
            raise
        raise PluginError(f"the plugin {name} cannot be imported: {_cause(error, name)}") from error
    return plugin


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PluginError(f"the plugin {name} is not there: no such file in {Path.cwd()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"the plugin {name} cannot be read: {brief(error)}") from None


def _execute(name: str, module: str, text: str) -> None:
    made = types.ModuleType(module)
    made.__file__ = name
    sys.modules[module] = made
    exec(compile(text, name, "exec"), made.__dict__)


def _installed(name: str) -> str:
    """Return the module behind an entry point of :data:`GROUP`, or the module ``name`` itself."""
    from importlib.metadata import entry_points

    points = entry_points(group=GROUP, name=name)
    return next(iter(points)).module if points else name


def _cause(error: BaseException, name: str) -> str:
    """Say what an import stumbled over, and where in the plugin's own file."""
    said = brief(error) if isinstance(error, UserError) else f"{type(error).__name__}: {brief(error)}"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} in line {error.lineno}: {brief(error.msg)}"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return "there is no such module, and no such entry point; a file's name ends in .py"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return f"{said} (line {lines[-1]})" if lines else said


def variant_name(cls: type, what: str) -> str:
    """Return the name of a config that is chosen by ``name``: the one value of that field, a ``Literal``.

    Raises:
        PluginError: the class is not a frozen dataclass with such a field.
    """
    if not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PluginError(f"the {what} {cls.__name__} must be a frozen dataclass")
    hint = get_type_hints(cls).get("name")
    if get_origin(hint) is not Literal or len(get_args(hint)) != 1:
        raise PluginError(f'the {what} {cls.__name__} must have a field name: Literal["<its name>"]')
    return str(get_args(hint)[0])
