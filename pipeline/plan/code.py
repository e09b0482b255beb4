"""The digest of the code that a stage's result depends on.

The digest follows every import from the modules of the stage kind and the method, including imports inside functions
and in a plugin's own modules. It does not follow three kinds of module: the registry and the public names, since a
result depends only on its own entry of these tables; sizes, since params.yaml has their results; and the rest of
``pipeline``, which moves, shows and tracks results without changing a byte. (tests/pipeline/test_code.py compares the
closure with another tool's import graph.) This module imports no large package, because the stage ``sources``,
which runs after every change of the code, uses it.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bdl_pipe import plugins
from bdl_pipe.public import PLACES

from ..core.places import PACKAGES

PROJECT: Final = Path(__file__).resolve().parents[2]
_TOPS: Final = {path.name: path.parent for path in (PROJECT / package for package in PACKAGES)}
_EXPORTS: Final = {f"bdl_pipe.{name}": f"bdl_pipe.{place.partition(':')[0]}" for name, place in PLACES.items()}
PUBLIC: Final = "bdl_pipe.public"
REGISTRY: Final = "bdl_pipe.registry"
SIZES: Final = "bdl_pipe.data.size"
REPORT: Final = "bdl_report"
RESULTS: Final = (  # the modules of the pipeline that write artifacts
    "pipeline.prepared",
    "pipeline.stages.prepare",
    "pipeline.stages.inputs",
    "pipeline.stages.fit",
    "pipeline.core.records",
    "pipeline.stages.evaluate",
    "pipeline.stages.scores",
    "pipeline.stages.decide",
    "pipeline.stages.report",
)
BODIES: Final[Mapping[str, str]] = {  # stage kind -> the module that does its work
    "prepare": "pipeline.stages.prepare",
    "inputs": "pipeline.stages.inputs",
    "trajectory": "pipeline.stages.fit",
    "teacher": "pipeline.stages.fit",
    "coreset": "pipeline.stages.fit",
    "student": "pipeline.stages.fit",
    "evaluate": "pipeline.stages.evaluate",
    "scores": "pipeline.stages.scores",
    "decide": "pipeline.stages.decide",
    "report": "pipeline.stages.report",
}


@cache
def digest(kind: str, method: str | None = None, more: tuple[str, ...] = ()) -> str:
    """Hash all code that a stage's result depends on.

    Args:
        kind: the stage kind.
        method: the method's name in the registry, for kinds that run a method. A method that the running program
            defines, outside of files of the library or a plugin, adds nothing.
        more: additional modules.
    """
    modules = _methods()
    spec = [modules[method]] if method is not None and method in modules else []
    return digest_of((BODIES[kind], *spec, *more))


def digest_of(roots: Iterable[str]) -> str:
    """Hash the code of ``roots`` and of everything that they import."""
    whole = hashlib.sha256()
    modules = sorted(closure(roots))
    for module in modules:
        whole.update(module.encode() + b"\0" + hashlib.sha256(_text(module)).digest())
    for path in sorted(path for module in modules for path in _beside(module)):
        whole.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


def shipped() -> list[Path]:
    """List the files and packages of plugins that other machines need.

    Plugins that are single files are not listed, because they are sent with each task.
    """
    reached = closure(plugin.module for plugin in plugins.loaded())
    tops = {module.partition(".")[0] for module in reached} - _TOPS.keys()
    return [_root(top) / top if (_root(top) / top).is_dir() else path_of(top) for top in sorted(tops - _files())]


def _beside(module: str) -> Iterator[Path]:
    """List the files of a package that results depend on, except modules.

    These are the files of the report, such as templates of pages, and tensors that the library stores.
    """
    path = path_of(module)
    if path.name != "__init__.py" or not _counts(module):
        return
    if module == REPORT:
        yield from (p for p in path.parent.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc"))
    yield from path.parent.glob("*.safetensors")


def module_of(method: str) -> str | None:
    """Return the module of a method; None if its code is in no file of the library or a plugin."""
    return _methods().get(method)


def methods() -> tuple[str, ...]:
    """Return the names of the registry's methods."""
    return tuple(_methods())


def closure(roots: Iterable[str]) -> set[str]:
    """Return ``roots`` and all modules that they import, directly or not, and that results depend on."""
    reached, new = set[str](), set(roots)
    while new:
        reached |= new
        new = {above for module in new for above in _imports(module)} - reached
    return reached


@cache
def path_of(module: str) -> Path:
    """Return the file of a module of the project or a plugin."""
    stem = _root(module.partition(".")[0]).joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def _counts(module: str) -> bool:
    if module.partition(".")[0] == "pipeline":
        return any(module == name or module.startswith(f"{name}.") for name in RESULTS)
    return module not in (REGISTRY, PUBLIC, SIZES)


def _methods() -> Mapping[str, str]:
    from bdl_pipe.registry import METHODS, Lazy

    if not isinstance(METHODS, Lazy):  # the running program's own table
        return {}
    modules = {name: METHODS.module(name) for name in METHODS}
    return {  # a method of the running program is in neither
        name: module
        for name, module in modules.items()
        if module.partition(".")[0] in _TOPS or plugins.plugin_of(module) is not None
    }


def _files() -> set[str]:
    """Return the modules of single-file plugins, which are hashed by their imported text."""
    return {plugin.module for plugin in plugins.loaded() if plugin.text is not None}


@cache
def _root(top: str) -> Path:
    """Return the folder that contains a package of the project or a plugin; the working directory for other modules."""
    if top in _TOPS:
        return _TOPS[top]
    spec = find_spec(top) if any(p.text is None and p.owns(top) for p in plugins.loaded()) else None
    if spec is None or spec.origin is None:
        return Path.cwd()
    return Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]


@cache
def _text(module: str) -> bytes:
    file = next((plugin.text for plugin in plugins.loaded() if plugin.module == module), None)
    return path_of(module).read_bytes() if file is None else file.encode()


@cache
def _imports(module: str) -> frozenset[str]:
    """Return the project's modules that a module imports, and the packages that contain it."""
    path, tree = path_of(module), ast.parse(_text(module))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = {name for node in _nodes(tree) for name in _named(node, package)}
    if module.partition(".")[0] not in _TOPS:
        names |= {_EXPORTS[name] for name in names | {*_attributes(tree)} if name in _EXPORTS}
    parents = {parent for name in [*names, module] for parent in _parents(name)}
    if module.partition(".")[0] in _TOPS:
        ours = {name for name in names | parents if name.partition(".")[0] in _TOPS}
    else:
        ours = {name for name in names | parents if name not in _files()}
    return frozenset(name for name in ours if _counts(name) and path_of(name).is_file())


def _attributes(tree: ast.AST) -> Iterator[str]:
    """List ``bdl_pipe.<name>`` for each attribute of the package that the code uses, under any import name."""
    aliases = {
        alias.asname or "bdl_pipe"
        for node in _nodes(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "bdl_pipe"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield f"bdl_pipe.{node.attr}"


def _nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """List all imports except those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield from _nodes(node)


def _named(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    above = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)  # if it is not a module, no file exists


def _parents(module: str) -> Iterator[str]:
    while module := module.rpartition(".")[0]:
        yield module
