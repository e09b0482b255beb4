"""The report's pages, each one file that needs no other, drawn from stored tables by the templates beside this module.

A page, and a section of it, is a template and a function that returns the template's data; :data:`PAGES`,
:data:`SECTIONS` and :data:`CLOSING` list them in the order in which they are shown. A function that returns None leaves
its section out.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import jinja2

from bdl_pipe.metrics import DETECTION
from bdl_pipe.scores import DEFAULT_SCORE, Estimate, Quantity, average, estimate

from . import columns, cross, plots, which
from .columns import Cell, Column, Grid
from .plots import Drawing, Part
from .tables import RunInfo, Table, labels

CONFORMAL: Final = ("coverage_conformal", "size_conformal", "width_conformal")
DRAWN_COSTS: Final = ("bytes", "fit_seconds", "seconds_per_1000")  # There is a figure of NLL against each of these.
Data = Mapping[str, Any] | None
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def headline(part: Part) -> Data:
    """Return the table of all runs."""
    whole = columns.headline(part.table, part.dataset)
    grid = _by_run(part, part.runs, whole.head[2:], [row[2:] for row in whole.rows], hints=whole.hints)
    return {"grid": grid, "sources": whole.sources}


def which_one(part: Part) -> Data:
    """Return the differences of all runs to the best and to the deterministic network, and the conclusions."""
    found = which.verdict(part.table, part.dataset)
    return {"found": found} if found else None


def recalibration(part: Part) -> Data:
    """Return scores before and after recalibration, and the coverage of conformal sets."""
    after = "ece_recalibrated" if part.table.has(part.dataset, "size_conformal") else "crps_recalibrated"
    shown = list[Column]()
    for name in ("nll_recalibrated", after):
        label = columns.metric(name).label
        shown += [Column(f"{label} before", Quantity(name.removesuffix("_recalibrated")))]
        shown += [Column(f"{label} after", Quantity(name))]
    shown += [Column(columns.metric(name).label, Quantity(name)) for name in CONFORMAL]
    shown += [Column(f"{columns.metric(name).label} before", Quantity(name)) for name in ("coverage_90", "width_90")]
    runs = [run for run in part.done if part.table.estimate(run.key, Quantity("nll_recalibrated"))]
    return {"grid": _scores(part, runs, shown)} if runs else None


def coresets_by_protocol(part: Part) -> Data:
    """Return the table of coresets × protocols."""
    crossed = cross.of(part.table, part.dataset)
    return {"grid": cross.headline(part.table, crossed), "mark": cross.MARK} if crossed else None


def reliability(part: Part) -> Data:
    """Return the reliability diagrams."""
    have = set(part.table.calibration.run)
    drawn = [plots.reliability(part, run.key) for run in part.done if run.key in have]
    return {"figures": drawn} if drawn else None


def severity(part: Part) -> Data:
    """Return the figures of scores against severity."""
    if not part.table.names(part.dataset, "corrupted"):
        return None
    return {"figures": [plots.severity(part, metric) for metric in columns.SHIFTED]}


def corruptions(part: Part) -> Data:
    """Return the tables of methods × corruptions, for accuracy and for NLL: means over severities."""
    names = part.table.names(part.dataset, "corrupted")
    grids = []
    for metric in columns.SHIFTED if names else ():
        shown = [Column(name.replace("_", " "), Quantity(metric, "corrupted", name)) for name in names]
        grids.append(_scores(part, part.done, shown))
    return {"grids": grids} if grids else None


def cost(part: Part) -> Data:
    """Return the figure of NLL against each cost."""
    shown = columns.columns(part.table, part.dataset)
    drawn = plots.costs(part, [column for column in shown if column.of.metric in DRAWN_COSTS])
    return {"figures": [drawn]} if drawn else None


def ood(part: Part) -> Data:
    """Return a table for each other set: every metric of out-of-distribution detection by each score."""
    known = {of.score for of in part.table.quantities(part.dataset) if of.set == "ood" and of.score is not None}
    grids = []
    for other in part.table.names(part.dataset, "ood"):
        shown, groups = list[Column](), list[tuple[str, int]]()
        for score in sorted(known, key=lambda score: (score != DEFAULT_SCORE, score)):
            wanted = [Column(m.label, Quantity(m.name, "ood", other, score=score)) for m in DETECTION]
            some = columns.with_figures(part.table, part.runs, wanted)
            shown += some
            groups += [(f"score: {score.replace('_', ' ')}", len(some))] if some else []
        grids.append(_scores(part, part.runs, shown, title=f"against {other}", groups=groups))
    return {"grids": grids} if grids else None


def coreset_images(part: Part) -> Data:
    """Return a picture of each coreset of the data set, as a data URI."""
    own = [coreset for coreset in part.table.coresets if coreset.dataset == part.dataset]
    drawn = {coreset.key: cross.picture(coreset) for coreset in own if not coreset.is_absent}
    shown = {key: f"data:image/png;base64,{b64encode(image).decode()}" for key, image in drawn.items() if image}
    return {"pictures": shown} if shown else None


def steps(whole: Part) -> Data:
    """Return the tables and figures of class-incremental learning, for each experiment with its steps and orders."""
    groups: dict[str, dict[tuple[str, str], list[RunInfo]]] = {}
    for run in whole.runs:
        if run.step is not None:
            groups.setdefault(run.step.group, {}).setdefault((run.method, run.setting), []).append(run)
    made = []
    for number, lines in enumerate(groups.values()):
        names = labels([runs[0] for runs in lines.values()], " ")
        figures, grids, part = list[Drawing](), list[Grid](), replace(whole, names=names)
        for metric in columns.SHIFTED:
            scores = {runs[0].key: over_orders(whole.table, runs, metric) for runs in lines.values()}
            counts, rows = sorted({count for points in scores.values() for count, _ in points}), []
            for runs in lines.values():
                orders, known = len({run.step.order for run in runs if run.step}), dict(scores[runs[0].key])
                cells = [columns.figure(known.get(count), Column("", Quantity(metric)).write) for count in counts]
                rows.append([Cell(names[runs[0].key]), Cell(str(orders)), *cells])
            head = ["Method", "Orders", *(f"{count} classes" for count in counts)]
            grids.append(Grid(head, rows, columns.metric(metric).label))
            name, alt = f"increments-{number}-{metric}", f"{metric} after the last step"
            figures.append(plots.draw_curves(part, scores, metric, name, alt, "classes so far"))
        step = next(iter(lines.values()))[0].step
        made.append({"step": step, "figures": figures, "grids": grids})
    return {"groups": made} if made else None


def over_orders(table: Table, runs: Sequence[RunInfo], metric: str) -> list[tuple[int, Estimate]]:
    """Return (classes so far, the mean over orders) for each step of ``runs``; seeds and splits are averaged first."""
    means: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        if run.step and (known := table.estimate(run.key, Quantity(metric))):
            count = (run.step.number + 1) * run.step.classes
            means.setdefault(count, {}).setdefault(run.step.order, []).append(known.mean)
    found = {count: estimate([average(values) for values in orders.values()]) for count, orders in means.items()}
    return [(count, mean) for count, mean in sorted(found.items()) if mean is not None]


def ranks(whole: Part) -> Data:
    """Return the methods' mean ranks over data sets."""
    found = which.ranks(whole.table)
    if found is None:
        return None
    first, *rest = found.means
    tied = [name for name in rest if found.means[name] - found.means[first] <= found.critical]
    grid = Grid(["Method", "Mean rank"], [[Cell(m), Cell(f"{r:.2f}", value=r)] for m, r in found.means.items()])
    return {"first": first, "tied": tied, "ranks": found, "grid": grid}


def _by_run(part: Part, runs: Sequence[RunInfo], head: Sequence[str], rows: Sequence[list[Cell]], **more: Any) -> Grid:
    """Return a table with a row for each of ``runs``, which begins with the run's name."""
    named = [[part.name(run), *row] for run, row in zip(runs, rows, strict=True)]
    return Grid(["Method, setting", *head], named, **more)


def _scores(part: Part, runs: Sequence[RunInfo], shown: Sequence[Column], **more: Any) -> Grid:
    """Return the table of runs and of those columns for which a run has a figure."""
    known = columns.with_figures(part.table, runs, shown)
    return _by_run(part, runs, [column.title for column in known], columns.rows(part.table, runs, known), **more)


@dataclass(frozen=True)
class Section:
    """A page or a section of one: its template's name, its title, and the function that returns the template's data."""

    name: str
    title: str
    data: Callable[[Part], Data]


SECTIONS: Final = (  # Each data set has these sections.
    Section("headline", "", headline),
    Section("which", "Which one?", which_one),
    Section("recalibration", "Recalibration", recalibration),
    Section("coresets", "Coresets under each protocol", coresets_by_protocol),
    Section("reliability", "Reliability", reliability),
    Section("severity", "Score against severity", severity),
    Section("corruptions", "Accuracy % by corruption", corruptions),
    Section("cost", "NLL against cost", cost),
    Section("ood", "Out-of-distribution detection", ood),
    Section("images", "Coreset images", coreset_images),
)
CLOSING: Final = (  # These sections follow; they are about all data sets together.
    Section("steps", "Class by class", steps),
    Section("ranks", "Over all data sets", ranks),
)


def index(whole: Part) -> Data:
    """Return the page of all results."""
    parts = {name: _rendered(SECTIONS, plots.part(whole.table, name, whole.marks)) for name in whole.table.datasets()}
    return {"parts": parts, "closing": _rendered(CLOSING, whole)}


PAGES: Final = (Section("index", "Bayesian deep learning methods, side by side", index),)


def render(table: Table, provenance: Mapping[str, Any], dpi: int) -> dict[str, str]:
    """Return the HTML of each page, by the name of its file.

    Args:
        provenance: facts for the page's head, in order; they and the run records alone differ between equal runs.
        dpi: CSS pixels an inch of figure.
    """
    whole = Part(table, "", table.runs, {}, plots.marks(table.runs))
    common = {"provenance": provenance, "dpi": dpi, "pages": PAGES}
    return {f"{page.name}.html": html for page, html in _rendered(PAGES, whole, **common)}


def _rendered(sections: Sequence[Section], part: Part, **more: Any) -> list[tuple[Section, str]]:
    """Return the HTML of those sections that have something to show."""
    made = []
    for section in sections:
        data = section.data(part)
        if data is not None:
            template = _TEMPLATES.get_template(f"{section.name}.html")
            made.append((section, template.render(data, section=section, part=part, **more)))
    return made
