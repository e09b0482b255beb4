"""The paths of artifacts and state, below the working directory."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = ("src/bdl_pipe", "src/bdl_report", "src/bdl_decisions", "pipeline")  # below the project's root
WORK: Final = Path("work")
STATE: Final = Path(".state")
REPORT: Final = Path("report")
_root: Path | None = None  # replaces WORK, see rooted


def artifact(kind: str, key: str) -> Path:
    """Return the path of an artifact, ``work/<kind>/<key>``."""
    return (_root or WORK) / kind / key


def below_work(name: str) -> Path:
    """Return the path of a name in dvc.yaml, ``work/<kind>/<key>`` with its suffix, or a path outside of ``work``."""
    path = Path(name)
    return (_root or WORK) / path.relative_to(WORK) if path.is_relative_to(WORK) else path


def kind_and_key(path: Path) -> tuple[str, str]:
    """Return the kind and key of the artifact that a path of :func:`below_work` is, or belongs to."""
    kind, key, *_ = path.relative_to(_root or WORK).parts
    return kind, key.removesuffix(".run.json")


def record(kind: str, key: str) -> Path:
    """Return the file of facts that differ between equal runs: seconds, memory, device, commit."""
    return (_root or WORK) / kind / f"{key}.run.json"


def identity(kind: str, key: str) -> Path:
    """Return the file with the parameters, code and inputs of an artifact, see ``plan.plan``."""
    return (_root or WORK) / "identity" / kind / f"{key or kind}.json"


def lock(kind: str, key: str) -> Path:
    """Return the lock file that the process of a stage holds."""
    return STATE / "locks" / (_root or "") / kind / f"{key or kind}.lock"


def sources() -> Path:
    """Return the file of the hashes of code and users' files, see ``plan.sources``."""
    return WORK / "sources.yaml"


def decisions() -> Path:
    """Return the list of decisions. It exists even without decisions: DVC's report stage depends on its folder."""
    return WORK / "decide" / "names.json"


def checkpoints(kind: str, key: str) -> Path:
    """Return the folder of a stage's checkpoints."""
    return STATE / "checkpoints" / (_root or "") / kind / key


def curve(kind: str, key: str) -> Path:
    """Return the file of a stage's metrics by step, see ``core.curves``."""
    return STATE / "curves" / (_root or "") / kind / f"{key}.jsonl"


@contextmanager
def rooted(root: Path) -> Iterator[None]:
    """Place this process's artifacts in ``root/<kind>/<key>`` within the block; workers do not use paths."""
    global _root
    before, _root = _root, root
    try:
        yield
    finally:
        _root = before


def kept(file: Path) -> dict[str, Any]:
    """Read a JSON file of ``STATE``; empty if it is missing or damaged, since the project can do without it."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def sweep(place: Path) -> None:
    """Remove the temporary files that a killed process left beside ``place``."""
    for leftover in place.parent.glob(f".{place.name}.*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
