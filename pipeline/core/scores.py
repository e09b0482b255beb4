"""The stored scores of a run, ``scores.parquet``: one figure a row, and a column for each thing that it depends on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bdl_pipe.errors import ArtifactError

Set = Literal["test", "corrupted", "ood", "transfer", "cost"]
VERSION: Final = b"2"  # of the columns
DEFAULT_SCORE: Final = "max_prob"  # metrics by it are called by their own name alone
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
KEYS: Final = COLUMNS[:-2]  # no two rows agree in all of them


@dataclass(frozen=True)
class Quantity:
    """A quantity that a score measures: a metric, on some rows.

    With ``name`` or ``severity`` left open it stands for several quantities, which are averaged.

    Attributes:
        metric: accuracy, nll, auroc, fit_seconds, …
        set: the test rows, corrupted rows, another data set without or with labels of ours; or the cost of it all.
        name: the corruption, or the other data set; None for the test rows and the cost, elsewhere: of all.
        severity: of the corruption; None elsewhere, and among corruptions: of all.
        score: by what the unfamiliar is told: max_prob, mutual_information, …; None for other metrics.
    """

    metric: str
    set: Set = "test"
    name: str | None = None
    severity: int | None = None
    score: str | None = None

    def covers(self, other: "Quantity") -> bool:
        """Say whether ``other`` is one of the quantities that this one stands for."""
        return (
            (self.metric, self.set, self.score) == (other.metric, other.set, other.score)
            and self.name in (None, other.name)
            and self.severity in (None, other.severity)
        )

    @property
    def title(self) -> str:
        """Return the metric's name, with that of its score unless it is the usual one: ``auroc_mutual_information``."""
        return self.metric if self.score in (None, DEFAULT_SCORE) else f"{self.metric}_{self.score}"


class Score(NamedTuple):
    """A figure of one fit."""

    split: int
    seed: int
    of: Quantity
    value: float
    n: int


def table(dataset: str, method: str, setting: str, scores: Iterable[Score]) -> pa.Table:
    """Return the scores of a run as the table that is stored."""
    rows = [_row(score) | {"dataset": dataset, "method": method, "setting": setting} for score in scores]
    return pa.Table.from_pylist(rows, SCHEMA)


def read(path: Path) -> pa.Table:
    """Read the stored scores of a run.

    Raises:
        ArtifactError: the file is missing, is no Parquet table, or is of another version.
    """
    try:
        stored = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: is missing or not a Parquet table ({error})") from None
    version = (stored.schema.metadata or {}).get(b"version")
    if version != VERSION:
        got = "none" if version is None else version.decode(errors="replace")
        raise ArtifactError(f"{path}: the version of its columns must be {VERSION.decode()}, got {got}; make it again")
    if not stored.schema.equals(SCHEMA):
        rule = f"must have the columns {', '.join(COLUMNS)}, each of its type"
        raise ArtifactError(f"{path}: {rule}, got {', '.join(stored.schema.names)}; make it again")
    return stored


class RunScores:
    """All scores of one run, by the quantity that they measure.

    Independent are the data splits of a run that has several, and its seeds where there is one split.
    """

    def __init__(self, stored: pa.Table) -> None:
        """Take the columns of :func:`read`."""
        scores = [_score(row) for row in stored.to_pylist()]
        several = len({score.split for score in scores}) > 1
        self.quantities: Sequence[Quantity] = tuple(dict.fromkeys(score.of for score in scores))
        self._values = defaultdict[Quantity, list[tuple[int, float]]](list)
        for score in scores:
            self._values[score.of].append((score.split if several else score.seed, score.value))
        self._alike = defaultdict[tuple[str, Set, str | None], list[Quantity]](list)
        for quantity in self.quantities:
            self._alike[quantity.metric, quantity.set, quantity.score].append(quantity)

    def groups(self, wanted: Quantity) -> list[list[float]]:
        """List all values of a quantity, in one list for each split, or for each seed where there is one split."""
        groups = defaultdict[int, list[float]](list)
        for quantity in self._alike.get((wanted.metric, wanted.set, wanted.score), ()):
            if wanted.covers(quantity):
                for unit, value in self._values[quantity]:
                    groups[unit].append(value)
        return [groups[unit] for unit in sorted(groups)]


def _row(score: Score) -> dict[str, Any]:
    of = score.of
    return {
        "split": score.split,
        "seed": score.seed,
        "set": of.set,
        "name": of.name,
        "severity": of.severity,
        "score": of.score,
        "metric": of.metric,
        "value": float(score.value),
        "n": int(score.n),
    }


def _score(row: dict[str, Any]) -> Score:
    of = Quantity(row["metric"], row["set"], row["name"], row["severity"], row["score"])
    return Score(row["split"], row["seed"], of, row["value"], row["n"])
