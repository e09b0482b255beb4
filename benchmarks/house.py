"""The size of the house: lines, long modules, private functions with one use, and the modules that two calls visit.

    python benchmarks/house.py

prints a table. A private function is used once if its module names it once besides its definition. A module of the
library is unreachable if no import, also inside a function, leads to it from a public name or an entry of the registry.
A module is visited by a call that runs one of its functions.
"""

import ast
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
WHEEL: Final = "bdl_pipe"
PACKAGES: Final = {name: ROOT / "src" / name for name in (WHEEL, "bdl_report", "bdl_decisions")} | {
    name: ROOT / name for name in ("pipeline", "stages", "website", "benchmarks")
}
LONGEST: Final = 300  # lines of a module
_DEFINITIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(folder: Path) -> dict[Path, ast.Module]:
    """Return the modules of a folder by their paths."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


def lines(folder: Path) -> int:
    """Count the lines of all Python files of a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def private_functions(modules: dict[Path, ast.Module]) -> tuple[int, int]:
    """Return the number of private functions and methods that are used once, and of all."""
    every = once = 0
    for tree in modules.values():
        uses = Counter(name for node in ast.walk(tree) for name in _named(node))
        names = [node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)]
        private = [name for name in names if name.startswith("_") and not name.startswith("__")]
        every, once = every + len(private), once + sum(uses[name] == 1 for name in private)
    return once, every


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    return [node.attr] if isinstance(node, ast.Attribute) else []


def unreachable(modules: dict[str, ast.Module], places: set[str]) -> set[str]:
    """Return the modules to which no import leads from ``places``."""
    reached: set[str] = set()
    todo = {name for place in places for name in _with_packages(place)}
    while todo:
        name = todo.pop()
        if name in modules and name not in reached:
            reached.add(name)
            todo |= set(_imports(name, modules))
    return modules.keys() - reached


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _imports(name: str, modules: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the modules that a module imports, each with its packages."""
    tree, is_package = modules[name], any(other.startswith(f"{name}.") for other in modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")
            above = above[: len(above) - node.level + is_package] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield from _with_packages(f"{base}.{alias.name}")


def visited(call: Callable[[], Any]) -> set[Path]:
    """Return the library's modules of which a call runs a function."""
    call()  # the first call imports modules
    files = set[str]()

    def record(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {path for file in files if (path := Path(file)).is_relative_to(PACKAGES[WHEEL])}


def fit_of_an_estimator() -> Callable[[], Any]:
    """Return the fit of ``vbll`` to a table of numbers."""
    import numpy as np

    from bdl_pipe import BayesianRegressor

    x = np.random.default_rng(0).normal(size=(200, 4))
    return lambda: BayesianRegressor("vbll", pace=0.01).fit(x, np.sin(x[:, 0]))


def posterior_of_a_model() -> Callable[[], Any]:
    """Return the call that makes a posterior of an image network."""
    import torch
    from torch import nn

    from bdl_pipe import bayesianise

    x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2))
    return lambda: bayesianise(net, "kfac_laplace", [(x, (x.mean((1, 2, 3)) > 0).long())])


def measures() -> dict[str, str]:
    """Return the table: what is measured -> its value."""
    from bdl_pipe.public import PLACES
    from bdl_pipe.registry import METHODS, POSTERIORS

    wheel = parsed(PACKAGES[WHEEL])
    dotted = {path.relative_to(ROOT / "src").with_suffix(""): tree for path, tree in wheel.items()}
    modules = {".".join(path.parts).removesuffix(".__init__"): tree for path, tree in dotted.items()}
    places = {f"{WHEEL}.{place.partition(':')[0]}" for place in PLACES.values()}
    places |= {f"{WHEEL}.command"}  # the console script of pyproject.toml
    places |= {table.module(name) for table in (METHODS, POSTERIORS) for name in table} | {f"{WHEEL}.public"}
    private, every = private_functions(wheel)
    long = {path: count for path in wheel if (count := len(path.read_text().splitlines())) > LONGEST}
    alone = unreachable(modules, places)
    return {
        "lines of the wheel": f"{lines(PACKAGES[WHEEL]):,}",
        **{f"lines of {name}": f"{lines(folder):,}" for name, folder in PACKAGES.items() if name != WHEEL},
        "lines of tests": f"{lines(ROOT / 'tests'):,}",
        f"modules of the wheel over {LONGEST} lines": f"{len(long)} of {len(wheel)}",
        "private functions of the wheel used once": f"{private} of {every}",
        'modules that BayesianRegressor("vbll").fit visits': str(len(visited(fit_of_an_estimator()))),
        'modules that bayesianise(net, "kfac_laplace") visits': str(len(visited(posterior_of_a_model()))),
        "modules of the wheel that no public name or registry entry reaches": f"{len(alone)}",
        **{f"  {name}": "unreachable" for name in sorted(alone)},
        **{f"  {path.relative_to(ROOT)}": f"{count} lines" for path, count in sorted(long.items(), key=lambda x: x[1])},
    }


def main() -> None:
    """Print the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT / "src"))
    table = measures()
    width = max(map(len, table))
    for name, value in table.items():
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
