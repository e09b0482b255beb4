"""Where the figures of a paper's page come from."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts

from ..core import places, records

RESULTS: Final = Path("results")
_UNKNOWN: Final = "—"


def made(keys: Sequence[str], dataset: str) -> dict[str, Any]:
    """Collect what the records of runs say. Equal results have equal facts, whenever the page is written.

    Args:
        keys: of the runs that have scores.
        dataset: our name.
    """
    found = {key: records.read("student", key) for key in keys}
    manifest = places.artifact("prepare", dataset) / artifacts.MANIFEST
    fits = {(key, seed): took for key, record in found.items() for seed, took in record.get("seconds", {}).items()}
    for record in found.values():
        for above in record.get("made_from", {}).values():
            fits |= above
    return {
        "commit": _all(record.get("commit") for record in found.values()),
        "data sha256": artifacts.sha256(manifest)[:16] if manifest.is_file() else _UNKNOWN,
        "device": _all(record.get("device") for record in found.values()),
        "torch": _all(record.get("versions", {}).get("torch") for record in found.values()),
        "seconds of fitting": round(sum(fits.values()), 1),
    }


def _all(values: Iterable[str | None]) -> str:
    """Write the different values of a fact."""
    return ", ".join(sorted({_UNKNOWN if value is None else value for value in values})) or _UNKNOWN
