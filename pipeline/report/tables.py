"""The report's numbers: every run's stored scores as one tidy table, and their means (see :mod:`.estimates`)."""

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

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError

from ..core import scores
from ..core.scores import COLUMNS, KEYS, SCHEMA, Quantity, RunScores, Set
from . import estimates
from .estimates import Estimate
from .images import CoresetInfo

CALIBRATION: Final = ("split", "seed", "bin", "lower", "upper", "count", "confidence", "accuracy")
HEADLINE_METRICS: Final = ("accuracy", "nll", "ece", "rmse")
PAPER: Final = Path(__file__).parent / "paper.csv"


@dataclass(frozen=True)
class Step:
    """A data set's place in class-incremental learning.

    Attributes:
        source: the name of where its rows come from.
        group: all that the steps of all orders have in common, as one name.
        order: of the classes.
        number: of the step, from 0.
        classes: how many are new in each step.
    """

    source: str
    group: str
    order: int
    number: int
    classes: int


@dataclass(frozen=True)
class RunInfo:
    """An entry of ``runs`` and the places of its results; a result that is absent becomes a note.

    Attributes:
        evaluate: folder of the ``evaluate`` artifact.
        record: the run's ``.run.json``.
        upstream: ``.run.json`` of the artifacts that it was made from; their warnings are shown too.
        step: where its data set is a step of class-incremental learning.
        coreset: what it predicts from, if that is one.
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
class Printed:
    """A paper's figure as the paper prints it, and its source."""

    figure: str
    source: str


Paper = dict[tuple[str, str, str, str], Printed]


@dataclass(frozen=True)
class Table:
    """All stored results of some runs.

    Attributes:
        stored: run -> its scores as they are stored, for runs that have some.
        scores: the same by what they are of.
        calibration: the bins of all runs, with a ``run`` column.
        notes, warnings: run -> texts.
    """

    runs: tuple[RunInfo, ...]
    stored: Mapping[str, pyarrow.Table]
    scores: Mapping[str, RunScores]
    calibration: pd.DataFrame
    notes: Mapping[str, tuple[str, ...]]
    warnings: Mapping[str, tuple[str, ...]]

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

    def has(self, dataset: str, metric: str) -> bool:
        """Say whether any run on ``dataset`` has ``metric`` on its test rows."""
        return Quantity(metric) in self._quantities(dataset)

    def names(self, dataset: str, where: Set) -> list[str]:
        """List the corruptions, or the other data sets, that any run on ``dataset`` was scored on; sorted."""
        return sorted({of.name for of in self._quantities(dataset) if of.set == where and of.name is not None})

    def ood_scores(self, runs: Sequence[RunInfo]) -> list[str]:
        """List the scores by which any of ``runs`` tells other data from its own; sorted."""
        known = [self.scores[run.key].quantities for run in runs if run.key in self.scores]
        return sorted(
            {of.score for quantities in known for of in quantities if of.set == "ood" and of.score is not None}
        )

    def severities(self, dataset: str) -> list[int]:
        """List the severities of corruptions that any run on ``dataset`` was scored on, ascending."""
        return sorted({of.severity for of in self._quantities(dataset) if of.severity is not None})

    def estimate(self, run: str, wanted: Quantity) -> Estimate | None:
        """Return the mean of a quantity and its error; None where the run has no such score."""
        return estimates.of_run(self.scores[run], wanted) if run in self.scores else None

    def groups(self, run: str, wanted: Quantity) -> list[float]:
        """List the independent values whose mean :meth:`estimate` is."""
        return [estimates.average(group) for group in self.scores[run].groups(wanted)] if run in self.scores else []

    def _quantities(self, dataset: str) -> set[Quantity]:
        known = [self.scores[run.key].quantities for run in self.of(dataset) if run.key in self.scores]
        return {quantity for quantities in known for quantity in quantities}


def gather(runs: Sequence[RunInfo]) -> Table:
    """Read every run's tables.

    Raises:
        ArtifactError: a table that is there is altered, truncated or of an older version.
    """
    stored, bins, notes, warnings = dict[str, pyarrow.Table](), [], {}, {}
    for run in runs:
        warnings[run.key] = tuple(_warnings(run, read_record(run.record)))
        if not (run.evaluate / artifacts.MANIFEST).is_file():
            notes[run.key] = ("no result: its evaluation is absent",)
            continue
        folder = artifacts.load(run.evaluate, "evaluate").path
        stored[run.key] = scores.read(folder / "scores.parquet")
        if (folder / "calibration.parquet").is_file():
            bins.append(_read(folder / "calibration.parquet", CALIBRATION).assign(run=run.key))
    by_quantity = {key: RunScores(table) for key, table in stored.items()}
    return Table(tuple(runs), stored, by_quantity, _concat(bins, CALIBRATION), notes, warnings)


def comparison(table: Table) -> pyarrow.Table:
    """Return the tidy table that is published: one figure a row, sorted."""
    rows = pyarrow.concat_tables([SCHEMA.empty_table(), *table.stored.values()])
    return rows.sort_by([(column, "ascending") for column in KEYS])


def write_comparison(rows: pyarrow.Table, folder: Path) -> None:
    """Write ``comparison.csv`` and ``comparison.parquet``.

    In the first, floats are in full (the shortest form that reads back equal), and what does not apply is empty.
    """
    text = [",".join(COLUMNS)]
    for row in rows.to_pylist():
        cells = ("" if v is None else repr(v) if isinstance(v, float) else str(v) for v in row.values())
        text.append(",".join(cells))
    (folder / "comparison.csv").write_text("\n".join(text) + "\n")
    pyarrow.parquet.write_table(rows, folder / "comparison.parquet")


def headline_metrics(table: Table) -> dict[str, dict[str, float | None]]:
    """Return, for each run, the figures that equal runs repeat exactly (no times): for ``dvc metrics``."""
    runs = {run.key: {m: table.estimate(run.key, Quantity(m)) for m in HEADLINE_METRICS} for run in table.runs}
    return {
        key: {m: known.mean if math.isfinite(known.mean) else None for m, known in figures.items() if known}
        for key, figures in runs.items()
    }


def merged_bins(table: Table, run: str) -> pd.DataFrame:
    """Merge the run's calibration bins over all splits and seeds: counts add, means are weighted by count."""
    rows = table.calibration[table.calibration.run == run]
    rows = rows.assign(
        c=(rows["confidence"] * rows["count"]).where(rows["count"] > 0, 0.0),
        a=(rows["accuracy"] * rows["count"]).where(rows["count"] > 0, 0.0),
    )
    bins = rows.groupby("bin", sort=True).agg(
        {"lower": "first", "upper": "first", "count": "sum", "c": "sum", "a": "sum"}
    )
    return bins.assign(confidence=bins.c / bins["count"], accuracy=bins.a / bins["count"]).drop(columns=["c", "a"])


def paper_figures(path: Path = PAPER) -> Paper:
    """Read the papers' figures, in the unit of the column (% for accuracy), by (dataset, method, setting, metric)."""
    with open(path, newline="") as file:
        return {
            (r["dataset"], r["method"], r["setting"], r["metric"]): Printed(
                f"{r['value']} ± {r['error']}", f"{r['paper']}, {r['table']}"
            )
            for r in csv.DictReader(file)
        }


def _concat(tables: list[pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({c: [] for c in [*columns, "run"]})


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        table = pyarrow.parquet.read_table(path).to_pandas()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: is missing or not a Parquet table ({error})") from None
    if missing := [c for c in columns if c not in table.columns]:
        raise ArtifactError(
            f"{path}: must have the columns {', '.join(columns)}; lacks {', '.join(missing)}; make it again"
        )
    return table[list(columns)]


def read_record(path: Path) -> dict[str, Any]:
    """Read a ``.run.json``; return {} where there is none.

    Raises:
        ArtifactError: there is something else.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: is truncated or not JSON ({error})") from None


def _warnings(run: RunInfo, record: Mapping[str, Any]) -> list[str]:
    own = [str(w) for w in record.get("warnings", ())]
    return own + [
        f"{path.name.removesuffix('.run.json')}: {w}"
        for path in run.upstream
        for w in read_record(path).get("warnings", ())
    ]
