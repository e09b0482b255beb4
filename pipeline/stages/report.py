"""The report stage: what lies where, for the report's own code."""

import hashlib
import json
from typing import Any

from bdl_pipe import artifacts

from .. import report
from ..core import places
from ..core.params import Params, Row
from ..core.settings import Settings
from ..report import means
from ..tracking import provenance
from . import records


def build(params: Params, settings: Settings) -> None:
    """Make ``report/`` from the stored tables of every run that has been evaluated."""
    runs, coresets = _infos(params)
    report.build(runs, coresets, places.REPORT, provenance=_facts(params, settings), dpi=params.report.figures_dpi)
    if settings.tracking:
        compare(params)


def compare(params: Params) -> str | None:
    """Bring MLflow's comparison up to date; the experiment's id, or None without tracking."""
    from ..tracking import summaries

    return summaries.publish(params, *_infos(params))


def _infos(params: Params) -> tuple[list[report.RunInfo], list[report.CoresetInfo]]:
    used = {row.sources.get("coreset") for row in params.of("student")}  # DVC watches them by their students
    coresets = [_coreset(row) for row in params.of("coreset") if row.key in used]
    return [run_info(row, params) for row in params.of("student")], coresets


def run_info(row: Row, params: Params) -> report.RunInfo:
    """Where the results of a row of ``runs`` lie."""
    return report.RunInfo(
        key=row.key,
        dataset=row.entry.dataset,
        method=row.method.name,
        setting=row.entry.setting,
        evaluate=places.artifact("evaluate", row.key),
        record=places.record("student", row.key),
        upstream=tuple(places.record(kind, key) for kind, key in row.sources.items()),
        fold=means.fold(params.datasets[row.entry.dataset].splits, row.entry.members),
    )


def _coreset(row: Row) -> report.CoresetInfo:
    schema = places.artifact("prepare", row.entry.dataset) / "schema.json"
    classes = tuple(json.loads(schema.read_text())["classes"]) if schema.is_file() else ()
    return report.CoresetInfo(row.key, row.entry.dataset, row.method.name, places.artifact("coreset", row.key), classes)


def _facts(params: Params, settings: Settings) -> dict[str, Any]:
    """Where the figures come from, as the page shows it."""
    made = [records.read(row.kind, row.key) for row in params.rows.values()]
    fitted = sum(sum(record.get("seconds", {}).values()) for record in made)
    return {
        "commit": provenance.commit(),
        "seed": params.seed,
        "params sha256": hashlib.sha256(json.dumps(params.raw, sort_keys=True).encode()).hexdigest()[:16],
        **{f"data sha256, {key}": _data_hash(key) for key in params.datasets},
        "device": records.device_name(settings.device),
        "seconds of fitting, all stages": round(fitted, 1),
    }


def _data_hash(dataset: str) -> str:
    """Of the rows that fits see; evaluate alone reads the others."""
    manifest = places.artifact("prepare", dataset) / artifacts.MANIFEST
    return artifacts.sha256(manifest)[:16] if manifest.is_file() else "—"
