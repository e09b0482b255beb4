"""``<artifact>.run.json``: facts that differ between equal runs: seconds, memory, device, commit, warnings, the curve.

The file is beside the artifact and not in it, so that equal runs have equal artifacts and DVC runs no later stage.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Kind, Summary, fan_in

from . import places, provenance
from .model import Run
from .settings import Settings

if TYPE_CHECKING:
    from bdl_pipe.checkpoints import Done  # it imports torch

Above = Mapping[Kind, Mapping[str, Any]]  # stage kind -> record
_BY_MEMBER: Final = ("seconds", "peak_bytes", "total_seconds")


def write(
    run: Run,
    done: Mapping[str, "Done"],
    settings: Settings,
    summary: Summary,
    above: Above,
    curve: Sequence[tuple[float, float]] = (),
) -> None:
    """Write ``<artifact>.run.json``. A seed's total seconds include its upstream fits, each once.

    Args:
        curve: step and loss of some steps.
    """
    import torch

    made_from = {name: _made_from(run, name, above) for name in done}
    record = {
        "seconds": {name: made.seconds for name, made in done.items()},
        "peak_bytes": {name: made.peak_bytes for name, made in done.items()},
        "made_from": made_from,
        "total_seconds": {name: made.seconds + sum(made_from[name].values()) for name, made in done.items()},
        "executor": settings.executor,
        "device": device_name(settings.device),
        "commit": provenance.commit(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "metrics": {name: float(value) for name, value in summary.metrics.items()},
        "warnings": list(summary.warnings),
        "traces": dict(summary.traces),
        "curve": [list(point) for point in curve],
    }
    write_bytes(places.record(run.kind, run.key), json.dumps(record, sort_keys=True, indent=1).encode())


def read(kind: str, key: str) -> dict[str, Any]:
    """Read the record of a run's stage; {} if there is none.

    Raises:
        ArtifactError: the file is not a record.
    """
    place = places.record(kind, key)
    try:
        record = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ArtifactError(f"{place}: is truncated or not JSON ({error}); make the {kind} {key} again") from None
    return _with(_BY_MEMBER, record, kind, key)


def above(run: Run) -> Above:
    """Read the records of a run's inputs, by stage kind; {} for an input without a record.

    They are not dependencies of the stage, because no result depends on them.

    Raises:
        ArtifactError: see :func:`read`; or a record has an older version.
    """
    records_above = {kind: read(kind, key) for kind, key in run.sources.items()}
    return {
        kind: record and _with(("made_from",), record, kind, run.sources[kind])
        for kind, record in records_above.items()
    }


def _with(names: Sequence[str], record: Any, kind: str, key: str) -> dict[str, Any]:
    """Return ``record``; raise ArtifactError unless it has these sections."""
    for name in names:
        if not isinstance(record, dict) or not isinstance(record.get(name), dict):
            place = places.record(kind, key)
            raise ArtifactError(f"{place}: is damaged or of an older version (no {name}); make the {kind} {key} again")
    whole: dict[str, Any] = record
    return whole


def _made_from(run: Run, name: str, above: Above) -> dict[str, float]:
    """Collect all upstream fits of a seed, ``<stage kind>/<run>/<seed>`` -> its own seconds."""
    split, _, seed = name.partition("-")
    seconds_by_fit: dict[str, float] = {}
    for kind, key in run.sources.items():
        seconds = above[kind].get("seconds", {})
        count = sum(other.startswith(f"{split}-") for other in seconds)
        for number in fan_in(run.stage.needs[kind], int(seed), count, run.spec.seeds) if count else ():
            used = f"{split}-{number}"
            seconds_by_fit |= above[kind]["made_from"][used] | {f"{kind}/{key}/{used}": seconds[used]}
    return seconds_by_fit


def data_hash(dataset: str) -> str:
    """Hash the rows that fits read, not those that only the evaluate stage reads; a dash if there are none yet."""
    manifest = places.artifact("prepare", dataset) / artifacts.MANIFEST
    return artifacts.sha256(manifest)[:16] if manifest.is_file() else "—"


def device_name(device: str) -> str:
    """Return the processor's or the GPU's own name."""
    import torch

    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu")
    except OSError:
        return "cpu"
