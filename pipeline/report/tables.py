"""The report's numbers: every run's stored scores as one tidy table, and its summaries (see :mod:`.means`)."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow
import pyarrow.parquet

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError

from .means import Mean, mean

COLUMNS: Final = ("dataset", "method", "setting", "seed", "split", "metric", "value", "n")
CALIBRATION: Final = ("seed", "bin", "lower", "upper", "count", "confidence", "accuracy")
HEADLINE_METRICS: Final = ("accuracy", "nll", "ece", "rmse")
PAPER: Final = Path(__file__).parent / "paper.csv"


@dataclass(frozen=True)
class RunInfo:
    """One row of ``runs`` and where its results lie; a result that is absent becomes a note.

    Attributes:
        evaluate: folder of the ``evaluate`` artifact.
        record: the run's ``.run.json``.
        upstream: ``.run.json`` of the artifacts that it was made from; their warnings are shown too.
        fold: how many consecutive seeds of the scores are one data split, see ``means.fold``.
    """

    key: str
    dataset: str
    method: str
    setting: str
    evaluate: Path
    record: Path
    upstream: tuple[Path, ...] = ()
    fold: int = 1


@dataclass(frozen=True)
class Printed:
    """A paper's figure as it prints it, and where."""

    figure: str
    source: str


Paper = dict[tuple[str, str, str, str], Printed]


@dataclass(frozen=True)
class Table:
    """All that was found: scores and calibration bins with a ``run`` column, notes and warnings by run."""

    runs: tuple[RunInfo, ...]
    scores: pd.DataFrame
    calibration: pd.DataFrame
    notes: Mapping[str, tuple[str, ...]]
    warnings: Mapping[str, tuple[str, ...]]
    figures: Mapping[tuple[str, str], pd.DataFrame]  # (run, metric) -> its rows of scores

    @cached_property
    def folds(self) -> Mapping[str, int]:
        """Run key -> how many consecutive seeds are one data split."""
        return {run.key: run.fold for run in self.runs}

    def datasets(self) -> list[str]:
        return list(dict.fromkeys(run.dataset for run in self.runs))

    def of(self, dataset: str) -> list[RunInfo]:
        return [run for run in self.runs if run.dataset == dataset]

    def remarks(self, run: str) -> list[tuple[str, str]]:
        """The run's notes and warnings, as (kind, text)."""
        told = {"note": self.notes.get(run, ()), "warn": self.warnings.get(run, ())}
        return [(kind, text) for kind, texts in told.items() for text in texts]

    def has(self, dataset: str, metric: str) -> bool:
        """Whether any run on ``dataset`` has ``metric`` on its test rows."""
        s = self.scores
        return bool(((s.dataset == dataset) & (s.split == "test") & (s.metric == metric)).any())

    def splits(self, dataset: str, prefix: str) -> list[str]:
        """The data set's splits that start with ``prefix``, sorted."""
        names = self.scores.split[self.scores.dataset == dataset].unique()
        return sorted(str(name) for name in names if str(name).startswith(prefix))

    def stat(self, run: str, metric: str, wanted: Callable[[str], bool] | str) -> Mean | None:
        """The figure of ``metric`` over the sets that are ``wanted`` (one name, or a test on names)."""
        rows = self.figures.get((run, metric))
        if rows is None:
            return None
        rows = rows[rows.split == wanted] if isinstance(wanted, str) else rows[rows.split.map(wanted).astype(bool)]
        return mean(zip(rows.seed.tolist(), rows.value.tolist(), strict=True), self.folds[run])


def gather(runs: Sequence[RunInfo]) -> Table:
    """Read every run's tables.

    Raises:
        ArtifactError: a table that is there is altered, truncated or lacks a column.
    """
    scores, bins, notes, warnings = [], [], {}, {}
    for run in runs:
        warnings[run.key] = tuple(_warnings(run, _record(run.record)))
        if not (run.evaluate / artifacts.MANIFEST).is_file():
            notes[run.key] = ("no result: its evaluation is absent",)
            continue
        folder = artifacts.load(run.evaluate, "evaluate").path
        table = _read(folder / "scores.parquet", COLUMNS)
        scores.append(table.assign(run=run.key))
        if (folder / "calibration.parquet").is_file():
            bins.append(_read(folder / "calibration.parquet", CALIBRATION).assign(run=run.key))
    every = _concat(scores, COLUMNS)
    figures = {(str(run), str(metric)): rows for (run, metric), rows in every.groupby(["run", "metric"])}
    return Table(tuple(runs), every, _concat(bins, CALIBRATION), notes, warnings, figures)


def comparison(table: Table) -> pd.DataFrame:
    """The tidy table that is published: one figure a row, sorted."""
    rows = table.scores[list(COLUMNS)].copy()
    order = ["dataset", "method", "setting", "seed", "split", "metric"]
    return rows.sort_values(order, kind="stable").reset_index(drop=True)


def write_comparison(rows: pd.DataFrame, folder: Path) -> None:
    """``comparison.csv`` (floats in full, shortest form that reads back equal) and ``comparison.parquet``."""
    text = [",".join(COLUMNS)]
    for row in rows.itertuples(index=False):
        text.append(",".join(repr(v) if isinstance(v, float) else str(v) for v in row))
    (folder / "comparison.csv").write_text("\n".join(text) + "\n")
    arrow = pyarrow.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    pyarrow.parquet.write_table(arrow, folder / "comparison.parquet")


def headline_metrics(table: Table) -> dict[str, dict[str, float | None]]:
    """Per run, the figures that equal runs repeat exactly (no times): for ``dvc metrics``."""
    found = {run.key: {m: table.stat(run.key, m, "test") for m in HEADLINE_METRICS} for run in table.runs}
    return {
        key: {m: stat.value if math.isfinite(stat.value) else None for m, stat in stats.items() if stat}
        for key, stats in found.items()
    }


def merged_bins(table: Table, run: str) -> pd.DataFrame:
    """The run's calibration bins over all seeds: counts add, means are weighted by count."""
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
    """(dataset, method, setting, metric) -> the paper's figure, in the unit of the column (% for accuracy)."""
    with open(path, newline="") as file:
        return {
            (r["dataset"], r["method"], r["setting"], r["metric"]): Printed(
                f"{r['value']} ± {r['error']}", f"{r['paper']}, {r['table']}"
            )
            for r in csv.DictReader(file)
        }


def corrupted(split: str) -> bool:
    return split.startswith("corrupted:")


def _concat(tables: list[pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({c: [] for c in [*columns, "run"]})


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        table = pyarrow.parquet.read_table(path).to_pandas()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: is missing or not a Parquet table ({error})") from None
    if missing := [c for c in columns if c not in table.columns]:
        raise ArtifactError(f"{path}: must have the columns {', '.join(columns)}; lacks {', '.join(missing)}")
    return table[list(columns)]


def _record(path: Path) -> dict[str, Any]:
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
        for w in _record(path).get("warnings", ())
    ]
