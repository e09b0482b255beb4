"""The stored evaluation of a run: scores and their means, calibration, and the rows' log-likelihoods.

The table ``scores.parquet`` has a row for each figure, and a column for each thing that the figure depends on.

The report, the papers' tables and the studies use the mean and the standard error from here. The independent values of
a run are its data splits or, if it has one split, its seeds. Seeds of one split share their training and test rows, so
they are averaged first. The standard error is s / sqrt(n) over these n averages, s with n - 1 in the denominator.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .errors import ArtifactError

if TYPE_CHECKING:
    import pandas as pd

Set = Literal["test", "corrupted", "ood", "transfer", "cost"]
VERSION: Final = b"2"  # A file with other columns has another version.
DEFAULT_SCORE: Final = "max_prob"  # The title of a metric omits this score.
SCHEMA: Final = pa.schema(
    [
        ("dataset", pa.string()),
        ("method", pa.string()),
        ("setting", pa.string()),
        ("split", pa.int32()),
        ("seed", pa.int32()),
        ("set", pa.string()),
        ("name", pa.string()),
        ("severity", pa.int8()),
        ("score", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("n", pa.int64()),
    ],
    metadata={"version": VERSION},
)
COLUMNS: Final = tuple(SCHEMA.names)
KEYS: Final = COLUMNS[:-2]  # No two rows agree in all of these columns.
CALIBRATION: Final = ("split", "seed", "bin", "lower", "upper", "count", "confidence", "accuracy")

SAME_CLASS: Final = ("split", "seed", "share", "joint", "product")
RISK: Final = ("split", "seed", "coverage", "risk")
PIT: Final = ("split", "seed", "bin", "count")


@dataclass(frozen=True)
class Quantity:
    """A quantity that a score measures: a metric on some rows.

    A quantity may be the average of several quantities, see ``name`` and ``severity``.

    Attributes:
        metric: accuracy, nll, auroc, fit_seconds, …
        set: ``test`` rows, ``corrupted`` rows, another data set without (``ood``) or with (``transfer``) our labels, or
            the ``cost`` of the run.
        name: the corruption, or the other data set. None on test rows and for a cost; otherwise None means all names.
        severity: the corruption's severity. None on other sets; on corrupted rows None means all severities.
        score: the OOD score: max_prob, mutual_information, …; None for other metrics.
    """

    metric: str
    set: Set = "test"
    name: str | None = None
    severity: int | None = None
    score: str | None = None

    def covers(self, other: "Quantity") -> bool:
        """Return whether ``other`` is this quantity, or one of the quantities that it averages."""
        return (
            (self.metric, self.set, self.score) == (other.metric, other.set, other.score)
            and self.name in (None, other.name)
            and self.severity in (None, other.severity)
        )

    @property
    def title(self) -> str:
        """Return the metric's name with a non-default OOD score's name: ``auroc_mutual_information``."""
        return self.metric if self.score in (None, DEFAULT_SCORE) else f"{self.metric}_{self.score}"


_QUANTITY: Final = tuple(Quantity.__dataclass_fields__)


class Score(NamedTuple):
    """A value of one fit."""

    split: int
    seed: int
    of: Quantity
    value: float
    n: int


def table(dataset: str, method: str, setting: str, scores: Iterable[Score]) -> pa.Table:
    """Return the table of a run's scores, as it is stored."""
    run = {"dataset": dataset, "method": method, "setting": setting}
    rows = [
        run | {"split": s.split, "seed": s.seed, **vars(s.of), "value": float(s.value), "n": int(s.n)} for s in scores
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def of_fit(stored: pa.Table, split: int, seed: int) -> pa.Table:
    """Return a table of one fit with the split and the seed as its first columns, so that tables of fits can be joined.

    Fits' tables are stored in this form; see :func:`merged_bins` and :func:`mean_same_class`.
    """
    count, columns = len(stored), dict(zip(stored.column_names, stored.columns, strict=True))
    return pa.table({n: pa.array([v] * count, pa.int32()) for n, v in (("split", split), ("seed", seed))} | columns)


def by_fit(table: pa.Table) -> Iterator[tuple[tuple[int, int], pa.Table]]:
    """Yield ((split, seed), rows) of each fit, in order."""
    fits = table.select(["split", "seed"]).group_by(["split", "seed"]).aggregate([]).to_pylist()
    for split, seed in sorted((one["split"], one["seed"]) for one in fits):
        yield (split, seed), table.filter((pc.field("split") == split) & (pc.field("seed") == seed))


def parquet(path: Path) -> pa.Table:
    """Read a Parquet file.

    Raises:
        ArtifactError: the file is missing or is not a Parquet table.
    """
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: is missing or not a Parquet table ({error})") from None


def read(path: Path) -> pa.Table:
    """Read the stored scores of a run.

    Raises:
        ArtifactError: the file is missing, is not a Parquet table, or has another version.
    """
    stored = parquet(path)
    if not stored.schema.equals(SCHEMA, check_metadata=True):
        rule = f"must have version {VERSION.decode()} of the columns {', '.join(COLUMNS)}, each of its type"
        raise ArtifactError(f"{path}: {rule}, got {', '.join(stored.schema.names)}; make it again")
    return stored


class RunScores:
    """All scores of one run, by the quantity that they measure.

    Attributes:
        stored: the table.
        splits: the number of the run's splits.
        count: the number of independent values: one for each split or, if there is one split, one for each seed.
        quantities: the quantities that have scores.
    """

    def __init__(self, stored: pa.Table) -> None:
        """Create the scores from the table of :func:`read`."""
        self.stored = stored
        self.splits = len(set(stored.column("split").to_pylist()))
        unit = "split" if self.splits > 1 else "seed"
        self.count = len(set(stored.column(unit).to_pylist()))
        self._values = defaultdict[Quantity, list[tuple[int, float]]](list)
        for row in stored.to_pylist():
            self._values[Quantity(*(row[name] for name in _QUANTITY))].append((row[unit], row["value"]))
        self.quantities: Sequence[Quantity] = tuple(self._values)

    def groups(self, wanted: Quantity) -> list[list[float]]:
        """List all values of a quantity: a list for each split or, if there is one split, for each seed."""
        groups = defaultdict[int, list[float]](list)
        for quantity in [wanted] if wanted in self._values else filter(wanted.covers, self.quantities):
            for unit, value in self._values[quantity]:
                groups[unit].append(value)
        return [groups[unit] for unit in sorted(groups)]

    def values(self, wanted: Quantity, scale: float = 1.0) -> list[float]:
        """List the independent values of a quantity, times ``scale``: the mean of each group."""
        return [average([scale * value for value in group]) for group in self.groups(wanted)]

    def estimate(self, wanted: Quantity, scale: float = 1.0) -> "Estimate | None":
        """Estimate a quantity from its :meth:`values`; None if it has no score."""
        return estimate(self.values(wanted, scale))


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values and its standard error: None for one value, NaN if a value is not finite."""

    mean: float
    error: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Estimate the mean of independent values; None if there are none."""
    n = len(values)
    if n == 0:
        return None
    centre = average(values)
    if n == 1:
        return Estimate(centre, None, n)
    try:
        squares = math.fsum((v - centre) ** 2 for v in values)
    except OverflowError:
        squares = math.inf
    return Estimate(centre, math.sqrt(squares / (n - 1) / n), n)


def average(values: Sequence[float]) -> float:
    """Return the mean, which may be infinite or NaN."""
    if all(map(math.isfinite, values)):
        try:
            return math.fsum(values) / len(values)
        except OverflowError:
            pass
    return float(sum(values)) / len(values)


def merged_bins(path: Path) -> "pd.DataFrame":
    """Read a run's ``calibration.parquet``, merged over splits and seeds: counts add, means are weighted by count.

    Raises:
        ArtifactError: the file is not a table of calibration bins.
    """
    rows = _read(path, CALIBRATION)
    sums = rows[["confidence", "accuracy"]].mul(rows["count"], axis=0).where(rows["count"] > 0, 0.0)
    edges = rows.groupby("bin")[["lower", "upper"]].first()
    bins = rows[["count"]].join(sums).groupby(rows["bin"]).sum()
    return edges.assign(count=bins["count"]).join(bins[["confidence", "accuracy"]].div(bins["count"], axis=0))


def mean_same_class(path: Path) -> "pd.DataFrame":
    """Read a run's ``same_class.parquet``: the columns joint and product by share, means over splits and seeds.

    Raises:
        ArtifactError: the file is not a table with these columns.
    """
    return _read(path, SAME_CLASS).groupby("share")[["joint", "product"]].mean()


def mean_risk(path: Path) -> "pd.Series":
    """Read a run's ``risk.parquet``: the risk by coverage, means over splits and seeds.

    Raises:
        ArtifactError: the file is not a table of risks by coverage.
    """
    return _read(path, RISK).groupby("coverage")["risk"].mean()


def counted_pit(path: Path) -> "pd.Series":
    """Read a run's ``pit.parquet``: the number of values of F(y) by bin, in all splits and seeds together.

    Raises:
        ArtifactError: the file is not a table of counts by bin.
    """
    return _read(path, PIT).groupby("bin")["count"].sum()


def _read(path: Path, columns: Sequence[str]) -> "pd.DataFrame":
    try:
        return pq.read_table(path).select(list(columns)).to_pandas()
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        rule = f"must be a Parquet table with the columns {', '.join(columns)}"
        raise ArtifactError(f"{path}: {rule} ({error}); make it again") from None
