"""The library's wheel in an environment that holds its declared dependencies and nothing else.

The environment is made of links to this one's packages: to what pyproject.toml declares without an extra, and to what
these packages declare in their turn. It needs no network, and an import of anything else fails as it would for a user.
"""

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed(requirements: list[str], seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield the installed distributions of ``requirements`` and of what these require in turn, each once."""
    for requirement in map(Requirement, requirements):
        name = requirement.name.lower().replace("_", "-")
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # such as the CUDA libraries of a torch that was built without CUDA
        yield distribution
        yield from needed(distribution.requires or [], seen)


def link(requirements: list[str], site: Path) -> None:
    """Put links to the packages of ``requirements``, and of what they declare, into an environment."""
    for distribution in needed(requirements, set()):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            place = Path(str(distribution.locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(place, target_is_directory=place.is_dir())


def installed(folder: Path) -> Path:
    """Make the environment below ``folder``; return its interpreter."""
    source = folder / "source"
    source.mkdir()
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", ROOT / name, source], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, source],
        check=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (site,) = (folder / "venv/lib").glob("python3*/site-packages")
    link(PROJECT["dependencies"], site)
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True, timeout=300)
    return folder / "venv/bin/python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, env=environment, cwd=python.parent, timeout=500
    )
