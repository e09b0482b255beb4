"""Where artifacts lie, below the working directory."""

import shutil
from pathlib import Path
from typing import Final

WORK: Final = Path("work")
STATE: Final = Path(".state")
REPORT: Final = Path("report")


def artifact(kind: str, key: str) -> Path:
    """``work/<kind>/<key>``."""
    return WORK / kind / key


def record(kind: str, key: str) -> Path:
    """What differs between equal runs, beside the artifact: seconds, memory, device, commit."""
    return WORK / kind / f"{key}.run.json"


def checkpoints(kind: str, key: str) -> Path:
    return STATE / "checkpoints" / kind / key


def sweep(place: Path) -> None:
    """Remove what a killed process left beside ``place``."""
    for left in place.parent.glob(f".{place.name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
