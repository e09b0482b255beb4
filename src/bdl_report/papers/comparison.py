"""Our runs beside a paper's figures: a line for each method, with or without a run; as a table, Markdown and CSV.

run = Ours("boston-vbll", "boston", "vbll", scores=RunScores(scores.read(path)))
print(pages.markdown(compare(papers.load("vbll:table2"), "Boston", [run]), {"commit": "1a2b3c"}))
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal, get_args

import pyarrow as pa

from bdl_pipe.metrics.written import seconds
from bdl_pipe.scores import Estimate, Quantity, RunScores

from . import PaperTable
from .order import FAR, Pair

Kind = Literal["protocol", "default run", "stand-in", "held-out classes"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_ELSEWHERE: Final = ("stand-in", "held-out classes")
_NOTHING: Final = "—"
KEYS: Final = ", "  # between the keys of the runs in one line
_COLUMNS: Final = (
    *("dataset", "method", "run", "setting", "metric"),
    *("ours", "error", "n", "paper", "paper_error", "z", "fit_seconds", "kind"),
)


@dataclass(frozen=True)
class Ours:
    """A run of ours.

    Attributes:
        key: the run's name in the results.
        dataset: our name of the data set.
        method: our name of the method.
        setting: distinguishes runs of one method.
        scores: the stored scores; None if the run has no scores yet.
    """

    key: str
    dataset: str
    method: str
    setting: str = ""
    scores: RunScores | None = None

    def stands_for(self, method: str, table: PaperTable) -> bool:
        """Return True if the run stands for ``method`` of the paper."""
        counterpart, others = table.names.methods[method], table.names.settings
        same_setting = counterpart.setting in ("", self.setting) or self.setting in others.get(counterpart.setting, ())
        return self.method == counterpart.method and same_setting


@dataclass(frozen=True)
class Line:
    """A method of a table, or one of our runs that the table does not have.

    Attributes:
        method: the paper's name, or our name for a run that the paper does not have.
        run: the run's key, or the keys of its folds; None if the method has no run.
        ran: whether the run has scores.
        cells: the paper's metric -> the two figures.
        seconds: the mean seconds of one fit, upstream runs included.
    """

    method: str
    run: str | None
    setting: str
    ran: bool
    cells: Mapping[str, Pair]
    seconds: float | None = None

    @property
    def counts(self) -> str:
        """Write the number of independent values in each mean: splits, or seeds of one split."""
        return " or ".join(map(str, sorted({pair.ours.n for pair in self.cells.values() if pair.ours})))

    def ours(self, metric: str, marked: bool = True) -> str:
        """Write our figure of a metric, with its error, and a mark if it is far from the paper's."""
        pair = self.cells[metric]
        if not self.ran:
            return "not run" if pair.paper or self.run else _NOTHING
        if pair.ours is None:
            return _NOTHING
        error = "" if pair.ours.error is None else f" ± {pair.ours.error:.{pair.digits}f}"
        return f"{pair.ours.mean:.{pair.digits}f}{error}" + (" !" if marked and pair.far else "")


@dataclass(frozen=True)
class Comparison:
    """Our runs beside a table's figures for one data set.

    Attributes:
        dataset: the paper's name.
        lines: the paper's methods in its order, then our other runs.
        kind: the origin of our figures: the paper's protocol, or runs of params.yaml on the paper's data, on a
            stand-in, or on folds of held-out classes of a stand-in.
    """

    table: PaperTable
    dataset: str
    lines: Sequence[Line]
    kind: Kind = "protocol"

    @property
    def stand_in(self) -> str:
        """Return our data set in place of the paper's; empty if our figures are on the paper's own data set."""
        return self.table.names.datasets[self.dataset] if self.kind in _ELSEWHERE else ""

    @property
    def head(self) -> list[str]:
        """Return the titles of the columns: the method, two for each metric, independent values, seconds of a fit."""
        titles = map(self.table.title, self.table.metrics(self.dataset))
        return ["method", *(f"{title} {whose}" for title in titles for whose in ("ours", "paper")), "n", "seconds"]

    @property
    def rows(self) -> list[list[str]]:
        """Return the texts of each line, one for each column."""
        rows = []
        for line in self.lines:
            texts = [line.method]
            for metric in self.table.metrics(self.dataset):
                paper = line.cells[metric].paper
                texts += [line.ours(metric, not self.stand_in), paper.text if paper else _NOTHING]
            rows.append([*texts, line.counts or _NOTHING, _NOTHING if line.seconds is None else seconds(line.seconds)])
        return rows

    @property
    def first(self) -> Mapping[str, Line]:
        """Return the line of each method of the paper; if it has several runs, the first run with scores."""
        first: dict[str, Line] = {}
        for line in self.lines:
            name = self.method(line)
            if name is not None and not (name in first and (first[name].ran or not line.ran)):
                first[name] = line
        return first

    def method(self, line: Line) -> str | None:
        """Return the paper's name of a line's method; None for a run that the paper does not have."""
        figures = self.table.figures[self.dataset]
        bare = line.method.removesuffix(f" ({line.setting})")
        return line.method if line.method in figures else bare if bare in figures else None

    @property
    def cells(self) -> Mapping[tuple[str, str], Pair]:
        """Return each figure that the paper prints, by method and metric, with the figure of the method's first run."""
        first = self.first.items()
        return {(name, metric): pair for name, line in first for metric, pair in line.cells.items() if pair.paper}

    @property
    def counts(self) -> str:
        """Write the number of independent values in our means."""
        counts = sorted({pair.ours.n for line in self.lines for pair in line.cells.values() if pair.ours})
        return f"n = {' or '.join(map(str, counts))}" if counts else "none run"

    def agreement(self) -> list[str]:
        """Write ours − paper, also in combined standard errors: a line for each method with errors on both sides."""
        title, verdicts = self.table.title, list[str]()
        for line in self.lines:
            parts = [
                f"{title(metric)} {pair.difference:+.{pair.digits}f} ({pair.z:+.1f}{' !' if pair.far else ''})"
                for metric, pair in line.cells.items()
                if pair.z is not None
            ]
            verdict = "disagrees" if any(pair.far for pair in line.cells.values()) else "agrees"
            verdicts += [f"{line.method} {verdict}: {', '.join(parts)}"] if parts else []
        if not verdicts:
            return ["agreement: no method has figures with a standard error on both sides"]
        pairs = [pair for line in self.lines for pair in line.cells.values() if pair.z is not None]
        marked = f"! beyond {FAR:g}: {sum(pair.far for pair in pairs)} of {len(pairs)}"
        return [f"ours − paper (in combined standard errors; {marked})", *verdicts]

    def remarks(self) -> list[str]:
        """List the lines below the table: the agreement, and the differences between our methods and the paper's.

        On a stand-in no value is compared.
        """
        notes = self.table.notes(self.dataset).items()
        agreement = [f"ours are of {self.stand_in}: its page compares orders"] if self.stand_in else self.agreement()
        return [*agreement, *(f"{', '.join(methods)}: {note}" for note, methods in notes)]

    def comma_separated(self) -> str:
        """Return the comparison as CSV: one row for each figure, in full precision and in the paper's unit."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for line in self.lines:
            for metric, pair in line.cells.items():
                ours = (pair.ours.mean, pair.ours.error, pair.ours.n) if pair.ours else (None, None, None)
                paper = (pair.paper.value, pair.paper.error) if pair.paper else (None, None)
                about = (self.dataset, line.method, line.run, line.setting, metric)
                z = None if self.stand_in else pair.z
                writer.writerow([*about, *ours, *paper, z, line.seconds, self.kind])
        return text.getvalue()


def compare(table: PaperTable, dataset: str, runs: Iterable[Ours], kind: Kind = "protocol") -> Comparison:
    """Compare the runs that :func:`runs_of` picks with the figures of a table.

    Args:
        dataset: the paper's name.
        kind: ``table`` must be the result of :func:`of_kind` for it.
    """
    runs, lines = runs_of(table, dataset, runs), list[Line]()
    for method in table.figures[dataset]:
        matching: list[Ours | None] = [run for run in runs if run.stands_for(method, table)]
        lines += [_line(table, dataset, method, run, len(matching) > 1) for run in matching or [None]]
    used = {line.run for line in lines}
    for run in (run for run in runs if run.key not in used):
        several = sum(other.method == run.method for other in runs) > 1
        lines.append(_line(table, dataset, None, run, several))
    return Comparison(table, dataset, lines, kind)


def read(table: PaperTable, text: str) -> Comparison:
    """Read the CSV of :meth:`Comparison.comma_separated`; the paper's figures come from the paper's own file."""
    rows = list(csv.DictReader(io.StringIO(text)))
    dataset = rows[0]["dataset"]
    kind: Kind = next((kind for kind in KINDS if kind == rows[0].get("kind")), "protocol")
    table = of_kind(table, dataset, kind) or table
    figures, lines = table.figures[dataset], list[Line]()
    for (title, run, setting), group in groupby(rows, lambda row: (row["method"], row["run"], row["setting"])):
        bare, pairs, took = title.removesuffix(f" ({setting})"), dict[str, Pair](), list[str]()
        printed = figures.get(title, figures.get(bare, {}))
        for row in group:
            error = float(row["error"]) if row["error"] else None
            ours = Estimate(float(row["ours"]), error, int(row["n"])) if row["ours"] else None
            pairs[row["metric"]] = Pair(ours, printed.get(row["metric"]))
            took += [row["fit_seconds"]] * (row["fit_seconds"] != "")
        ran = bool(took) or any(pair.ours for pair in pairs.values())
        lines.append(Line(title, run or None, setting, ran, pairs, float(took[0]) if took else None))
    return Comparison(table, dataset, lines, kind)


def of_kind(table: PaperTable, dataset: str, kind: Kind) -> PaperTable | None:
    """Return the table with our names of the sets on a page of this kind; None if there is no such page."""
    if kind in _ELSEWHERE:
        return table.on_stand_ins(dataset) if kind == "stand-in" else table.on_folds(dataset)
    return None if kind == "default run" and table.table not in table.names.default_run else table


def over_folds(table: PaperTable, dataset: str, runs: Iterable[Ours]) -> list[Ours]:
    """Return the runs on a data set's folds of held-out classes, each fold as a split of one run.

    A run of a method and setting that a fold lacks is left out: means over other folds would not be comparable.
    """
    folds, same = table.names.folds[dataset].of, dict[tuple[str, str], dict[str, Ours]]()
    for run in runs:
        if run.dataset in folds and run.scores is not None:
            same.setdefault((run.method, run.setting), {})[run.dataset] = run
    return [_joined([of[fold] for fold in folds]) for of in same.values() if len(of) == len(folds)]


def _joined(runs: Sequence[Ours]) -> Ours:
    tables = []
    for i, run in enumerate(runs):
        assert run.scores is not None
        stored = run.scores.stored
        place, split = stored.schema.get_field_index("split"), stored.schema.field("split")
        tables.append(stored.set_column(place, split, pa.array([i] * len(stored), split.type)))
    return replace(runs[0], key=KEYS.join(run.key for run in runs), scores=RunScores(pa.concat_tables(tables)))


def runs_of(table: PaperTable, dataset: str, runs: Iterable[Ours]) -> list[Ours]:
    """List the runs on ``dataset`` (the paper's name) that match a method of ``table``, or of no table of its fits."""
    ours = [run for run in runs if run.dataset == table.names.datasets[dataset]]

    def stands_for_one(run: Ours, methods: Iterable[str]) -> bool:
        return any(run.stands_for(method, table) for method in methods)

    return [r for r in ours if stands_for_one(r, table.figures[dataset]) or not stands_for_one(r, table.others)]


def _line(table: PaperTable, dataset: str, method: str | None, run: Ours | None, several: bool) -> Line:
    """Return a line with our figures for the printed metrics; a run that the paper lacks has all its figures.

    Args:
        several: whether other runs have a line of the same name; the line then shows the setting.
    """
    printed, pairs = table.figures[dataset][method] if method else {}, dict[str, Pair]()
    stored = run.scores if run is not None else None
    for metric in table.metrics(dataset):
        ours = None
        if stored is not None and (method is None or metric in printed):
            ours = table.estimate(metric, method, stored)
        pairs[metric] = Pair(ours, printed.get(metric))
    cost = stored.estimate(Quantity("fit_seconds", "cost")) if stored is not None else None
    key, name, setting = (run.key, run.method, run.setting) if run is not None else (None, "", "")
    title = f"{method or name} ({setting})" if several else method or name
    return Line(title, key, setting, stored is not None, pairs, cost.mean if cost else None)
