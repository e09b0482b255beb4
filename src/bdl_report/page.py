"""The report's pages: files that the templates beside this module render from stored tables.

A page, and a section of it, is a template and a function that returns the template's data; :data:`PAGES`,
:data:`SECTIONS` and :data:`CLOSING` list them in the order in which they are shown. A function that returns None leaves
its section out.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import jinja2

from bdl_pipe.metrics import standings as which
from bdl_pipe.metrics.joint import DYADIC, JOINT_DRAWS, JOINT_GAP
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.scores import Estimate, Quantity, average, estimate

from . import cards, charts, columns, cross, explore, question_pages, students
from .columns import SHIFTED, Cell, Column, Grid
from .pictures import of_artifact
from .tables import RunInfo, Table
from .vega import CONFIG, Chart

CONFORMAL: Final = ("coverage_conformal", "size_conformal", "width_conformal")
IMAGES: Final = 10  # A row of a coreset's picture shows at most this many images of a class.
VEGA: Final = Path(__file__).parent / "templates/vega.js"
Data = Mapping[str, object] | None
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=jinja2.select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters["kinds_of"] = lambda key, table: table.kinds(key)


def headline(table: Table) -> Data:
    """Return the cards, the first figures, the verdict and the table of all runs."""
    whole, standings = columns.headline(table), table.standings()
    grid = columns.by_run(table, whole.head[2:], [row[2:] for row in whole.rows], hints=whole.hints)
    drawn = [charts.differences(table, standings)] if standings else []
    drawn += [front] if (front := charts.pareto(table)) else []
    data = {"grid": grid, "sources": whole.sources, "verdict": whole.verdict, "figures": drawn, "standings": standings}
    data |= {"names": {run.key: columns.named(table, run) for run in table.runs}}
    absent, warnings = (
        len(table.runs) - len(table.done.runs),
        [text for kind, text in table.remarks() if kind == "warn"],
    )
    return data | {"cards": cards.cards(table.candidates(), warnings, absent)}


def chains(table: Table) -> Data:
    """Return the diagnostics of Markov chains, and the traces of their predictions."""
    by_key = table.chains()
    drawn = [figure for key, one in by_key.items() for figure in charts.traces(one.traces, key)]
    return {"grid": columns.diagnostics(by_key), "figures": drawn} if by_key else None


def imitation(table: Table) -> Data:
    """Return the table of students beside the posteriors that they imitate."""
    some, bare = students.of(table), students.grid(table)
    return {"grid": columns.by_run(some, bare.head, bare.rows, groups=bare.groups)} if some.runs else None


def recalibration(table: Table) -> Data:
    """Return scores before and after recalibration, and the coverage of conformal sets."""
    classes = Quantity("size_conformal") in table.quantities()
    names = ("nll", "ece") if classes else ("nll", "crps", "coverage_90")
    suffixes = {"before": "", "after": "_recalibrated"} if classes else {"before": "_before", "after": ""}
    pairs = [(name, when, suffix) for name in names for when, suffix in suffixes.items()]
    shown = [Column(f"{metric_of(name).label} {when}", Quantity(name + suffix)) for name, when, suffix in pairs]
    shown += [Column(f"{metric_of(name).label}, conformal", Quantity(name)) for name in CONFORMAL]
    some = table.only(run for run in table.runs if table.estimate(run.key, Quantity("coverage_conformal")))
    return {"grid": columns.by_score(some, shown)} if some.runs else None


def coresets_by_protocol(table: Table) -> Data:
    """Return the table of coresets × protocols."""
    rows = cross.of(table)
    return {"grid": cross.headline(table, rows), "mark": cross.MARK} if rows else None


def severity(table: Table) -> Data:
    """Return the figures of mean scores over corruptions against severity, from 0 (clean) to 5."""
    levels = sorted({of.severity for of in table.quantities() if of.severity is not None})
    drawn = list[Chart]()
    for metric in SHIFTED if levels else ():
        at = {0: Quantity(metric)} | {level: Quantity(metric, "corrupted", severity=level) for level in levels}
        points = {
            run.key: charts.estimates([(n, e) for n, of in at.items() if (e := table.estimate(run.key, of))], metric)
            for run in table.done.runs
        }
        titles = (metric_of(metric).label, "severity (0: clean test set)", columns.short(metric))
        drawn.append(
            charts.lines(charts.runs(table, points), points, titles, f"{metric} at severity {levels[-1]}", dots=True)
        )
    return {"figures": drawn} if drawn else None


def corruptions(table: Table) -> Data:
    """Return the tables of methods × corruptions, for accuracy and for NLL: means over severities."""
    names = table.sets("corrupted")
    shown = ([Column(n.replace("_", " "), Quantity(metric, "corrupted", n)) for n in names] for metric in SHIFTED)
    return {"grids": [columns.by_score(table.done, some) for some in shown]} if names else None


def together(table: Table) -> Data:
    """Return the joint scores of groups of test rows around two anchors, the gap of random pairs, and the lines."""
    shown = [Column(metric.label, Quantity(metric.name)) for metric in (*DYADIC, JOINT_GAP, JOINT_DRAWS)]
    if not {metric.name for metric in DYADIC} & {of.metric for of in table.quantities()}:
        return None
    points = {run.key: of for run in table.runs if (of := table.drawn["same_class"].get(run.key)) is not None}
    return {"grid": columns.by_score(table.done, shown), "figures": charts.same_class(table, points) if points else []}


def coreset_images(table: Table) -> Data:
    """Return a picture of each coreset of the data set, as a data URI."""
    drawn = {key: of_artifact(coreset.path, IMAGES) for key, coreset in table.coresets().items()}
    shown = {key: f"data:image/png;base64,{b64encode(image).decode()}" for key, image in drawn.items() if image}
    return {"pictures": shown} if shown else None


def steps(table: Table) -> Data:
    """Return the tables and figures of class-incremental learning, for each experiment with its steps and orders."""
    groups: dict[str, dict[tuple[str, str], list[RunInfo]]] = {}
    for run in table.runs:
        if run.step is not None:
            groups.setdefault(run.step.group, {}).setdefault((run.method, run.setting), []).append(run)
    experiments = []
    for lines in groups.values():
        drawn, grids, first = list[Chart](), list[Grid](), table.only(runs[0] for runs in lines.values())
        for metric in SHIFTED:
            scores = {runs[0].key: over_orders(table, runs, metric) for runs in lines.values()}
            counts, rows = sorted({count for points in scores.values() for count, _ in points}), []
            for runs in lines.values():
                orders, by_count = (
                    len({run.step.increment.order for run in runs if run.step}),
                    dict(scores[runs[0].key]),
                )
                cells = [columns.figure(by_count.get(count), Column("", Quantity(metric))) for count in counts]
                rows.append([Cell(first.names[runs[0].key]), Cell(str(orders)), *cells])
            head = ["Method", "Orders", *(f"{count} classes" for count in counts)]
            grids.append(Grid(head, rows, metric_of(metric).label))
            curves = {key: charts.estimates(points, metric) for key, points in scores.items()}
            titles = (metric_of(metric).label, "classes so far", columns.short(metric))
            drawn.append(
                charts.lines(charts.runs(first, curves), curves, titles, f"{metric} after the last step", dots=True)
            )
        experiments.append({"step": first.runs[0].step, "figures": drawn, "grids": grids})
    return {"groups": experiments} if experiments else None


def over_orders(table: Table, runs: Sequence[RunInfo], metric: str) -> list[tuple[int, Estimate]]:
    """Return (classes so far, the mean over orders) for each step of ``runs``; seeds and splits are averaged first."""
    means: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        if run.step and (score := table.estimate(run.key, Quantity(metric))):
            at = run.step.increment
            means.setdefault((at.step + 1) * at.classes, {}).setdefault(at.order, []).append(score.mean)
    points = ((count, estimate([*map(average, orders.values())])) for count, orders in sorted(means.items()))
    return [(count, mean) for count, mean in points if mean is not None]


def ranks(table: Table) -> Data:
    """Return the methods' mean ranks over data sets."""
    nll = [part.finite(Quantity("nll")) for part in table.by_dataset().values()]
    by_nll = which.ranks([(run.method, of[run.key].mean) for run in table.runs if run.key in of] for of in nll)
    if by_nll is None:
        return None
    rows = [[Cell(method), Cell(f"{rank:.2f}", value=rank)] for method, rank in by_nll.means.items()]
    return {"ranks": by_nll, "grid": Grid(["Method", "Mean rank"], rows)}


@dataclass(frozen=True)
class Section:
    """A page or a section of one: its template's name, its title, and the function that returns the template's data."""

    name: str
    title: str
    data: Callable[[Table], Data]


SECTIONS: Final = (  # Each data set has these sections.
    Section("headline", "", headline),
    Section("chains", "Markov chains", chains),
    Section("students", "Students", imitation),
    Section("recalibration", "Recalibration", recalibration),
    Section("coresets", "Coresets under each protocol", coresets_by_protocol),
    Section("severity", "Score against severity", severity),
    Section("corruptions", "Corruption by corruption", corruptions),
    Section("joint", "Several inputs together", together),
    Section("images", "Coreset images", coreset_images),
)
CLOSING: Final = (  # These sections follow; each is about all data sets together.
    Section("steps", "Class by class", steps),
    Section("ranks", "Over all data sets", ranks),
)


def index(table: Table) -> Data:
    """Return the page of all results."""
    parts = {dataset: _rendered(SECTIONS, part) for dataset, part in table.by_dataset().items()}
    return {"parts": parts, "closing": _rendered(CLOSING, table)}


def decisions(table: Table) -> Data:
    """Return the sentences, curves and table of each decision that has been played; None if none has."""
    parts = dict[str, Mapping[str, object]]()
    for key, place in table.decisions.items():
        if (played := explore.read(place)) is not None:
            parts[key] = {
                "sentences": explore.sentences(played),
                "figures": explore.drawn(played, key),
                "grids": [explore.grid(played)],
                "table": None,
            }
    return {"parts": parts} if parts else None


PAGES: Final = (
    Section("index", "Bayesian deep learning methods, side by side", index),
    *(
        Section(name, one.title, partial(question_pages.answers, question=name))
        for name, one in question_pages.PAGES.items()
    ),
    Section("explore", "Does it explore well?", decisions),
)


def render(table: Table, provenance: Mapping[str, object], dpi: int) -> dict[str, str]:
    """Return the HTML of each page that has data, by its name.

    Args:
        provenance: facts for the page's head, in order; only these and the run records differ between equal runs.
        dpi: CSS pixels per inch of a figure.
    """
    pages = [(page, data) for page in PAGES if (data := page.data(table)) is not None]
    common = {"table": table, "provenance": provenance, "dpi": dpi, "config": CONFIG}
    common |= {"pages": [page for page, _ in pages]}
    return {page.name: _html(page, data, **common) for page, data in pages}


def markdown(grids: Sequence[Grid]) -> str:
    """Write tables as Markdown, with their titles, verdicts, sources and remarks."""
    return _TEMPLATES.get_template("tables.md").render(grids=grids)


def _rendered(sections: Sequence[Section], table: Table) -> list[tuple[Section, str]]:
    found = ((section, section.data(table)) for section in sections)
    return [(section, _html(section, data, table=table)) for section, data in found if data is not None]


def _html(section: Section, data: Mapping[str, object], **common: object) -> str:
    return _TEMPLATES.get_template(f"{section.name}.html").render(data, section=section, **common)
