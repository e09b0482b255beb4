"""constraints.txt names every package that ``make install`` needs, so that nothing is resolved."""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
GPU_BUILD = ("nvidia-", "cuda-", "triton")  # a GPU build of torch brings these, so constraints.txt leaves them to pip


def needed(lines: Iterable[str]) -> dict[str, str]:
    """Return name -> installed version of every package that requirements lead to."""
    todo, seen, versions = [Requirement(line) for line in lines], set[tuple[str, str]](), dict[str, str]()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        package = metadata.distribution(name)
        versions[name] = package.version.partition("+")[0]
        for extra in {"", *requirement.extras} - {
            extra for requirement_name, extra in seen if requirement_name == name
        }:
            seen.add((name, extra))
            below = [Requirement(line) for line in package.requires or ()]
            todo += [r for r in below if r.marker is None or r.marker.evaluate({"extra": extra})]
    return versions


def pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.M)}


def test_constraints_pin_every_package_that_the_install_needs() -> None:
    """The installed part of constraints.txt has every package that pyproject.toml leads to, at its version here."""
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"^EXTRAS := (.+)$", makefile, re.M)
    mark = re.search(r"sed -n '/\^\\(.+?)/q;", makefile)
    assert extras and mark
    head, _, tail = (ROOT / "constraints.txt").read_text().partition(f"\n{mark[1]}")
    installed, others = pins(head + "\n"), pins(tail)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    chosen = set(extras[1].split(","))
    chosen |= {e for line in optional["pipeline"] if line.startswith("bdl-pipe[") for e in Requirement(line).extras}
    lines = [*project["dependencies"], *(line for extra in chosen for line in optional[extra])]
    names = needed(line for line in lines if not line.startswith("bdl-pipe["))
    assert {n: v for n, v in names.items() if not n.startswith(GPU_BUILD) and installed.get(n) != v} == {}
    assert installed.keys().isdisjoint(others), "no package stands twice"
    assert {"setuptools", "packaging"} <= installed.keys(), "the install itself uses them"
    assert {canonicalize_name(Requirement(r).name) for r in optional["docs"]} <= others.keys()
