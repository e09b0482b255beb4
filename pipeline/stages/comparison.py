"""The content of MLflow's comparison: the report's columns, as metrics and as views."""

import math
from collections.abc import Sequence
from typing import Final

from bdl_report import columns, tables
from bdl_report.columns import Column
from bdl_report.tables import RunInfo, Table

from .. import tracking
from ..core import records
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Plan
from ..tracking import Compared, Comparison
from .report import infos

ALL: Final = "all.data"  # the key of the view of all data sets; no data set can have this name
_ONLY_CHARTS: Final = ("bytes", "peak_bytes", "seconds_per_1000")  # metrics with a chart but no column


def track(plan: Plan, params: Params, settings: Settings) -> None:
    """Add to MLflow the comparison, and the up-to-date stages that it does not have yet."""
    with tracking.opened(settings, params, "dvc repro") as tracker:
        tracker.project(plan)
        tracker.compare(lambda: of(params))


def of(params: Params) -> Comparison:
    """Compare the runs that have scores.

    Raises:
        ArtifactError: a table of scores is altered, truncated or of an older version.
    """
    table = tables.gather(infos(params))
    compared, views = list[Compared](), dict[str, str]()
    for dataset, part in table.by_dataset().items():
        shown = columns.columns(part)
        for run in part.done.runs:
            name, about = f"{dataset} {part.names[run.key]}", _about(table, run, shown)
            metrics = _metrics(table, run, [*shown, *columns.of_predictions(part)])
            compared.append(Compared(run.key, name, _params(table, run), metrics, about))
        fixed = ["params.setting", "params.network", "params.seeds"]
        views[dataset] = _view(f'params.dataset = "{dataset}"', "metrics.nll", fixed, shown)
    parts = table.by_dataset()
    common = [c for part in parts.values() for c in columns.columns(part) if c.of.set in ("test", "cost")]
    fixed = ["params.dataset", "params.setting", "params.seeds"]
    views[ALL] = _view("", "attributes.run_name", fixed, common)
    return Comparison(compared, views, lambda experiment: _page(experiment, list(parts)))


def name_of(column: Column) -> str:
    """Return the name of a column's metric, such as ``corrupted_nll``, ``auroc_digits`` or ``mnist5k_accuracy``."""
    of = column.of
    if of.set == "corrupted":
        return f"corrupted_{of.metric}"
    if of.set == "ood":
        return f"{of.metric}_{of.name}"
    return f"{of.name}_{of.metric}" if of.set == "transfer" else of.metric


def _metrics(table: Table, run: RunInfo, shown: Sequence[Column]) -> dict[str, float]:
    """Return the mean of each column over splits or seeds, and for scores its standard error, ``<name>_se``."""
    metrics: dict[str, float] = {}
    for column in shown:
        estimate = table.estimate(run.key, column.of)
        if estimate is None or not math.isfinite(estimate.mean):
            continue
        metrics[name_of(column)] = _rounded(estimate.mean)
        if column.of.set != "cost" and estimate.error is not None and math.isfinite(estimate.error):
            metrics[f"{name_of(column)}_se"] = _rounded(estimate.error)
    return metrics


def _rounded(value: float) -> float:
    """Round to five digits, for MLflow's narrow columns; the report's tables have all digits."""
    return value if value == int(value) else float(f"{value:.5g}")


def _params(table: Table, run: RunInfo) -> dict[str, str]:
    record = records.read("student", run.key)
    return {
        "dataset": run.dataset,
        "method": run.method,
        "setting": run.setting,
        "network": run.network,
        "seeds": str(table.scores[run.key].count),
        "commit": str(record.get("commit", ""))[:12],
        "device": str(record.get("device", "")),
    }


def _about(table: Table, run: RunInfo, shown: Sequence[Column]) -> str:
    """Write the run's description: its scores as the report writes them, its warnings, and its command."""
    head = f"**{run.method}**, setting {run.setting}, on {run.dataset}."
    lines = [head, "", "| score | mean ± standard error |", "|---|---|"]
    for column in shown:
        cell = columns.figure(table.estimate(run.key, column.of), column)
        if cell.text != columns.NOTHING:
            lines.append(f"| {column.title} | {cell.figure} |")
    lines += ["", *(f"- {text}" for text in run.warnings)]
    return "\n".join([*lines, "", f"Make it with `python -m pipeline repro evaluate@{run.key}`."])


def _view(filter: str, order: str, fixed: Sequence[str], shown: Sequence[Column]) -> str:
    """Write a view with a column and a chart for each score and each cost."""
    scores = {name_of(c): c.title for c in shown if c.of.set != "cost"}
    costs = {name_of(c): c.title for c in shown if c.of.set == "cost"}
    names = [f"metrics.{name}" for name in (*scores, *costs) if name not in _ONLY_CHARTS]
    return tracking.view(filter, order, [*fixed, *names], {"Scores": scores, "Cost": costs})


def _page(experiment: str, datasets: Sequence[str]) -> str:
    """Write the experiment's description."""
    links = [f"- [{name}]({tracking.link(experiment, name)})" for name in datasets]
    lines = [
        "One run for each data set, method and setting: means over seeds or splits, with standard errors (`…_se`).",
        f"Fits, evaluations and searches are in the experiment `{tracking.STAGES}`; its runs `repro` have the report.",
        "",
        "With the columns and charts of one data set:",
        "",
        *links,
    ]
    return "\n".join(lines)
