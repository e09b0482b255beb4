"""One data set's part of the page: its tables and figures, each with a line on how to read it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

from ..core.scores import Quantity
from . import columns, cross, images, plots, which
from .columns import NOTHING, Cell
from .estimates import Estimate
from .images import CoresetInfo
from .svg import Look
from .tables import Paper, RunInfo, Table

OOD_METRICS: Final = (
    ("auroc", "AUROC", +1),
    ("aupr_in", "AUPR-In", +1),
    ("aupr_out", "AUPR-Out", +1),
    ("fpr95", "FPR95", -1),
)
OOD_SCORES: Final = {  # what a reader sees; a score that is not here is shown by its own name
    "max_prob": "max probability",
    "mutual_information": "mutual information",
    "feature_density": "feature density",
    "refit_density": "refitted feature density",
    "variance": "variance",
}


@dataclass(frozen=True)
class Part:
    """A data set's inputs to each of its sections."""

    table: Table
    dataset: str
    runs: list[RunInfo]
    names: dict[str, str]
    look: Look
    paper: Paper
    dpi: int

    def done(self) -> list[RunInfo]:
        """List the runs that have results."""
        return [run for run in self.runs if run.key not in self.table.notes]


def dataset(table: Table, name: str, coresets: Sequence[CoresetInfo], look: Look, paper: Paper, dpi: int) -> str:
    """Return the part of the page of one data set."""
    runs = table.of(name)
    part = Part(table, name, runs, columns.labels(runs), look, paper, dpi)
    kinds = (
        headline,
        which_one,
        recalibration,
        coresets_by_protocol,
        regression,
        reliability,
        severity,
        cost,
        transfer,
        ood,
    )
    sections = [section(part) for section in kinds]
    pictures = images.of(coresets, name)
    if pictures:
        about = (
            "By the class of the learned label's top entry; below each image that entry. "
            "Normalisation and whitening are undone."
        )
        sections.append(_titled("Coreset images", about, "".join(pictures)))
    return f'<section id="{escape(name)}"><h2>{escape(name)}</h2>{"".join(sections)}</section>'


def headline(part: Part) -> str:
    """Return the headline table, with the notes on its runs."""
    shown = columns.columns(part.table, part.dataset)
    grid = [columns.cells(part.table, part.runs, c, part.paper) for c in shown]
    heads = "".join(f'<th scope="col" title="{escape(c.about, quote=True)}">{escape(c.title)}</th>' for c in shown)
    rows = []
    for i, run in enumerate(part.runs):
        n = columns.seeds(part.table, run.key)
        count = f'<td data-v="{n}">{n}</td>' if n else f"<td>{NOTHING}</td>"
        network = f"<td>{escape(run.network or NOTHING)}</td>"
        rows.append(f"<tr>{_run(part, run)}{count}{''.join(cell(c[i]) for c in grid)}{network}</tr>")
    last = '<th scope="col" title="the architecture that predicts">Network</th>'
    head = f'<thead><tr><th scope="col">Method, setting</th><th scope="col">Seeds</th>{heads}{last}</tr></thead>'
    about = "Mean ± standard error over data splits, or over seeds where there is one split. "
    about += "Bold: best in its column. Click a heading to sort."
    if printed := columns.sources(part.runs, part.paper):
        about += f" <i>Italic: the paper's own figure ({escape('; '.join(printed))}), from its own set-up.</i>"
    notes = "".join(_notes(part, run) for run in part.runs)
    return f'<p class="read">{about}</p>{_scroll(head, rows, "headline sortable")}{notes}'


def which_one(part: Part) -> str:
    """Return the differences of all runs to the best and to the deterministic network, and what they allow to say."""
    found = which.verdict(part.table, part.dataset)
    if found is None:
        return ""
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("NLL", "to the best", "to deterministic", "front"))
    rows = []
    for row in found.rows:
        differences = "".join(map(_difference, (row.to_best, row.to_baseline)))
        front = f'<td data-v="{int(row.efficient)}">{"yes" if row.efficient else ""}</td>'
        nll = f'<td data-v="{row.nll!r}">{row.nll:.3f}</td>'
        rows.append(f"<tr>{_run(part, row.run)}{nll}{differences}{front}</tr>")
    head = f'<thead><tr><th scope="col">Method, setting</th>{heads}</tr></thead>'
    about = (
        "Differences of NLL in pairs, of the same splits or test rows, with intervals that hold together at 95 % "
        "(over splits: Nadeau and Bengio's, since splits share rows); bold: 0 is outside. Front: no run has a lower "
        "NLL and predicts as fast."
    )
    said = f'<p class="verdict">{escape(" ".join(found.said))}</p>'
    return _titled("Which one?", "", said + f'<p class="read">{about}</p>' + _scroll(head, rows, "sortable"))


def _difference(found: which.Difference | None) -> str:
    if found is None:
        return f"<td>{NOTHING}</td>"
    error = f" <small>± {found.half:.3f}</small>" if math.isfinite(found.half) else ""
    text = f"{found.mean:+.3f}"
    return f'<td data-v="{found.mean!r}">{f"<b>{text}</b>" if found.apart else text}{error}</td>'


def recalibration(part: Part) -> str:
    """Return scores before and after recalibration, and the coverage of conformal sets; nothing without any."""
    classes = part.table.has(part.dataset, "size_conformal")
    if not part.table.has(part.dataset, "nll_recalibrated"):
        return ""
    width = "size_conformal" if classes else "width_conformal"
    pairs = [("NLL", "nll"), ("ECE %", "ece")] if classes else [("NLL", "nll"), ("CRPS", "crps")]
    heads = [f"{title} {when}" for title, _ in pairs for when in ("before", "after")]
    heads += ["Coverage %", "Size" if classes else "Width", *([] if classes else ["Coverage % before", "Width before"])]
    more = [] if classes else ["coverage_90", "width_90"]
    metrics = [m for _, base in pairs for m in (base, f"{base}_recalibrated")] + ["coverage_conformal", width, *more]
    rows = []
    for run in part.done():
        if part.table.estimate(run.key, Quantity("nll_recalibrated")) is None:
            continue
        rows.append(f"<tr>{_run(part, run)}{''.join(_score(part, run, metric) for metric in metrics)}</tr>")
    heading = "".join(f'<th scope="col">{title}</th>' for title in heads)
    about = (
        "On test rows, with what was learnt from rows that no fit saw: a temperature of the probabilities, or a width "
        "of the predictive; conformal sets at 90 %, whose coverage is 90 % on average over calibration and test rows, "
        "with the exact binomial interval of the coverage that was counted."
    )
    head = f'<thead><tr><th scope="col">Method, setting</th>{heading}</tr></thead>'
    return _titled("Recalibration", about, _scroll(head, rows, "sortable"))


def _score(part: Part, run: RunInfo, metric: str) -> str:
    known = part.table.estimate(run.key, Quantity(metric))
    if known is None:
        return f"<td>{NOTHING}</td>"
    if not metric.startswith("coverage"):
        text = columns.percent(known.mean) if metric.startswith("ece") else f"{known.mean:.3f}"
        return f'<td data-v="{known.mean!r}">{text}</td>'
    low, high = _binomial(part, run, metric)
    return f'<td data-v="{known.mean!r}">{100 * known.mean:.1f} <small>{100 * low:.1f} to {100 * high:.1f}</small></td>'


def _binomial(part: Part, run: RunInfo, metric: str) -> tuple[float, float]:
    """Return the exact 95 % interval of a share over all test rows (Clopper & Pearson 1934)."""
    from scipy.stats import binomtest

    stored = part.table.stored[run.key].to_pylist()
    found = [(row["value"], row["n"]) for row in stored if row["metric"] == metric and row["set"] == "test"]
    count = sum(n for _, n in found)
    interval = binomtest(round(sum(value * n for value, n in found)), count).proportion_ci(0.95)
    return float(interval.low), float(interval.high)


def ranks(table: Table, dpi: int) -> str:
    """Return the methods' mean ranks over data sets; nothing where there are not two of each."""
    found = which.ranks(table)
    if found is None:
        return ""
    rows = [f'<tr><th scope="row">{escape(m)}</th><td data-v="{r!r}">{r:.2f}</td></tr>' for m, r in found.means.items()]
    first, *rest = found.means.items()
    tied = [name for name, rank in rest if rank - first[1] <= found.critical]
    about = (
        f"Mean rank by NLL over {found.datasets} data sets, of the methods that all of them have. Ranks that differ by "
        f"less than {found.critical:.2f} cannot be told apart at 95 % (Nemenyi); "
        f"Friedman's test: p = {found.p_value:.2g}."
    )
    said = f"{first[0]} ranks first" + (f"; not told apart from it: {', '.join(tied)}." if tied else " alone.")
    grid = _scroll('<thead><tr><th>Method</th><th scope="col">Mean rank</th></tr></thead>', rows, "sortable")
    return (
        f'<section id="ranks"><h2>Over all data sets</h2><p class="verdict">{escape(said)}</p>'
        f'<p class="read">{about} A bar joins those that cannot be told apart.</p>'
        f"<figure>{plots.critical_difference(found, dpi)}</figure>{grid}</section>"
    )


def _run(part: Part, run: RunInfo) -> str:
    name = escape(run.method.replace("_", " "))
    chip = f'<span class="chip" style="background:{part.look.variable(run.key)}"></span>'
    sort, key = f"{name} {escape(run.setting)}", escape(run.key)
    setting = f"<small>{escape(run.setting)}</small>"
    return f'<th scope="row" data-v="{sort}" title="{key}">{chip}{name} {setting}</th>'


def _notes(part: Part, run: RunInfo) -> str:
    lines = part.table.remarks(run.key)
    return "".join(f'<p class="{kind}"><b>{escape(run.key)}</b>: {escape(text)}</p>' for kind, text in lines)


def cell(content: Cell) -> str:
    """Return one table cell with its sort value."""
    known = content.value is not None and math.isfinite(content.value)
    value = f' data-v="{content.value!r}"' if known else ""
    text = f"<b>{content.text}</b>" if content.best else content.text
    error = f" <small>± {content.error}</small>" if content.error else ""
    paper = f'<span class="paper">paper {escape(content.paper)}</span>' if content.paper else ""
    return f"<td{value}>{text}{error}{paper}</td>"


def coresets_by_protocol(part: Part) -> str:
    """Return the table of coresets × protocols and its figures; nothing where there are not two of either."""
    rows = cross.of(part.table, part.dataset)
    if rows is None:
        return ""
    table = cross.headline(part.table, rows)
    heads = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.head)
    trs = [f"<tr>{_row_head(row[0])}{''.join(map(cell, row[1:]))}</tr>" for row in table.rows]
    about = (
        "Rows: what was distilled, with its images a class and the seconds it took with its experts. Columns: the "
        "protocol that was fitted to it. Mean ± standard error over seeds, on test rows, by which nothing is chosen. "
        f"Bold: best among coresets of one size. {cross.MARK}: no better than the mean of random images, equally many "
        "of each class, under the same protocol; all coresets start from such images."
    )
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in table.remarks)
    pairs = [(protocol, score) for protocol in rows.protocols for score in cross.SCORES[:2]]
    drawn = [plots.distilled(part.table, rows, p, score, part.look, part.dpi) for p, score in pairs]
    grid = _scroll(f"<thead><tr>{heads}</tr></thead>", trs, "sortable")
    figures = _figures([figure for figure in drawn if figure], "wide")
    return _titled("Coresets under each protocol", about, grid + notes + figures)


def _row_head(content: Cell) -> str:
    return f'<th scope="row" data-v="{escape(content.text)}">{escape(content.text)}</th>'


def regression(part: Part) -> str:
    """Return the figures of RMSE and NLL over splits; nothing for classification."""
    if not part.table.has(part.dataset, "rmse"):
        return ""
    drawn = [plots.dots(part.table, part.done(), part.names, m, part.look, part.dpi) for m in ("rmse", "nll")]
    about = (
        "Diamond: mean over splits with its standard error; faint dots: the splits themselves. Further left is better."
    )
    return _titled("RMSE and NLL over splits", about, _figures(drawn, "wide"))


def reliability(part: Part) -> str:
    """Return the reliability diagrams; nothing where no run has any."""
    have = set(part.table.calibration.run)
    runs = [run for run in part.done() if run.key in have]
    drawn = [plots.reliability(part.table, r, part.names[r.key], part.look, part.dpi) for r in runs]
    if not drawn:
        return ""
    about = (
        "Above the dashed line a method is under-confident, below it over-confident. "
        "Bars: share of predictions in each bin, "
        f"all seeds together; hollow points stand for less than {100 * plots.FEW:g} % of them."
    )
    return _titled("Reliability", about, _figures(drawn, "small"))


def severity(part: Part) -> str:
    """Return the scores against severity, and the tables of each corruption."""
    title = "Score against severity"
    if not part.table.names(part.dataset, "corrupted"):
        note = f'<p class="note">{NOTHING} no corrupted inputs were evaluated</p>'
        return _titled(title, "", note) if part.table.has(part.dataset, "accuracy") else ""
    done = part.done()
    drawn = [plots.severity(part.table, done, part.names, m, part.look, part.dpi) for m in ("accuracy", "nll")]
    about = "Mean over corruptions; whiskers: standard error over seeds. "
    about += "Severity 0 is the whole clean test set; the others its corrupted part."
    nll = f"<details><summary>The same table for NLL</summary>{heat_table(part, done, 'nll')}</details>"
    note = "Mean over severities, easiest corruption first. The stronger the colour, the better."
    heat = _titled("Corruption by corruption, accuracy %", note, heat_table(part, done, "accuracy") + nll)
    return _titled(title, about, _figures(drawn, "wide")) + heat


def heat_table(part: Part, runs: Sequence[RunInfo], metric: str) -> str:
    """Return a table of corruptions × methods, each figure the mean over its severities."""
    kinds = part.table.names(part.dataset, "corrupted")
    estimates = {(k, r.key): part.table.estimate(r.key, Quantity(metric, "corrupted", k)) for k in kinds for r in runs}
    sign = 1 if metric == "accuracy" else -1
    values = [e.mean for e in estimates.values() if e and math.isfinite(e.mean)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    kinds.sort(key=lambda k: (-sign * _mean([estimates[k, r.key] for r in runs]), k))
    heads = "".join(f'<th scope="col">{escape(part.names[r.key])}</th>' for r in runs)
    write = columns.percent if metric == "accuracy" else columns.places(3)
    rows = []
    for kind in kinds:
        tds = "".join(_heat(estimates[kind, r.key], low, high, sign, write) for r in runs)
        rows.append(f'<tr><th scope="row" data-v="{escape(kind)}">{escape(kind.replace("_", " "))}</th>{tds}</tr>')
    return _scroll(f'<thead><tr><th scope="col">Corruption</th>{heads}</tr></thead>', rows, "heat sortable")


def _mean(estimates: Sequence[Estimate | None]) -> float:
    values = [e.mean for e in estimates if e and math.isfinite(e.mean)]
    return sum(values) / len(values) if values else -math.inf


def _heat(estimate: Estimate | None, low: float, high: float, sign: int, write: Callable[[float], str]) -> str:
    text, _ = columns.figure(estimate, lambda v: write(v) if write is not columns.percent else f"{100 * v:.1f}")
    if estimate is None or not math.isfinite(estimate.mean):
        return f"<td>{text}</td>"
    share = (estimate.mean - low) / (high - low) if high > low else 0.5
    strength = round(4 + 46 * (share if sign > 0 else 1 - share))
    colour = f"color-mix(in srgb, var(--heat) {strength}%, transparent)"
    return f'<td data-v="{estimate.mean!r}" style="background:{colour}">{text}</td>'


def cost(part: Part) -> str:
    """Return the figures of NLL against each cost; nothing where there are none."""
    shown = [c for c in columns.columns(part.table, part.dataset) if c.of.metric in plots.COSTS]
    drawn = [plots.cost(part.table, part.done(), part.names, c, part.look, part.dpi) for c in shown]
    if not any(drawn):
        return ""
    about = "Lower left is better. Logarithmic cost axis; the fit includes everything that the method was made from."
    return _titled("NLL against cost", about, legend(part) + _figures([d for d in drawn if d], "wide"))


def legend(part: Part) -> str:
    """Return the list of the runs' marks and names."""
    items = [f"<li>{plots.key_mark(r.key, part.look)}{escape(part.names[r.key])}</li>" for r in part.done()]
    return f'<ul class="key">{"".join(items)}</ul>'


def transfer(part: Part) -> str:
    """Return the tables of the transfer sets; nothing where there are none."""
    names = part.table.names(part.dataset, "transfer")
    about = (
        f"Fitted on {escape(part.dataset)}, scored on another set's labelled test rows whose classes it has. "
        f"The probabilities are those over all classes of {escape(part.dataset)}, also where only some are shared."
    )
    tables = "".join(f"<h4>on {escape(name)}</h4>{transfer_table(part, name)}" for name in names)
    return _titled("Transfer", about, tables) if names else ""


def transfer_table(part: Part, name: str) -> str:
    """Return a table of every method and the scores of classes on the transfer set."""
    cols = [replace(c, of=replace(c.of, set="transfer", name=name)) for c in columns.CLEAN]
    cols = [c for c in cols if any(part.table.estimate(r.key, c.of) for r in part.runs)]
    grid = [columns.cells(part.table, part.runs, c, {}) for c in cols]
    heads = "".join(f'<th scope="col">{c.title}</th>' for c in cols)
    rows = [f"<tr>{_run(part, r)}{''.join(cell(c[i]) for c in grid)}</tr>" for i, r in enumerate(part.runs)]
    return _scroll(f'<thead><tr><th scope="col">Method, setting</th>{heads}</tr></thead>', rows, "sortable")


def ood(part: Part) -> str:
    """Return the tables of out-of-distribution detection; nothing where there are none."""
    names = part.table.names(part.dataset, "ood")
    about = (
        f"{escape(part.dataset)}'s test set against another set. AUROC and AUPR-In take the test set as positive, "
        "AUPR-Out the other; FPR95: share of the other set accepted where 95 % of the test set is. "
        "An AUROC of 0.5 is chance."
    )
    tables = "".join(f"<h4>against {escape(name)}</h4>{ood_table(part, name)}" for name in names)
    return _titled("Out-of-distribution detection", about, tables) if names else ""


def ood_table(part: Part, name: str) -> str:
    """Return a table of every method, with four metrics for each score that any method has."""
    scores = OOD_SCORES | _other_scores(part)
    wanted = [(s, m, title, better) for s in scores for m, title, better in OOD_METRICS]
    cols = [
        (s, columns.Column(title, Quantity(m, "ood", name, score=s), better, columns.places(3), ""))
        for s, m, title, better in wanted
    ]
    cols = [(s, c) for s, c in cols if any(part.table.estimate(r.key, c.of) for r in part.runs)]
    grid = [columns.cells(part.table, part.runs, c, {}) for _, c in cols]
    groups = [(escape(text), sum(s == score for s, _ in cols)) for score, text in scores.items()]
    over = "".join(f'<th scope="colgroup" class="group" colspan="{n}">score: {text}</th>' for text, n in groups if n)
    heads = "".join(f'<th scope="col">{c.title}</th>' for _, c in cols)
    rows = [f"<tr>{_run(part, r)}{''.join(cell(c[i]) for c in grid)}</tr>" for i, r in enumerate(part.runs)]
    head = f'<thead><tr><th></th>{over}</tr><tr><th scope="col">Method, setting</th>{heads}</tr></thead>'
    return _scroll(head, rows, "sortable")


def _other_scores(part: Part) -> dict[str, str]:
    """Name the scores that plugins and methods add, as words and in alphabetic order."""
    return {name: name.replace("_", " ") for name in part.table.ood_scores(part.runs) if name not in OOD_SCORES}


def _titled(title: str, about: str, body: str) -> str:
    return f"<h3>{title}</h3>" + (f'<p class="read">{about}</p>' if about else "") + body


def _figures(drawn: Sequence[str], kind: str) -> str:
    return f'<div class="figures {kind}">{"".join(drawn)}</div>'


def _scroll(head: str, rows: Sequence[str], kind: str) -> str:
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{head}<tbody>{"".join(rows)}</tbody></table></div>'
