"""What MLflow shows of the runs side by side, from the report's tables (see :mod:`.comparison`)."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

from bdl_pipe import config

from .. import report
from ..core import records
from ..core.model import Params, Run
from ..report import columns, images, plots, tables
from ..report.columns import Column
from ..report.tables import RunInfo, Table
from . import comparison, provenance
from .comparison import Compared, View

ALL: Final = "all.data"  # no data set can be called so
_COST: Final = "cost"
_ASIDE: Final = ("bytes", "peak_bytes", "seconds_per_1000")  # charts show them, the table's columns do not


def publish(params: Params, runs: Sequence[RunInfo], coresets: Sequence[report.CoresetInfo]) -> str | None:
    """Bring the experiment up to date with the runs that have scores. Return its id, or None without tracking."""
    table = tables.gather(runs)
    marks, pictures = plots.marks(table.runs), {coreset.key: coreset for coreset in coresets}
    compared, views = list[Compared](), list[View]()
    for dataset in table.datasets():
        runs_here = [run for run in table.of(dataset) if run.key not in table.notes]
        shown, drawing = columns.columns(table, dataset), _Drawing(plots.part(table, dataset, marks))
        scores = provenance.digest([table.stored[run.key].to_pylist() for run in runs_here])
        for run in runs_here:
            checked = params.run("student", run.key)
            coreset = pictures.get(checked.sources.get("coreset", ""))
            compared.append(
                Compared(
                    key=run.key,
                    name=f"{dataset} {drawing.part.names[run.key]}",
                    params=_about(table, run, checked, params),
                    metrics=_metrics(table, run, shown),
                    about=_note(table, run, shown),
                    files=partial(drawing.files, run, coreset),
                    shown=scores,
                )
            )
        views.append(_view(dataset, shown))
    return comparison.publish(compared, [_overview(table), *views], lambda experiment: _page(experiment, table))


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
        if column.of.set != _COST and estimate.error is not None and math.isfinite(estimate.error):
            metrics[f"{name_of(column)}_se"] = _rounded(estimate.error)
    return metrics


def _rounded(value: float) -> float:
    """Round to five digits, for MLflow's narrow columns; the report's tables have them all."""
    return value if value == int(value) else float(f"{value:.5g}")


def _about(table: Table, run: RunInfo, checked: Run, params: Params) -> dict[str, str]:
    record = records.read("student", run.key)
    return {
        "dataset": run.dataset,
        "method": run.method,
        "setting": run.setting,
        "network": _network(checked, params),
        "seeds": str(columns.seeds(table, run.key)),
        "commit": str(record.get("commit", ""))[:12],
        "device": str(record.get("device", "")),
    }


def _network(checked: Run, params: Params) -> str:
    """Return the network of the run, or of the nearest run that it is made from."""
    for above in reversed(params.lineage(checked)):
        network = config.to_mapping(above.config).get("network")
        if isinstance(network, Mapping):
            said = {
                key: value
                for key, value in network.items()
                if key not in ("name", "sha256") and value not in (None, {})
            }
            rest = ", ".join(f"{key} {_short(value)}" for key, value in said.items())
            return f"{network['name']} ({rest})" if rest else str(network["name"])
    return ""


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    return "×".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _note(table: Table, run: RunInfo, shown: Sequence[Column]) -> str:
    """Write the run's page: its scores as the report writes them, what was warned about, how to make it again."""
    lines = [
        f"**{run.method}**, setting {run.setting}, on {run.dataset}.",
        "",
        "| score | mean ± standard error |",
        "|---|---|",
    ]
    for column in shown:
        cell = columns.figure(
            table.estimate(run.key, column.of), column.metric.write, with_error=column.of.set != _COST
        )
        if cell.text != columns.NOTHING:
            lines.append(f"| {column.title} | {cell.figure} |")
    lines += ["", *(f"- {text}" for _, text in table.remarks(run.key))]
    return "\n".join([*lines, "", f"Made by `python -m pipeline repro evaluate@{run.key}`."])


class _Drawing:
    """The figures of one data set's runs."""

    def __init__(self, part: plots.Part) -> None:
        self.part = part

    def files(self, run: RunInfo, coreset: report.CoresetInfo | None) -> dict[str, bytes]:
        """Draw the figures of one run, those of all runs together, and the images of its coreset."""
        files = dict(self._of_all)
        if run.key in set(self.part.table.calibration.run):
            files["reliability.svg"] = plots.reliability(self.part, run.key).file()
        picture = images.picture(coreset) if coreset is not None else b""
        return {**files, **({"coreset.png": picture} if picture else {})}

    @cached_property
    def _of_all(self) -> dict[str, bytes]:
        table, drawn = self.part.table, dict[str, plots.Drawing]()
        if table.names(self.part.dataset, "corrupted"):
            for metric in ("accuracy", "nll"):
                drawn[f"{metric}-against-severity"] = plots.severity(self.part, metric)
        if table.has(self.part.dataset, "rmse"):
            for metric in ("rmse", "nll"):
                drawn[f"{metric}-over-splits"] = plots.dots(self.part, metric)
        return {f"{name}.svg": drawing.file() for name, drawing in drawn.items()}


def _view(dataset: str, shown: Sequence[Column]) -> View:
    """Make the view of one data set's runs: all its columns, and a chart of each score."""
    scores = [(name_of(c), c.title) for c in shown if c.of.set != _COST]
    costs = [(name_of(c), c.title) for c in shown if c.of.set == _COST]
    names = [f"metrics.{name}" for name, _ in (*scores, *costs) if name not in _ASIDE]
    fixed = ["params.setting", "params.network", "params.seeds"]
    return View(
        dataset, f'params.dataset = "{dataset}"', "metrics.nll", [*fixed, *names], {"Scores": scores, "Cost": costs}
    )


def _overview(table: Table) -> View:
    """Make the view of all runs: what the data sets have in common first, then what each has."""
    every = {dataset: columns.columns(table, dataset) for dataset in table.datasets()}
    scores = {name_of(c): c.title for shown in every.values() for c in shown if c.of.set == "test"}
    costs = {name_of(c): c.title for shown in every.values() for c in shown if c.of.set == _COST}
    charts = {"Scores": list(scores.items()), "Cost": list(costs.items())}
    fixed = ["params.dataset", "params.setting", "params.seeds"]
    return View(
        ALL,
        "",
        "attributes.run_name",
        [*fixed, *(f"metrics.{name}" for name in (*scores, *costs) if name not in _ASIDE)],
        charts,
    )


def _page(experiment: str, table: Table) -> str:
    """Write the experiment's description."""
    links = [f"- [{name}]({comparison.link(experiment, name)})" for name in table.datasets()]
    return "\n".join(
        [
            "One run for each data set, method and setting: means over seeds or splits, with standard errors (`…_se`).",
            "Fits, evaluations and searches are in the experiment `bdl-pipe stages`.",
            "",
            "With the columns and charts of one data set:",
            "",
            *links,
        ]
    )
