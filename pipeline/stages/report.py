"""The report stage: what lies where, for the report's own code."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bdl_pipe import artifacts, config
from bdl_pipe.data.config import DatasetConfig

from .. import report
from ..core import places, provenance, records
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.executor import Executor


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``report/`` from the stored tables of every run that has been evaluated."""
    runs, coresets = infos(params)
    report.build(runs, coresets, places.REPORT, provenance=facts(params, settings), dpi=params.report.figures_dpi)


def infos(params: Params) -> tuple[list[report.RunInfo], list[report.CoresetInfo]]:
    """Say where the results of all runs lie, and the coresets that they are made from."""
    used = {run.sources.get("coreset") for run in params.of("student")}  # DVC watches them by their students
    coresets = [_coreset(run) for run in params.of("coreset") if run.key in used]
    steps = {key: _step(dataset) for key, dataset in params.datasets.items()}
    runs = [dataclasses.replace(run_info(run, params), step=steps[run.spec.dataset]) for run in params.of("student")]
    return runs, coresets


def run_info(run: Run, params: Params) -> report.RunInfo:
    """Say where the results of an entry of ``runs`` lie."""
    coreset = run.sources.get("coreset")
    return report.RunInfo(
        key=run.key,
        dataset=run.spec.dataset,
        method=run.method.name,
        setting=run.spec.setting,
        evaluate=places.artifact("evaluate", run.key),
        record=places.record("student", run.key),
        upstream=tuple(places.record(kind, key) for kind, key in run.sources.items()),
        coreset=_coreset(params.run("coreset", coreset)) if coreset else None,
        network=_network(run, params),
    )


def _network(run: Run, params: Params) -> str:
    """Name the architecture of a run: of its method's own row above, its own, or another's that it is made from."""
    above = [row for row in reversed(params.lineage(run)) if row is not run]
    for row in (*(row for row in above if row.method.name == run.method.name), run, *above):
        holder = getattr(row.config, "target", row.config)
        if hasattr(holder, "network"):
            return _brief(config.to_mapping(holder.network))
    return ""


def _brief(network: Mapping[str, Any]) -> str:
    """Write ``mlp 64-64``, ``convnet 16, instance``: the sizes that differ from run to run."""
    hidden = "-".join(map(str, network.get("hidden", ())))
    width = f"{network['width']}" if "width" in network else ""
    blocks = f"{network['blocks']} blocks" if "blocks" in network else ""
    norm = str(network["norm"]) if network.get("norm", "none") != "none" else ""
    return " ".join([network["name"], ", ".join(filter(None, (hidden, width, blocks, norm)))]).strip()


def _step(dataset: DatasetConfig) -> report.Step | None:
    """Say which step a data set is; steps of one group differ in their order and number alone."""
    if dataset.increment is None:
        return None
    numbers = config.to_mapping(dataset)
    shared = {name: numbers[name] for name in dataset.fitted() if name in numbers and name != "increment"}
    at = dataset.increment
    group = json.dumps([shared, at.classes], sort_keys=True)
    return report.Step(dataset.source.name, group, at.order, at.step, at.classes)


def _coreset(run: Run) -> report.CoresetInfo:
    schema = places.artifact("prepare", run.spec.dataset) / "schema.json"
    classes = tuple(json.loads(schema.read_text())["classes"]) if schema.is_file() else ()
    place, record = places.artifact("coreset", run.key), places.record("coreset", run.key)
    return report.CoresetInfo(run.key, run.spec.dataset, run.method.name, place, classes, record)


def facts(params: Params, settings: Settings) -> dict[str, Any]:
    """Collect where the figures come from."""
    made = [records.read(run.kind, run.key) for run in params.runs.values()]
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
    """Hash the rows that fits see; evaluate alone reads the others."""
    manifest = places.artifact("prepare", dataset) / artifacts.MANIFEST
    return artifacts.sha256(manifest)[:16] if manifest.is_file() else "—"
