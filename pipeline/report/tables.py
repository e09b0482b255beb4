"""The stored results of all runs: read, summarised, and written as the report's tables."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow
import pyarrow.parquet

from bdl_pipe import artifacts, scores
from bdl_pipe.errors import ArtifactError
from bdl_pipe.scores import COLUMNS, KEYS, SCHEMA, Estimate, Quantity, RunScores, Set

CALIBRATION: Final = ("split", "seed", "bin", "lower", "upper", "count", "confidence", "accuracy")
PAPER: Final = Path(__file__).parent / "paper.csv"
Paper = Mapping[tuple[str, str, str, str], tuple[str, str]]
"""(dataset, method, setting, metric) -> a paper's figure as the paper prints it, and its source."""


@dataclass(frozen=True)
class Step:
    """A data set's place in class-incremental learning.

    Attributes:
        source: the name of the source of the data set's rows.
        group: a text that all steps of one experiment, in every order of the classes, have in common.
        order: the number of the order of the classes.
        number: the number of the step, from 0.
        classes: how many classes are new in each step.
    """

    source: str
    group: str
    order: int
    number: int
    classes: int


@dataclass(frozen=True)
class CoresetInfo:
    """An entry of ``coresets`` and the places of its artifact and its record.

    Attributes:
        classes: the classes' names, if known.
    """

    key: str
    dataset: str
    method: str
    path: Path
    classes: tuple[str, ...] = ()
    record: Path | None = None

    @property
    def is_absent(self) -> bool:
        """Say whether there is no such artifact."""
        return not (self.path / artifacts.MANIFEST).is_file()


@dataclass(frozen=True)
class RunInfo:
    """An entry of ``runs`` and the places of its results; a result that is absent becomes a note.

    Attributes:
        evaluate: folder of the ``evaluate`` artifact.
        record: the run's ``.run.json``.
        upstream: ``.run.json`` of the artifacts that the run was fitted from; their warnings are shown too.
        step: the step of class-incremental learning that the data set is, if it is one.
        coreset: the coreset that the run predicts from, if it does.
        network: the architecture that predicts, in short.
    """

    key: str
    dataset: str
    method: str
    setting: str
    evaluate: Path
    record: Path
    upstream: tuple[Path, ...] = ()
    step: Step | None = None
    coreset: CoresetInfo | None = None
    network: str = ""


@dataclass(frozen=True)
class Table:
    """All stored results of some runs.

    Attributes:
        scores: run -> its scores, for runs that have some.
        calibration: the bins of all runs, with a ``run`` column.
        notes, warnings: run -> texts.
        paper: the papers' figures.
        coresets: the coresets whose images are shown.
    """

    runs: tuple[RunInfo, ...]
    scores: Mapping[str, RunScores]
    calibration: pd.DataFrame
    notes: Mapping[str, tuple[str, ...]]
    warnings: Mapping[str, tuple[str, ...]]
    paper: Paper
    coresets: Sequence[CoresetInfo]

    def datasets(self) -> list[str]:
        """List the data sets of the runs."""
        return list(dict.fromkeys(run.dataset for run in self.runs))

    def of(self, dataset: str) -> list[RunInfo]:
        """List the runs on a data set."""
        return [run for run in self.runs if run.dataset == dataset]

    def remarks(self, run: str) -> list[tuple[str, str]]:
        """List the run's notes and warnings, as (kind, text)."""
        remarks = {"note": self.notes.get(run, ()), "warn": self.warnings.get(run, ())}
        return [(kind, text) for kind, texts in remarks.items() for text in texts]

    def quantities(self, dataset: str) -> set[Quantity]:
        """Return the quantities that any run on ``dataset`` has a score of."""
        known = [self.scores[run.key].quantities for run in self.of(dataset) if run.key in self.scores]
        return {quantity for quantities in known for quantity in quantities}

    def has(self, dataset: str, metric: str) -> bool:
        """Say whether any run on ``dataset`` has ``metric`` on its test rows."""
        return Quantity(metric) in self.quantities(dataset)

    def names(self, dataset: str, where: Set) -> list[str]:
        """List the corruptions, or the other data sets, that any run on ``dataset`` was scored on; sorted."""
        return sorted({of.name for of in self.quantities(dataset) if of.set == where and of.name is not None})

    def estimate(self, run: str, wanted: Quantity) -> Estimate | None:
        """Return the mean of a quantity and its error; None where the run has no such score."""
        return self.scores[run].estimate(wanted) if run in self.scores else None

    def groups(self, run: str, wanted: Quantity) -> list[float]:
        """List the independent values whose mean :meth:`estimate` is."""
        return [scores.average(group) for group in self.scores[run].groups(wanted)] if run in self.scores else []


def gather(runs: Sequence[RunInfo], coresets: Sequence[CoresetInfo] = ()) -> Table:
    """Read every run's tables, and the papers' figures.

    Raises:
        ArtifactError: a table that exists is altered, truncated or of an older version.
    """
    known, bins, notes, warnings = dict[str, RunScores](), [], {}, {}
    for run in runs:
        warnings[run.key] = tuple(_warnings(run))
        if not (run.evaluate / artifacts.MANIFEST).is_file():
            notes[run.key] = ("no result: its evaluation is absent",)
            continue
        folder = artifacts.load(run.evaluate, "evaluate").path
        known[run.key] = RunScores(scores.read(folder / "scores.parquet"))
        if (folder / "calibration.parquet").is_file():
            bins.append(_read_bins(folder / "calibration.parquet").assign(run=run.key))
    calibration = pd.concat(bins, ignore_index=True) if bins else pd.DataFrame(columns=[*CALIBRATION, "run"])
    return Table(tuple(runs), known, calibration, notes, warnings, paper_figures(), coresets)


def write_comparison(table: Table, folder: Path) -> None:
    """Write ``comparison.parquet`` and ``comparison.csv``, one figure a row, sorted."""
    whole = pyarrow.concat_tables([SCHEMA.empty_table(), *(known.stored for known in table.scores.values())])
    rows = whole.sort_by([(column, "ascending") for column in KEYS])
    pyarrow.parquet.write_table(rows, folder / "comparison.parquet")
    write_csv(folder / "comparison.csv", COLUMNS, (row.values() for row in rows.to_pylist()))


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as CSV: floats in their shortest form that reads back equal, None as nothing."""
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def merged_bins(table: Table, run: str) -> pd.DataFrame:
    """Merge the run's calibration bins over all splits and seeds: counts add, means are weighted by count."""
    rows = table.calibration[table.calibration.run == run]
    sums = rows[["confidence", "accuracy"]].mul(rows["count"], axis=0).where(rows["count"] > 0, 0.0)
    edges = rows.groupby("bin")[["lower", "upper"]].first()
    bins = rows[["count"]].join(sums).groupby(rows["bin"]).sum()
    return edges.assign(count=bins["count"]).join(bins[["confidence", "accuracy"]].div(bins["count"], axis=0))


def paper_figures(path: Path = PAPER) -> Paper:
    """Read the papers' figures, in the unit of the column (% for accuracy)."""
    with open(path, newline="") as file:
        return {
            (r["dataset"], r["method"], r["setting"], r["metric"]): (
                f"{r['value']} ± {r['error']}",
                f"{r['paper']}, {r['table']}",
            )
            for r in csv.DictReader(file)
        }


def read_record(path: Path) -> dict[str, Any]:
    """Read a ``.run.json``; return {} if there is no such file.

    Raises:
        ArtifactError: the file is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: is truncated or not JSON ({error})") from None


def labels(runs: Sequence[RunInfo], space: str = "_") -> dict[str, str]:
    """Name each run by its method, the words joined by ``space``, and its setting if the method has several."""
    several = {run.method for run in runs if len({r.setting for r in runs if r.method == run.method}) > 1}
    return {r.key: r.method.replace("_", space) + (f" {r.setting}" if r.method in several else "") for r in runs}


def is_finite(estimate: Estimate | None) -> bool:
    """Say whether there is an estimate and its mean is finite."""
    return estimate is not None and math.isfinite(estimate.mean)


def _read_bins(path: Path) -> pd.DataFrame:
    try:
        return pyarrow.parquet.read_table(path).select(list(CALIBRATION)).to_pandas()
    except (OSError, pyarrow.ArrowInvalid, KeyError) as error:
        rule = f"must be a Parquet table with the columns {', '.join(CALIBRATION)}"
        raise ArtifactError(f"{path}: {rule} ({error}); make it again") from None


def _warnings(run: RunInfo) -> list[str]:
    """List the run's own warnings, then those of its upstream artifacts with their names."""
    own = [str(warning) for warning in read_record(run.record).get("warnings", ())]
    return own + [
        f"{path.name.removesuffix('.run.json')}: {warning}"
        for path in run.upstream
        for warning in read_record(path).get("warnings", ())
    ]
