"""The stored results of all runs: read, summarised, and written as the report's tables."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow
import pyarrow.parquet

from bdl_pipe import artifacts, scores
from bdl_pipe.data.config import IncrementConfig
from bdl_pipe.metrics import ood
from bdl_pipe.metrics.standings import Candidate, Standing, standings
from bdl_pipe.registry import METHODS
from bdl_pipe.scores import COLUMNS, KEYS, SCHEMA, Estimate, Quantity, RunScores, Set

from .choice import off_by_width
from .verdict import optimal

COLOURS: Final = 10  # the page's colours
ABSENT: Final = "no result: the evaluation is absent"
DRAWN: Final[Mapping[str, Callable[[Path], Any]]] = {  # the name of a table beside the scores -> its reader
    "calibration": scores.merged_bins,
    "same_class": scores.mean_same_class,
    "risk": scores.mean_risk,
    "pit": scores.counted_pit,
    "ood": ood.load,
}


@dataclass(frozen=True)
class Step:
    """A data set's place in class-incremental learning.

    Attributes:
        source: the name of the source of the data set's rows.
        group: a text that all steps of one experiment, in every order of the classes, have in common.
        increment: the order of the classes, the number of new classes in each step, and the number of the step.
    """

    source: str
    group: str
    increment: IncrementConfig


@dataclass(frozen=True)
class CoresetInfo:
    """An entry of ``coresets``, with the path of its artifact.

    Attributes:
        ipc: images per class; None if the method has no such hyperparameter.
        seconds: the mean time over seeds of distillation with the experts; None if it is not recorded.
    """

    key: str
    dataset: str
    method: str
    path: Path
    ipc: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ChainsInfo:
    """The diagnostics of Markov chains.

    Attributes:
        metrics: R-hat, effective sample sizes, minibatch noise over the kernel's own; each from its worst split.
        traces: functional -> its value at each draw of each chain of the first split [chain][draw].
        splits: the number of the data set's splits.
    """

    metrics: Mapping[str, float]
    traces: Mapping[str, Sequence[Sequence[float]]]
    splits: int = 1


@dataclass(frozen=True)
class RunInfo:
    """An entry of ``runs``.

    Attributes:
        evaluate: folder of the ``evaluate`` artifact, which may be absent.
        scores: folder of the ``scores`` artifact, which may be absent or belong to an earlier evaluation.
        warnings: the warnings of the run and of the artifacts that it was fitted from.
        step: the data set's step in class-incremental learning; None if it is not such a step.
        coreset: the coreset that the run predicts from; None if there is none.
        network: the short name of the architecture that predicts.
        chains: the chains that the run predicts from, by the key of the entry that made them.
        imitates: the run that this run imitates. It is empty if no run has the imitated posterior, and None if the run
            imitates nothing.
        training: step and loss of some steps of its fits, by the key of the entry that was fitted.
        ended: the recorded reason why each fit ended, see :class:`bdl_pipe.metrics.standings.Candidate`.
    """

    key: str
    dataset: str
    method: str
    setting: str
    evaluate: Path
    warnings: tuple[str, ...] = ()
    step: Step | None = None
    coreset: CoresetInfo | None = None
    network: str = ""
    chains: Mapping[str, ChainsInfo] = field(default_factory=dict)
    imitates: str | None = None
    ended: tuple[str, ...] = ()
    training: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    scores: Path | None = None


class Look(NamedTuple):
    """A run's colour, as CSS, and the number of its dashes."""

    colour: str
    dash: int


@dataclass(frozen=True)
class Table:
    """All stored results of some runs.

    Attributes:
        runs: the runs to show: all, or the runs on one data set.
        scores: run -> its scores, for runs that have some.
        drawn: the name of a table -> run -> what its reader returns, for runs that have it; see :data:`DRAWN`.
        looks: run -> its colour and dashes, the same in all figures.
        dataset: the data set of all runs; empty if the table is not of one data set.
        decisions: decision -> the folder of its ``decide`` artifact, which may be absent.
        compared: data set -> the standings of its runs, kept here after they are first read.
    """

    runs: tuple[RunInfo, ...]
    scores: Mapping[str, RunScores]
    drawn: Mapping[str, Mapping[str, Any]]
    looks: Mapping[str, Look]
    dataset: str = ""
    decisions: Mapping[str, Path] = field(default_factory=dict)
    compared: dict[str, list[Standing]] = field(default_factory=dict)

    def by_dataset(self) -> dict[str, "Table"]:
        """Return the results of the runs on each data set, the lowest NLL first."""
        nll = {key: of.mean for key, of in self.finite(Quantity("nll")).items()}
        names = dict.fromkeys(run.dataset for run in self.runs)
        ordered = sorted(self.runs, key=lambda run: nll.get(run.key, math.inf))
        return {n: replace(self.only(run for run in ordered if run.dataset == n), dataset=n) for n in names}

    def standings(self) -> list[Standing]:
        """Compare the runs on the table's data set; called on a table of all of them before one of some of them."""
        if self.dataset not in self.compared:
            self.compared[self.dataset] = standings(self.candidates())
        return self.compared[self.dataset]

    def kinds(self, key: str) -> str:
        """Return the kinds of a run by which a page hides it: ``coreset``, ``untied`` (worse than the best).

        A run of too few seeds is ``untied`` if it is worse than the best by two standard errors over test rows.
        """
        coresets = {run.key for run in self.runs if run.coreset is not None}
        untied = {
            one.candidate.key
            for one in (self.standings() if self.dataset else ())
            if (gap := one.to_best) and gap.mean > (gap.half if math.isfinite(gap.half) else 2 * gap.error)
        }
        return " ".join(kind for kind, keys in (("coreset", coresets), ("untied", untied)) if key in keys)

    def only(self, runs: Iterable[RunInfo]) -> "Table":
        """Return the results of some of the runs."""
        return replace(self, runs=tuple(runs))

    @property
    def done(self) -> "Table":
        """Return the results of the runs that have scores."""
        return self.only(run for run in self.runs if run.key in self.scores)

    def coresets(self) -> dict[str, CoresetInfo]:
        """Return the coresets that the runs predict from, by key."""
        return {run.coreset.key: run.coreset for run in self.runs if run.coreset is not None}

    def chains(self) -> dict[str, ChainsInfo]:
        """Return the chains that the runs predict from, by key."""
        return {key: chains for run in self.runs for key, chains in run.chains.items()}

    @cached_property
    def names(self) -> dict[str, str]:
        """Return the names of the runs from :func:`labels`, with spaces between words."""
        return labels(self.runs, " ")

    def warnings(self, run: RunInfo) -> list[str]:
        """List the warnings of a run's fits, and the one of its intervals, if any."""
        return [*run.warnings, *filter(None, [self._off_by_width.get(run.key)])]

    @property
    def warned(self) -> int:
        """Return the number of runs with a warning."""
        return sum(bool(self.warnings(run)) for run in self.runs)

    def remarks(self) -> list[tuple[str, str]]:
        """List notes on runs, as (kind, text): missing scores, and warnings. Each is listed once, with its runs."""
        runs: dict[tuple[str, str], list[str]] = {}
        for run in self.runs:
            absent = [] if run.key in self.scores else [("note", ABSENT)]
            for remark in (*absent, *(("warn", warning) for warning in self.warnings(run))):
                runs.setdefault(remark, []).append(run.key)
        return [(kind, f"{text}. Runs: {', '.join(keys)}") for (kind, text), keys in runs.items()]

    def quantities(self) -> set[Quantity]:
        """Return the quantities for which any run has a score."""
        return {of for run in self.done.runs for of in self.scores[run.key].quantities}

    def sets(self, where: Set) -> list[str]:
        """List the corruptions, or the other data sets, that any run was scored on; sorted."""
        return sorted({of.name for of in self.quantities() if of.set == where and of.name is not None})

    def estimate(self, run: str, wanted: Quantity) -> Estimate | None:
        """Return the mean of a quantity and its error; None if the run has no such score."""
        return self.scores[run].estimate(wanted) if run in self.scores else None

    def finite(self, wanted: Quantity) -> dict[str, Estimate]:
        """Return the estimates of a quantity that are finite, by run."""
        estimates = {run.key: self.estimate(run.key, wanted) for run in self.runs}
        return {key: e for key, e in estimates.items() if e is not None and math.isfinite(e.mean)}

    @cached_property
    def _off_by_width(self) -> dict[str, str]:
        return {one.key: off_by_width(one) for one in self.candidates()}

    def candidates(self) -> list[Candidate]:
        """Return the runs with scores, for the verdict and for :func:`bdl_pipe.metrics.standings.standings`."""
        scores, names = self.scores, labels(self.done.runs)
        return [
            Candidate(r.key, names[r.key], scores[r.key], r.evaluate, r.network, r.method, r.ended, optimal(r.method))
            for r in self.done.runs
        ]


def gather(runs: Sequence[RunInfo]) -> Table:
    """Read every run's tables.

    Raises:
        ArtifactError: a table that exists is altered, truncated or of an older version.
    """
    scores_of, drawn = dict[str, RunScores](), {name: dict[str, Any]() for name in DRAWN}
    for run in runs:
        folders = _folders(run)
        if folders:
            stored = [scores.read(folder / "scores.parquet") for folder in folders]
            scores_of[run.key] = RunScores(pyarrow.concat_tables(stored))
        for name, folder in product(DRAWN, folders):
            if (folder / f"{name}.parquet").is_file():
                drawn[name][run.key] = DRAWN[name](folder / f"{name}.parquet")
    return Table(tuple(runs), scores_of, drawn, {run.key: look(run, runs) for run in runs})


def _folders(run: RunInfo) -> list[Path]:
    """Return the folders of a run's evaluation and of the scores of that evaluation, if they exist."""
    manifest = run.evaluate / artifacts.MANIFEST
    if not manifest.is_file():
        return []
    folders = [artifacts.load(run.evaluate, "evaluate").path]
    if run.scores is not None and (run.scores / artifacts.MANIFEST).is_file():
        stored = artifacts.load(run.scores, "scores")
        folders += [stored.path] if stored.manifest["about"]["evaluate"] == artifacts.sha256(manifest) else []
    return folders


def look(run: RunInfo, runs: Sequence[RunInfo]) -> Look:
    """Return a run's look: the colour by the method's family, its shade by the method, the dashes by the setting.

    The colour depends on the method alone, so that another run changes no colour.
    """
    families = {name: method.family for name, method in METHODS.items()}
    known, family = list(dict.fromkeys(families.values())), families.get(run.method, run.method)
    colours = [known.index(family) if family in known else crc32(family.encode()) % COLOURS]
    colours += range(len(known), COLOURS) if not family else ()  # methods without a family have little in common
    number = [name for name, of in families.items() if of == family].index(run.method) if family in known else 0
    base = f"var(--m{colours[number % len(colours)] % COLOURS})"
    shades = (base, f"color-mix(in oklab, {base} 55%, var(--ink))", f"color-mix(in oklab, {base} 55%, var(--page))")
    settings = dict.fromkeys(r.setting for r in runs if (r.method, r.dataset) == (run.method, run.dataset))
    return Look(shades[number // len(colours) % 3], list(settings).index(run.setting) % 3)


def write_comparison(table: Table, folder: Path) -> None:
    """Write ``comparison.parquet`` and ``comparison.csv``, a row for each figure, sorted."""
    whole = pyarrow.concat_tables([SCHEMA.empty_table(), *(of_run.stored for of_run in table.scores.values())])
    rows = whole.sort_by([(column, "ascending") for column in KEYS])
    pyarrow.parquet.write_table(rows, folder / "comparison.parquet")
    write_csv(folder / "comparison.csv", COLUMNS, (row.values() for row in rows.to_pylist()))


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as CSV: floats in their shortest form that reads back equal, None as an empty field."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


@cache
def paper_figures() -> dict[tuple[str, ...], tuple[str, str]]:
    """Read the papers' figures: (dataset, method, setting, metric) -> the figure as printed there, and its source."""
    with open(Path(__file__).with_name("paper.csv"), encoding="utf-8", newline="") as file:
        return {
            (row["dataset"], row["method"], row["setting"], row["metric"]): (
                f"{row['value']} ± {row['error']}",
                f"{row['paper']}, {row['table']}",
            )
            for row in csv.DictReader(file)
        }


def labels(runs: Sequence[RunInfo], space: str = "_") -> dict[str, str]:
    """Name each run by its method, the words joined by ``space``, and its setting if the method has several."""
    several = {run.method for run in runs if len({r.setting for r in runs if r.method == run.method}) > 1}
    return {r.key: r.method.replace("_", space) + (f" {r.setting}" if r.method in several else "") for r in runs}


def described(network: Mapping[str, Any]) -> str:
    """Return a description such as ``mlp 64-64`` or ``convnet 16, instance``, from the sizes that vary between runs."""
    hidden = "-".join(map(str, network.get("hidden", ())))
    width = f"{network['width']}" if "width" in network else ""
    blocks = f"{network['blocks']} blocks" if "blocks" in network else ""
    norm = str(network["norm"]) if network.get("norm", "none") != "none" else ""
    return " ".join([network["name"], ", ".join(filter(None, (hidden, width, blocks, norm)))]).strip()
