"""The report stage: describe all runs and the places of their results to the report's code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import bdl_report
from bdl_pipe import config
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.scores import average
from bdl_report import plots
from bdl_report.choice import LONGER, ends
from bdl_report.tables import described

from ..core import places, provenance, records
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.executor import Executor


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``report/`` from the stored tables of all runs and decisions, with the tables for ``dvc plots``."""
    runs = infos(params)
    bdl_report.build(
        runs,
        places.REPORT,
        provenance=facts(params, settings),
        dpi=params.report.figures_dpi,
        decisions={key: places.artifact("decide", key) for key in params.decisions},
    )
    plots.write(bdl_report.gather(runs), places.REPORT / "plots")


def infos(params: Params) -> list[bdl_report.RunInfo]:
    """Return a description of each entry of ``runs``, with the folders of its results."""
    return [run_info(run, params) for run in params.of("student")]


def run_info(run: Run, params: Params) -> bdl_report.RunInfo:
    """Return a description of an entry of ``runs``, with the folders of its results.

    Raises:
        ArtifactError: a record of the run or of an upstream run is damaged.
    """
    coreset, record_of_run = run.sources.get("coreset"), records.read("student", run.key)
    splits = params.datasets[run.spec.dataset].splits
    warnings, chains = record_of_run.get("warnings", []), _chains(run.key, record_of_run, splits)
    training = _curve(run.key, record_of_run)
    for kind, key in run.sources.items():
        record = records.read(kind, key)
        training |= _curve(key, record)
        warnings = [*warnings, *(f"{key}: {warning}" for warning in record.get("warnings", []))]
        chains |= _chains(key, record, splits)
    return bdl_report.RunInfo(
        key=run.key,
        dataset=run.spec.dataset,
        method=run.method.name,
        setting=run.spec.setting,
        evaluate=places.artifact("evaluate", run.key),
        scores=places.artifact("scores", run.key),
        warnings=tuple(warnings),
        training=training,
        step=_step(params.datasets[run.spec.dataset]),
        coreset=_coreset(params.run("coreset", coreset)) if coreset else None,
        network=_network(run, params),
        chains=chains,
        imitates=_imitated(run, params),
        ended=_ended(run, params, warnings),
    )


def _ended(run: Run, params: Params, warnings: Sequence[str]) -> tuple[str, ...]:
    """Return what ended the fits of a run or, if the run has no record of it, the fits of its trajectories."""
    if any(warning.endswith(LONGER) for warning in warnings):
        return ("chains",)
    validated = params.datasets[run.spec.dataset].validation > 0
    runs = [run, *(params.run(kind, key) for kind, key in run.sources.items() if kind == "trajectory")]
    endings = (ends(places.artifact(one.kind, one.key), one.kind, one.config, validated) for one in runs)
    return next(filter(None, endings), ())


def _imitated(run: Run, params: Params) -> str | None:
    """Return the run that a student imitates: its input, or another run of the input's method with the same inputs.

    For a student of chains this is the run that averages the chains. None means that the run imitates nothing; an empty
    text means that no run has the imitated posterior.
    """
    if not run.method.imitates:
        return None
    if "student" in run.sources:
        return run.sources["student"]
    makers = {params.run(kind, key).method.name for kind, key in run.sources.items()}
    others = (other for other in params.of("student") if other.method.name in makers)
    return next((other.key for other in others if other.sources == run.sources), "")


def _curve(key: str, record: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return the curve of a fit's record; nothing for a fit without steps, or a record of an older version."""
    points = [(float(step), float(loss)) for step, loss in record.get("curve", ())]
    return {key: points} if points else {}


def _chains(key: str, record: Mapping[str, Any], splits: int) -> dict[str, bdl_report.ChainsInfo]:
    """Return the diagnostics of the chains that an entry made, if it made any."""
    metrics = record.get("metrics", {})
    return (
        {key: bdl_report.ChainsInfo(metrics, record.get("traces", {}), splits)} if "rhat_prediction" in metrics else {}
    )


def _network(run: Run, params: Params) -> str:
    """Name the architecture of a run: from an upstream run of its method, from itself, or from another upstream run."""
    above = [row for row in reversed(params.lineage(run)) if row is not run]
    for row in (*(row for row in above if row.method.name == run.method.name), run, *above):
        holder = getattr(row.config, "target", row.config)
        if hasattr(holder, "network"):
            return described(config.to_mapping(holder.network))
    return ""


def _step(dataset: DatasetConfig) -> bdl_report.Step | None:
    """Return the incremental step of a data set; steps of one group differ only in their order and number."""
    if dataset.increment is None:
        return None
    numbers = config.to_mapping(dataset)
    shared = {name: numbers[name] for name in dataset.fitted() if name in numbers and name != "increment"}
    group = json.dumps([shared, dataset.increment.classes], sort_keys=True)
    return bdl_report.Step(dataset.source.name, group, dataset.increment)


def _coreset(run: Run) -> bdl_report.CoresetInfo:
    recorded = list(records.read("coreset", run.key).get("total_seconds", {}).values())
    ipc, seconds = getattr(run.config, "ipc", None), average(recorded) if recorded else None
    place = places.artifact("coreset", run.key)
    return bdl_report.CoresetInfo(run.key, run.spec.dataset, run.method.name, place, ipc, seconds)


def facts(params: Params, settings: Settings) -> dict[str, object]:
    """Collect the provenance of the report."""
    fitted = sum(sum(records.read(run.kind, run.key).get("seconds", {}).values()) for run in params.runs.values())
    return {
        "commit": provenance.commit(),
        "seed": params.seed,
        "params sha256": provenance.digest(params.raw),
        **{f"data sha256, {key}": records.data_hash(key) for key in params.datasets},
        "device": records.device_name(settings.device),
        "seconds of fitting, all stages": round(fitted, 1),
    }
