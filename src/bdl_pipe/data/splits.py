"""Which rows train, validate and test; a function of the row count and a seed, of nothing else."""

import numpy as np

from ..errors import DataError
from ..seeds import Seed

TRAIN_SHARE = 0.9  # of the standard UCI splits


def uci_splits(rows: int, splits: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first ``splits`` standard UCI splits: (training rows, test rows), each in drawn order.

    One ``RandomState(1)``; per split one ``choice(n, n, replace=False)``, whose first round(0.9 n)
    rows train (the split files of Hernández-Lobato and Adams, 2015, and Gal and Ghahramani, 2016).
    """
    state = np.random.RandomState(1)  # the legacy generator, with which the published files were drawn
    orders = [state.choice(rows, rows, replace=False) for _ in range(splits)]
    train = round(TRAIN_SHARE * rows)
    return [(order[:train], order[train:]) for order in orders]


def hold_out(rows: int, validation: int | float, origin: str, *, rng: Seed) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows) of ``rows`` rows, drawn without replacement, each in order.

    Raises:
        DataError: the validation rows leave fewer than two to train on.
    """
    count = round(validation * rows) if isinstance(validation, float) else validation
    if rows - count < 2:
        raise DataError(f"{origin}: validation must leave at least 2 of {rows} training rows, got {count}")
    order = rng.numpy().permutation(rows)
    return np.sort(order[count:]), np.sort(order[:count])
