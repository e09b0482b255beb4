"""The list that ``make install`` takes packages from, and the question whether it is whole."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.installed import main, reached, unmet

ROOT = Path(__file__).parents[2]
OF_A_GPU_BUILD = ("nvidia-", "cuda-", "triton")  # of torch, which constraints.txt leaves to pip


def add(folder: Path, name: str, version: str, *requires: str) -> None:
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (place / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages of which the first needs the second and, with an extra, the third; these two need each other."""
    monkeypatch.syspath_prepend(tmp_path)
    add(tmp_path, "zz_first", "1.0", "zz-second>=2", 'zz-third; extra == "more"', 'zz-absent; python_version < "3"')
    add(tmp_path, "zz_second", "2.1+cpu", "zz-third==3.*")
    return tmp_path


def test_all_that_is_needed_is_here(folder: Path) -> None:
    add(folder, "zz_third", "3.0rc1", "ZZ.Second")
    assert unmet(Requirement("zz-first[more]")) == []
    assert main("zz-first[more]") == 0


def test_what_is_missing_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unmet(Requirement("zz-first")) == ["zz-third, which zz-second needs, is not installed"]
    assert len(unmet(Requirement("zz-first[more]"))) == 2, "the extra needs it, too"
    assert main("zz-nothing") == 1
    assert capsys.readouterr().err == "zz-nothing is not installed\n"


def test_a_wrong_version_is_named(folder: Path) -> None:
    add(folder, "zz_third", "4.0")
    assert unmet(Requirement("zz-first")) == ["zz-third, which zz-second needs, must be ==3.*, got 4.0"]


def pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.M)}


def test_the_list_is_whole() -> None:
    """All that pyproject.toml leads to is in the part of constraints.txt that is installed, as it is here."""
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"^EXTRAS := (.+)$", makefile, re.M)
    mark = re.search(r"sed -n '/\^\\(.+?)/q;", makefile)
    assert extras and mark
    head, _, tail = (ROOT / "constraints.txt").read_text().partition(f"\n{mark[1]}")
    installed, others = pins(head + "\n"), pins(tail)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(r for e in extras[1].split(",") for r in project["optional-dependencies"][e]),
    ]
    lacking = set()
    for line in declared:
        for needed, _, package in reached(Requirement(line)):
            name = canonicalize_name(needed.name)
            assert package is not None, f"{name}: not installed"
            if not name.startswith(OF_A_GPU_BUILD) and installed.get(name) != package.version.partition("+")[0]:
                lacking.add(f"{name}=={package.version}")
    assert lacking == set()
    assert installed.keys().isdisjoint(others), "no package stands twice"
    assert {"setuptools", "packaging"} <= installed.keys(), "what the install itself uses"
    assert {canonicalize_name(Requirement(r).name) for r in project["optional-dependencies"]["docs"]} <= others.keys()
