"""Whether a result is up to date.

Beside the artifacts lies ``work/identity/<kind>/<key>.json``: the parameters, code and inputs that a result was made
from, and the hashes of the result. The file is written last: after an interrupt it is missing, or belongs to the
earlier result. It is one of the stage's outputs for DVC, so it travels with the result.
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
    """Return why a stage is out of date, judged by its own inputs; None where its result is up to date."""
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
            return f"{path} was changed since"
        altered = _altered(path, since)
        if altered is not None:
            return altered
    return None


def record(stage: Stage, made_from: Mapping[str, Any]) -> None:
    """Write the identity of a stage whose artifacts are in place; ``made_from`` was collected before the work."""
    made = {str(path): _hash(path) for path in stage.makes}
    place = places.identity(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    places.sweep(place)
    write_bytes(place, json.dumps({**made_from, "made": made}, sort_keys=True, indent=1).encode())


def made_from(stage: Stage) -> dict[str, Any]:
    """Collect the present parameters, digests of code and data, and hashes of inputs of a stage, as JSON has them."""
    inputs = {str(path): _hash(path) for path in stage.reads}
    facts = {"params": dict(stage.params), "sources": dict(stage.digests), "inputs": inputs}
    return json.loads(json.dumps(facts))


def _difference(known: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Name the first key, digest or input that differs between ``known`` and ``now``; None where all are equal."""
    for section, what in (("params", "the key"), ("sources", "the code or data"), ("inputs", "the input")):
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
        since: nanoseconds; a file that was written before this time is trusted if its size is right.
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
            return f"{file} was changed since"
    return None
