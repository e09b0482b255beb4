"""Whether a result is up to date: the one answer, which every command asks for.

Beside the artifacts lies ``work/identity/<kind>/<key>.json``: the numbers, code and inputs that a result was made
from, and the hashes of what was made. It is written last: after an interrupt it is not there, or of what was there
before. It is one of the stage's outputs for DVC, so it travels with the result.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bdl_pipe.artifacts import MANIFEST, sha256
from bdl_pipe.files import write_bytes

from ..core import places
from .plan import Stage


def reason(stage: Stage) -> str | None:
    """Say why a stage is out of date, as far as its own inputs tell; None where its result is up to date."""
    place = places.identity(stage.kind, stage.key)
    try:
        known = json.loads(place.read_text())
        made, since = known.pop("made"), place.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return "there is no result yet"
    except (OSError, ValueError, AttributeError, KeyError):
        return f"{place} is damaged"
    changed = _difference(known, made_from(stage))
    if changed is not None:
        return changed
    for path in stage.makes:
        if _hash(path) != made.get(str(path)):
            return f"{path} is not what was made"
        altered = _altered(path, since)
        if altered is not None:
            return altered
    return None


def record(stage: Stage, made_from: Mapping[str, Any]) -> None:
    """Write what a stage's artifacts, which are in place, were made from; ``made_from`` was taken before the work."""
    made = {str(path): _hash(path) for path in stage.makes}
    place = places.identity(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    places.sweep(place)
    write_bytes(place, json.dumps({**made_from, "made": made}, sort_keys=True, indent=1).encode())


def fits(identity: Path, made_from: Mapping[str, Any], made: Mapping[Path, Path]) -> bool:
    """Say whether the file ``identity`` is of what is made from ``made_from``.

    Args:
        made: a stage's artifact -> where it lies for now.
    """
    try:
        known = json.loads(identity.read_text())
        return bool(known == {**made_from, "made": {str(path): _hash(place) for path, place in made.items()}})
    except (OSError, ValueError):
        return False


def made_from(stage: Stage) -> dict[str, Any]:
    """Collect what a stage is made from now: numbers, digests of code and data, hashes of inputs, as JSON has them."""
    inputs = {str(path): _hash(path) for path in stage.reads}
    facts = {"params": dict(stage.params), "sources": dict(stage.digests), "inputs": inputs}
    return json.loads(json.dumps(facts))


def _difference(known: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Name the first thing that has changed between ``known`` and ``now``."""
    for section, what in (("params", "the number"), ("sources", "the code or data"), ("inputs", "the input")):
        before, after = known.get(section, {}), now[section]
        for name in sorted({*before, *after}):
            if name not in before or name not in after or before[name] != after[name]:
                return f"{what} {name} has changed"
    return None


def _hash(path: Path) -> str | None:
    """Hash a file, or an artifact's manifest, which holds the hash of every file in it; None where it is not there."""
    path = path / MANIFEST if path.is_dir() else path
    return sha256(path) if path.is_file() else None


def _altered(path: Path, since: int) -> str | None:
    """Find a file of an artifact that is missing, or differs from what the manifest says.

    Args:
        since: nanoseconds; what was written before is taken to be what the manifest was written of, if its size is.
    """
    if not path.is_dir():
        return None
    for name, facts in json.loads((path / MANIFEST).read_text())["files"].items():
        file = path / name
        if not file.is_file():
            return f"{file} is missing"
        status = file.stat()
        same = status.st_size == facts["bytes"]
        if not same or (status.st_mtime_ns > since and sha256(file) != facts["sha256"]):
            return f"{file} is not what was made"
    return None
