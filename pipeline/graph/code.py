"""Which code a stage's result depends on: a hash of the files that its bytes follow from.

From the module of the stage kind and that of the method, every import is followed, also those inside functions.
Two kinds of module are not: the registry, a table of names of which a result depends on its own spec alone, and the
rest of ``pipeline``, which carries, shows and tracks, and shapes no byte (tests/pipeline/test_code.py holds this
against another tool's import graph). Only the standard library is needed: a stage that always runs comes here.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
_TOPS: Final = {"bdl_pipe": PROJECT / "src", "pipeline": PROJECT}
REGISTRY: Final = "bdl_pipe.registry"
RESULTS: Final = (  # what of the pipeline writes artifacts
    "pipeline.core.scores",
    "pipeline.stages.prepare",
    "pipeline.stages.inputs",
    "pipeline.stages.fit",
    "pipeline.stages.records",
    "pipeline.stages.evaluate",
    "pipeline.stages.report",
    "pipeline.report",
)
BODIES: Final[Mapping[str, str]] = {  # stage kind -> the module that does its work
    "prepare": "pipeline.stages.prepare",
    "inputs": "pipeline.stages.inputs",
    "trajectory": "pipeline.stages.fit",
    "teacher": "pipeline.stages.fit",
    "coreset": "pipeline.stages.fit",
    "student": "pipeline.stages.fit",
    "evaluate": "pipeline.stages.evaluate",
    "report": "pipeline.stages.report",
}


@cache
def digest(kind: str, method: str | None = None) -> str:
    """A hash of all code that a stage's result depends on.

    Args:
        kind: a stage kind.
        method: a name of the registry, for kinds that a method has a part in.
    """
    spec = [] if method is None else [_methods()[method]]
    whole = hashlib.sha256()
    for module in sorted(closure([BODIES[kind], *spec])):
        whole.update(module.encode() + b"\0" + _hash(path_of(module)))
    return whole.hexdigest()[:16]


def files() -> Iterator[Path]:
    """Every file that a digest may depend on."""
    yield from (PROJECT / "src" / "bdl_pipe").rglob("*.py")
    for module in RESULTS:
        path = path_of(module)
        yield from path.parent.rglob("*.py") if path.name == "__init__.py" else [path]


def has_method(kind: str) -> bool:
    """Whether a method has a part in a stage kind."""
    return BODIES[kind] in ("pipeline.stages.fit", "pipeline.stages.evaluate")


def methods() -> tuple[str, ...]:
    """The names of the registry."""
    return tuple(_methods())


def closure(roots: Iterable[str]) -> set[str]:
    """The modules that ``roots`` import, directly or not, themselves included, in so far as results depend on them."""
    reached, new = set[str](), set(roots)
    while new:
        reached |= new
        new = {above for module in new for above in _imports(module)} - reached
    return reached


@cache
def path_of(module: str) -> Path:
    """The file of a module of ours."""
    stem = _TOPS[module.partition(".")[0]].joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def _counts(module: str) -> bool:
    if module.partition(".")[0] == "pipeline":
        return any(module == name or module.startswith(f"{name}.") for name in RESULTS)
    return module != REGISTRY


def _methods() -> Mapping[str, str]:
    from bdl_pipe.registry import METHODS, Lazy

    assert isinstance(METHODS, Lazy)
    return {name: METHODS.module(name) for name in METHODS}


@cache
def _hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of ours that one module imports, and the packages that it lies in."""
    path = path_of(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = {name for node in _nodes(ast.parse(path.read_bytes())) for name in _named(node, package)}
    parents = {parent for name in [*names, module] for parent in _parents(name)}
    ours = {name for name in names | parents if name.partition(".")[0] in _TOPS}
    return frozenset(name for name in ours if _counts(name) and path_of(name).is_file())


def _nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import but those for type checkers alone."""
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
    yield from (f"{base}.{alias.name}" for alias in node.names)  # a module, or else no file is there


def _parents(module: str) -> Iterator[str]:
    while module := module.rpartition(".")[0]:
        yield module
