"""The provenance of the values on a paper's page."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts

from ..core import places, records

RESULTS: Final = Path("results")
_UNKNOWN: Final = "—"


def made(keys: Sequence[str], dataset: str) -> dict[str, Any]:
    """Collect facts from the records of runs. Equal results have equal facts, independent of the time of writing.

    Args:
        keys: the keys of the runs with scores.
        dataset: the data set's name in params.yaml.
    """
    records_of = {key: records.read("student", key) for key in keys}
    manifest = places.artifact("prepare", dataset) / artifacts.MANIFEST
    fits = {(key, seed): took for key, record in records_of.items() for seed, took in record.get("seconds", {}).items()}
    for record in records_of.values():
        for above in record.get("made_from", {}).values():
            fits |= above
    return {
        "commit": _all(record.get("commit") for record in records_of.values()),
        "data sha256": artifacts.sha256(manifest)[:16] if manifest.is_file() else _UNKNOWN,
        "device": _all(record.get("device") for record in records_of.values()),
        "torch": _all(record.get("versions", {}).get("torch") for record in records_of.values()),
        "seconds of fitting": round(sum(fits.values()), 1),
    }


def _all(values: Iterable[str | None]) -> str:
    """Return the different values of a fact as a text."""
    return ", ".join(sorted({_UNKNOWN if value is None else value for value in values})) or _UNKNOWN
