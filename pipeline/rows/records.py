"""``<artifact>.run.json``: what differs between equal runs: seconds, memory, device, commit, warnings.

It lies beside the artifact and not in it, so that equal runs give equal bytes and DVC stops there.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bdl_pipe.files import write_bytes

from ..core import places
from ..core.executors import Done
from ..core.params import Row
from ..core.settings import Settings
from . import provenance


def write(
    row: Row,
    done: Mapping[str, Done],
    settings: Settings,
    metrics: Mapping[str, float],
    warnings: Sequence[str],
) -> None:
    """Write ``<artifact>.run.json``; the input's own, where there is one, counts into the total seconds."""
    import torch

    written = {
        "seconds": {name: made.seconds for name, made in done.items()},
        "peak_bytes": {name: made.peak_bytes for name, made in done.items()},
        "total_seconds": _totals(row, done),
        "executor": settings.executor,
        "device": device_name(settings.device),
        "commit": provenance.commit(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "metrics": dict(metrics),
        "warnings": list(warnings),
    }
    write_bytes(places.record(row.kind, row.key), json.dumps(written, sort_keys=True, indent=1).encode())


def read(kind: str, key: str) -> dict[str, Any]:
    try:
        return json.loads(places.record(kind, key).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _totals(row: Row, done: Mapping[str, Done]) -> dict[str, float]:
    """By member, its own seconds and those of all that it was made from.

    The input's record is read though it is no dependency of the stage: no result depends on it.
    """
    above = read(row.input_kind, row.input_key).get("total_seconds", {})
    totals = {}
    for name, made in done.items():
        split, _, member = name.partition("-")
        used = {k: v for k, v in above.items() if k.startswith(f"{split}-")}
        each = row.room.takes == "each"
        totals[name] = made.seconds + (above.get(f"{split}-{member}", 0.0) if each else sum(used.values()))
    return totals


def device_name(device: str) -> str:
    """The processor's or the GPU's own name."""
    import torch

    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu")
    except OSError:
        return "cpu"
