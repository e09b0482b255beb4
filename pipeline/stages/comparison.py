"""The content of MLflow's comparison: the report's columns, as metrics and as views."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bdl_pipe import figures
from bdl_pipe.drawing import Mark
from bdl_report import columns, plots, tables
from bdl_report.choice import choose
from bdl_report.columns import Column
from bdl_report.tables import RunInfo, Table

from .. import tracking
from ..core import records
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Plan
from ..tracking import Compared, Comparison
from .report import run_info

_ABOUT: Final = (
    "One run for each method and setting: means over seeds or splits, with standard errors (`…_se`). "
    f"Fits, evaluations and searches are in the experiment `{tracking.STAGES}`; its runs `repro` have the report."
)
_ONLY_CHARTS: Final = ("bytes", "peak_bytes", "seconds_per_1000")  # metrics with a chart but no column


def track(plan: Plan, params: Params, settings: Settings, stale: Collection[str]) -> None:
    """Add to MLflow the comparison, and the up-to-date stages that it does not have yet; see :func:`of`."""
    with tracking.opened(settings, params, "dvc repro") as tracker:
        tracker.project(plan)
        tracker.compare(lambda: of(params, stale))


def of(params: Params, stale: Collection[str]) -> list[Comparison]:
    """Compare the runs that have up-to-date scores, data set by data set.

    Args:
        stale: the names of the stages that are out of date; their scores are of other params than those shown.

    Raises:
        ArtifactError: a table of scores is altered, truncated or of an older version.
    """
    table = tables.gather([*_fresh(params, stale)])
    return [_of_dataset(table, dataset, part) for dataset, part in table.by_dataset().items()]


def _fresh(params: Params, stale: Collection[str]) -> Iterator[RunInfo]:
    for run in params.of("student"):
        if f"evaluate@{run.key}" not in stale:
            info = run_info(run, params)
            yield replace(info, scores=None) if f"scores@{run.key}" in stale else info


def _of_dataset(table: Table, dataset: str, part: Table) -> Comparison:
    shown, compared = columns.columns(part), list[Compared]()
    for run in part.done.runs:
        all_columns, record = [*shown, *columns.of_predictions(part)], records.read("student", run.key)
        compared.append(
            Compared(
                run.key,
                part.names[run.key],
                _params(table, run),
                _metrics(table, run, [column for column in all_columns if column.of.set != "cost"]),
                _metrics(table, run, [column for column in all_columns if column.of.set == "cost"]),
                {"git_commit": str(record.get("commit", "")), "device": str(record.get("device", ""))},
                records.data_hash(dataset),
                _about(table, run, shown),
                partial(_drawn, table, run),
            )
        )
    choice = choose(part.candidates(), "nll")
    fixed = ["params.setting", "params.network", "params.seeds"]
    return Comparison(dataset, compared, _view(fixed, shown), _ABOUT, choice.taken.key if choice else None)


def _drawn(table: Table, run: RunInfo) -> dict[str, str]:
    """Draw a run's reliability diagram or, for regression, the coverage of its central intervals by level."""
    drawn = dict[str, str]()
    axes = {"reliability": ("confidence", "accuracy"), "intervals": ("level", "coverage")}
    for (name, labels), points in zip(axes.items(), (plots.reliability, plots.intervals), strict=True):
        if line := list(points(table, run.key)):
            drawn[f"{name}.svg"] = figures.calibration({table.names[run.key]: line}, [Mark()], *labels).svg(name)
    return drawn


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
    return {
        "dataset": run.dataset,
        "method": run.method,
        "setting": run.setting,
        "network": run.network,
        "seeds": str(table.scores[run.key].count),
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


def _view(fixed: Sequence[str], shown: Sequence[Column]) -> str:
    """Write a view with a column and a chart for each score and each cost, sorted by the NLL."""
    scores = {name_of(c): c.title for c in shown if c.of.set != "cost"}
    costs = {name_of(c): c.title for c in shown if c.of.set == "cost"}
    names = [f"metrics.{name}" for name in (*scores, *costs) if name not in _ONLY_CHARTS]
    return tracking.view("metrics.nll", [*fixed, *names], {"Scores": scores, "Cost": costs})
