"""Read the stored predictions of one fit, the input of the metrics in :mod:`bdl_pipe.metrics.table`.

for (split, seed), fit in stored.read(Path("work/evaluate/houses-vbll/predictions.parquet")):
    print(split, seed, table.scores(fit))
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from ..errors import DataError
from ..scores import by_fit
from ..seeds import Seed
from .calibration import MEASURES, stated
from .calibration_tests import Checked, check_all

DRAWS: Final = 199  # columns of labels drawn from the stated probabilities
QUANTILES: Final = {"q05": 0.05, "q50": 0.5, "q95": 0.95}  # the columns of quantiles, and their levels


@dataclass(frozen=True, eq=False)
class StoredDraws:
    """The predictions by draw of some rows of one fit; :class:`bdl_pipe.evaluation.gathered.DrawnRows` says which.

    Attributes:
        rows: the indices of these rows among the fit's rows [place].
        log_probs: for classes, the log-probabilities of each draw [draw, place, class]; for regression, the log density
            of the row's targets under each draw [draw, place], in original units. float64.
    """

    rows: np.ndarray
    log_probs: np.ndarray


@dataclass(frozen=True, eq=False)
class StoredClasses:
    """The predictions of classes of one fit.

    Attributes:
        probs: the mixture's probabilities [row, class], in float64; each row sums to 1.
        labels: the true classes [row].
        rng: the address of a metric's random draws.
        draws: the probabilities by draw of some rows; None if they are not stored or there is one draw.
    """

    probs: np.ndarray
    labels: np.ndarray
    rng: Seed
    draws: StoredDraws | None = None

    def __post_init__(self) -> None:
        probs, labels = stated(self.probs, self.labels)
        object.__setattr__(self, "probs", probs)
        object.__setattr__(self, "labels", labels[0])

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def losses(self) -> Float[np.ndarray, " row"]:
        """Return 1 for each row in which the most probable class is not the label, else 0."""
        return (self.probs.argmax(1) != self.labels).astype(np.float64)

    @cached_property
    def uncertainty(self) -> Float[np.ndarray, " row"]:
        """Return 1 − the largest probability of each row."""
        return 1 - self.probs.max(1)

    @cached_property
    def calibration(self) -> dict[str, Checked]:
        """Return the calibration errors with their values under perfect calibration: measure -> result."""
        return check_all(MEASURES, self.probs, self.labels, self.rng, DRAWS)


@dataclass(frozen=True, eq=False)
class StoredValues:
    """The predictions of regression of one fit, in original units.

    Attributes:
        targets, means, variances: the values of each output [row, output].
        log_prob: the log density of each row's targets [row].
        rng: the address of a metric's random draws.
        below: F(y) of each output separately [row, output]; None if it is not stored.
        quantiles: the quantiles at the levels :data:`QUANTILES` [level, row, output]; None if they are not stored.
        draws: the densities by draw of some rows; None if they are not stored or there is one draw.
    """

    targets: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    log_prob: np.ndarray
    rng: Seed
    below: np.ndarray | None = None
    quantiles: np.ndarray | None = None
    draws: StoredDraws | None = None

    def __post_init__(self) -> None:
        shapes = {part.shape for part in (self.targets, self.means, self.variances)}
        if len(shapes) != 1 or self.targets.ndim != 2 or self.log_prob.shape != self.targets.shape[:1]:
            raise DataError(f"predictions must have targets, means and variances [row, output], got {sorted(shapes)}")

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def losses(self) -> Float[np.ndarray, " row"]:
        """Return the squared error of the mean, averaged over outputs."""
        return ((self.targets - self.means) ** 2).mean(1)

    @cached_property
    def uncertainty(self) -> Float[np.ndarray, " row"]:
        """Return the predicted variance, averaged over outputs."""
        return self.variances.mean(1)

    @property
    def pit(self) -> Float[np.ndarray, " row"] | None:
        """Return F(y) of each row; None if it is not stored, or for several outputs, which depend on each other."""
        return None if self.below is None or self.targets.shape[1] > 1 else self.below[:, 0]

    @property
    def interval(self) -> Float[np.ndarray, "level row"] | None:
        """Return the quantiles of each row at :data:`QUANTILES`; None in the cases of :attr:`pit`."""
        return None if self.quantiles is None or self.targets.shape[1] > 1 else self.quantiles[..., 0]


Stored = StoredClasses | StoredValues


def read(path: Path, rng: Seed = Seed(0)) -> Iterator[tuple[tuple[int, int], Stored]]:
    """Yield ((split, seed), predictions) of each fit in a ``predictions.parquet``.

    The predictions by draw are read from ``draws.parquet`` beside it, where that exists.

    Raises:
        DataError: a file is not a table of predictions.
    """
    table, beside = _table(path), path.with_name("draws.parquet")
    drawn = dict(by_fit(_table(beside))) if beside.is_file() else {}
    missing = {"split", "seed", "log_prob"} - {*table.column_names}
    if missing:
        raise DataError(f"{path} must have the columns split, seed and log_prob, got no {sorted(missing)}")
    for at, rows in by_fit(table):
        yield at, of_table(rows, rng.fold(*at), drawn.get(at))


def of_table(rows: pa.Table, rng: Seed = Seed(0), draws: pa.Table | None = None) -> Stored:
    """Return the predictions of one fit from its tables, as :func:`bdl_pipe.evaluation.score_clean` makes them.

    Raises:
        DataError: columns are missing, or a class of this module raises it.
    """
    if "p_0" in rows.column_names:
        probs = _columns(rows, "p", several=True)
        drawn = _draws(draws, "log_probs", probs.shape[1])
        return StoredClasses(probs, _columns(rows, "target")[:, 0], rng, drawn)
    targets, means, variances = (_columns(rows, name) for name in ("target", "mean", "variance"))
    below = quantiles = None
    if {"pit", *QUANTILES} <= {name.partition("_")[0] for name in rows.column_names}:
        below, quantiles = _columns(rows, "pit"), np.stack([_columns(rows, name) for name in QUANTILES])
    log_prob, drawn = _columns(rows, "log_prob")[:, 0], _draws(draws, "log_density")
    return StoredValues(targets, means, variances, log_prob, rng, below, quantiles, drawn)


def _table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} must be a table of predictions: {error}") from error


def _draws(table: pa.Table | None, name: str, classes: int = 1) -> StoredDraws | None:
    if table is None or not len(table):
        return None
    if {"row", name} - {*table.column_names}:
        got = ", ".join(table.column_names)
        raise DataError(f"predictions by draw must have the columns row and {name}, got {got}")
    flat = table[name].combine_chunks()
    values = flat.flatten().to_numpy().astype(np.float64).reshape(len(table), -1, classes).swapaxes(0, 1)
    return StoredDraws(table["row"].to_numpy(), values if name == "log_probs" else values[..., 0])


def _columns(rows: pa.Table, name: str, *, several: bool = False) -> np.ndarray:
    pattern = re.compile(rf"{name}_\d+" if several else rf"{name}(_\d+)?")
    names = [column for column in rows.column_names if pattern.fullmatch(column)]
    if not names:
        raise DataError(f"predictions must have a column {name}, got {', '.join(rows.column_names)}")
    return np.stack([rows[column].to_numpy().astype(np.float64) for column in names], axis=1)
