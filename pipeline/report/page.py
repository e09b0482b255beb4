"""The report's pages, each one file that needs no other, drawn from stored tables by the templates beside this module.

A page, and a section of it, is a template and a function that returns the template's data; :data:`PAGES`,
:data:`SECTIONS` and :data:`CLOSING` list them in the order in which they are shown. A function that returns None leaves
its section out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import jinja2

from ..core.scores import Estimate, Quantity, average, estimate
from . import columns, cross, images, plots, which
from .columns import METRICS, NOTHING, OOD_SCORES, Cell, Column, Grid
from .plots import Drawing, Mark, Part
from .tables import RunInfo, Table, is_finite, labels

Data = Mapping[str, Any] | None
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def headline(part: Part) -> Data:
    """Return the table of all runs, with the notes on them."""
    whole = columns.headline(part.table, part.dataset)
    grid = _by_run(part, part.runs, whole.head[2:], [row[2:] for row in whole.rows], hints=whole.hints)
    notes = [(run.key, kind, text) for run in part.runs for kind, text in part.table.remarks(run.key)]
    return {"grid": grid, "sources": whole.sources, "notes": notes}


def which_one(part: Part) -> Data:
    """Return the differences of all runs to the best and to the deterministic network, and the conclusions."""
    found = which.verdict(part.table, part.dataset)
    if found is None:
        return None
    rows = [
        [
            Cell(f"{standing.nll:.3f}", value=standing.nll),
            _difference(standing.to_best),
            _difference(standing.to_baseline),
            Cell("yes" if standing.efficient else "", value=int(standing.efficient)),
        ]
        for standing in found.standings
    ]
    head = ["NLL", "to the best", "to deterministic", "front"]
    grid = _by_run(part, [standing.run for standing in found.standings], head, rows)
    return {"grid": grid, "verdict": " ".join(found.sentences)}


def _difference(found: which.Difference | None) -> Cell:
    if found is None:
        return Cell(NOTHING)
    interval = f"± {found.half:.3f}" if math.isfinite(found.half) else ""
    return Cell(f"{found.mean:+.3f}", interval, found.mean, best=found.apart)


def recalibration(part: Part) -> Data:
    """Return scores before and after recalibration, and the coverage of conformal sets."""
    if not part.table.has(part.dataset, "nll_recalibrated"):
        return None
    classes = part.table.has(part.dataset, "size_conformal")
    shown = dict[str, str]()
    for metric in ("nll", "ece" if classes else "crps"):
        shown |= {f"{METRICS[metric].label} before": metric}
        shown |= {f"{METRICS[metric].label} after": f"{metric}_recalibrated"}
    shown |= {"Coverage %": "coverage_conformal"}
    if classes:
        shown |= {"Size": "size_conformal"}
    else:
        shown |= {"Width": "width_conformal", "Coverage % before": "coverage_90", "Width before": "width_90"}
    runs = [run for run in part.done if part.table.estimate(run.key, Quantity("nll_recalibrated"))]
    rows = [[_recalibrated(part.table, run.key, metric) for metric in shown.values()] for run in runs]
    return {"grid": _by_run(part, runs, list(shown), rows)}


def _recalibrated(table: Table, run: str, metric: str) -> Cell:
    known = table.estimate(run, Quantity(metric))
    if known is None or not metric.startswith("coverage"):
        write = columns.percent if metric.startswith("ece") else columns.places(3)
        return columns.figure(known, write, with_error=False)
    low, high = _binomial(table, run, metric)
    return Cell(f"{100 * known.mean:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", known.mean)


def _binomial(table: Table, run: str, metric: str) -> tuple[float, float]:
    """Return the exact 95 % interval of a share over all test rows (Clopper & Pearson 1934)."""
    from scipy.stats import binomtest

    stored = table.stored[run].to_pylist()
    known = [(row["value"], row["n"]) for row in stored if row["metric"] == metric and row["set"] == "test"]
    count = sum(n for _, n in known)
    interval = binomtest(round(sum(value * n for value, n in known)), count).proportion_ci(0.95)
    return float(interval.low), float(interval.high)


def coresets_by_protocol(part: Part) -> Data:
    """Return the table of coresets × protocols and its figures."""
    crossed = cross.of(part.table, part.dataset)
    if crossed is None:
        return None
    names, looks = dict[str, str](), dict[str, Mark]()
    for i, row in enumerate(crossed.rows):
        for run in row.runs.values():
            names[run.key], looks[run.key] = crossed.label(row), plots.mark(i, i // len(plots.METHODS))
    rows = replace(part, names=names, marks=looks)
    pairs = [(protocol, score) for protocol in crossed.protocols for score in cross.SCORES[:2]]
    drawn = [plots.distilled(rows, crossed, protocol, score) for protocol, score in pairs]
    key = {name: looks[run] for run, name in names.items()}
    return {
        "grid": cross.headline(part.table, crossed),
        "mark": cross.MARK,
        "key": key,
        "figures": [*filter(None, drawn)],
    }


def regression(part: Part) -> Data:
    """Return the figures of RMSE and NLL over splits."""
    if not part.table.has(part.dataset, "rmse"):
        return None
    return {"figures": [plots.dots(part, metric) for metric in ("rmse", "nll")]}


def reliability(part: Part) -> Data:
    """Return the reliability diagrams."""
    have = set(part.table.calibration.run)
    drawn = [plots.reliability(part, run.key) for run in part.done if run.key in have]
    return {"figures": drawn, "few": f"{100 * plots.FEW:g}"} if drawn else None


def severity(part: Part) -> Data:
    """Return the figures of scores against severity; none of them if no corrupted rows were scored."""
    if not part.table.has(part.dataset, "accuracy"):
        return None
    metrics = ("accuracy", "nll") if part.table.names(part.dataset, "corrupted") else ()
    return {"figures": [plots.severity(part, metric) for metric in metrics]}


def corruptions(part: Part) -> Data:
    """Return the tables of corruptions × methods, for accuracy and for NLL."""
    if not part.table.names(part.dataset, "corrupted"):
        return None
    return {"grids": [heat(part, metric) for metric in ("accuracy", "nll")]}


def heat(part: Part, metric: str) -> Grid:
    """Return a table of corruptions × methods, each figure the mean over its severities, coloured by its worth."""
    runs, better = part.done, METRICS[metric].better
    grid = {
        kind: [part.table.estimate(run.key, Quantity(metric, "corrupted", kind)) for run in runs]
        for kind in part.table.names(part.dataset, "corrupted")
    }
    worth = {kind: [better * e.mean for e in row if e and is_finite(e)] for kind, row in grid.items()}
    finite = [value for values in worth.values() for value in values]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    write, rows = columns.places(3) if metric == "nll" else lambda value: f"{100 * value:.1f}", []
    for kind in sorted(grid, key=lambda kind: (-average(worth[kind]) if worth[kind] else math.inf, kind)):
        row = [Cell(kind.replace("_", " "))]
        for known in grid[kind]:
            cell = columns.figure(known, write, with_error=False)
            if cell.value is not None:
                share = (better * cell.value - low) / (high - low) if high > low else 0.5
                colour = f"color-mix(in srgb, var(--heat) {round(4 + 46 * share)}%, transparent)"
                cell = replace(cell, colour=colour)
            row.append(cell)
        rows.append(row)
    return Grid(["Corruption", *(part.names[run.key] for run in runs)], rows)


def cost(part: Part) -> Data:
    """Return the figures of NLL against each cost."""
    costs = [column for column in columns.columns(part.table, part.dataset) if column.metric.axis]
    drawn = [plots.cost(part, column) for column in costs]
    key = {part.names[run.key]: part.marks[run.key] for run in part.done}
    return {"figures": [*filter(None, drawn)], "key": key} if any(drawn) else None


def transfer(part: Part) -> Data:
    """Return a table of the scores of classes on each transfer set."""
    grids = []
    for name in part.table.names(part.dataset, "transfer"):
        shown = [Column(m.label, Quantity(metric, "transfer", name)) for metric, m in columns.of_set("test").items()]
        grids.append(_of_all(part, shown, title=f"on {name}"))
    return {"grids": grids} if grids else None


def ood(part: Part) -> Data:
    """Return a table for each other set: every metric of out-of-distribution detection by each score."""
    known = {of.score for of in part.table.quantities(part.dataset) if of.set == "ood" and of.score is not None}
    others = {name: name.replace("_", " ") for name in sorted(known - OOD_SCORES.keys())}
    metrics = {name: metric for name, metric in METRICS.items() if metric.set == "ood"}
    grids = []
    for other in part.table.names(part.dataset, "ood"):
        shown, groups = list[Column](), list[tuple[str, int]]()
        for score, title in (OOD_SCORES | others).items():
            wanted = [Column(m.label, Quantity(name, "ood", other, score=score)) for name, m in metrics.items()]
            some = columns.with_figures(part.table, part.runs, wanted)
            shown += some
            groups += [(f"score: {title}", len(some))] if some else []
        grids.append(_of_all(part, shown, title=f"against {other}", groups=groups))
    return {"grids": grids} if grids else None


def coreset_images(part: Part) -> Data:
    """Return the images of the coresets of the data set."""
    own = [coreset for coreset in part.table.coresets if coreset.dataset == part.dataset]
    shown = {coreset: images.gallery(coreset) for coreset in own}
    galleries = {coreset.key: gallery for coreset, gallery in shown.items() if gallery or coreset.is_absent}
    return {"galleries": galleries} if galleries else None


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
        for metric in ("accuracy", "nll"):
            scores = {runs[0].key: over_orders(whole.table, runs, metric) for runs in lines.values()}
            counts, rows = sorted({count for points in scores.values() for count, _ in points}), []
            for runs in lines.values():
                orders, known = len({run.step.order for run in runs if run.step}), dict(scores[runs[0].key])
                cells = [columns.figure(known.get(count), METRICS[metric].write) for count in counts]
                rows.append([Cell(names[runs[0].key]), Cell(str(orders)), *cells])
            head = ["Method", "Orders", *(f"{count} classes" for count in counts)]
            grids.append(Grid(head, rows, METRICS[metric].label))
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
    return {"first": first, "tied": tied, "ranks": found, "grid": grid, "figures": [plots.critical_difference(found)]}


def _by_run(part: Part, runs: Sequence[RunInfo], head: Sequence[str], rows: Sequence[list[Cell]], **more: Any) -> Grid:
    """Return a table with a row for each of ``runs``, which begins with the run's name."""
    names = [
        Cell(run.method.replace("_", " "), run.setting, colour=part.marks[run.key].css, hint=run.key) for run in runs
    ]
    named = [[name, *row] for name, row in zip(names, rows, strict=True)]
    return Grid(["Method, setting", *head], named, **more)


def _of_all(part: Part, shown: Sequence[Column], **more: Any) -> Grid:
    """Return the table of all runs and of those columns for which a run has a figure."""
    known = columns.with_figures(part.table, part.runs, shown)
    rows = columns.rows(part.table, part.runs, known)
    return _by_run(part, part.runs, [column.title for column in known], rows, **more)


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
    Section("regression", "RMSE and NLL over splits", regression),
    Section("reliability", "Reliability", reliability),
    Section("severity", "Score against severity", severity),
    Section("corruptions", "Corruption by corruption, accuracy %", corruptions),
    Section("cost", "NLL against cost", cost),
    Section("transfer", "Transfer", transfer),
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
    warned = sum(map(bool, whole.table.warnings.values()))
    return {"parts": parts, "closing": _rendered(CLOSING, whole), "warned": warned}


PAGES: Final = (Section("index", "Bayesian deep learning methods, side by side", index),)


def render(table: Table, provenance: Mapping[str, Any], dpi: int) -> dict[str, str]:
    """Return the HTML of each page, by the name of its file.

    Args:
        provenance: facts for the page's head, in order; they and the run records alone differ between equal runs.
        dpi: CSS pixels an inch of figure.
    """
    whole = Part(table, "", table.runs, {}, plots.marks(table.runs))
    common = {"table": table, "provenance": provenance, "dpi": dpi, "pages": PAGES, "colours": plots.COLOURS}
    return {f"{page.name}.html": html for page, html in _rendered(PAGES, whole, **common)}


def _rendered(sections: Sequence[Section], part: Part, **more: Any) -> list[tuple[Section, str]]:
    """Return the HTML of those sections that have something to show."""
    made = []
    for section in sections:
        data = section.data(part)
        if data is not None:
            template = _TEMPLATES.get_template(f"{section.name}.html")
            made.append((section, template.render(data, section=section, dataset=part.dataset, **more)))
    return made
