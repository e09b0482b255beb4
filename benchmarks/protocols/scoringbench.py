"""The protocol of ScoringBench: its rows, its folds, its encoding, and its ranking by each score.

Five folds of all rows, shuffled with seed 42. Of a fold's training rows at most 2,400 are drawn, of its test rows at
most 600. Categories become whole numbers in the order of their sorted values; missing numbers become the median of the
training rows. Ranks are taken over all pairs of a table and a fold, as its leaderboard does.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold

from bdl_pipe.metrics.comparison import Ranks, mean_ranks

from . import estimators
from .scores import scored

SEED: Final = 42
FOLDS: Final = 5
ROWS: Final = 3_000


def folds(rows: int, seed: int = SEED, count: int = FOLDS, most: int = ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the training rows and the test rows of each fold."""
    caps = (most * (count - 1) // count, most // count)
    split = KFold(count, shuffle=True, random_state=seed).split(np.zeros(rows))
    for fold, both in enumerate(split):
        parts = []
        for offset, (index, cap) in enumerate(zip(both, caps, strict=True)):
            rng = np.random.default_rng(10_007 * seed + fold + offset)
            parts.append(rng.choice(index, cap, replace=False) if len(index) > cap else index)
        yield parts[0], parts[1]


def encoded(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the features with categories as whole numbers."""
    coded = {name: pd.Categorical(column).codes for name, column in frame.select_dtypes(exclude="number").items()}
    return frame.assign(**coded).astype(float)


def run(frame: pd.DataFrame, target: str, methods: Sequence[str], only: int = FOLDS) -> list[dict[str, object]]:
    """Fit and score methods on the first ``only`` folds; return a row for each method and fold."""
    known = frame[frame[target].notna()].reset_index(drop=True)
    x, y = encoded(known.drop(columns=target)), known[target].to_numpy(dtype=float)
    rows = list[dict[str, object]]()
    for fold, (train, test) in enumerate(folds(len(known))):
        if fold >= only:
            break
        median = x.iloc[train].median()
        for method in methods:
            start = time.perf_counter()
            model = estimators.of(method, "regression", SEED)
            assert model is not None
            model.fit(x.iloc[train].fillna(median).to_numpy(), y[train])
            predictive = model.predict_dist(x.iloc[test].fillna(median).to_numpy()).predictive
            seconds = time.perf_counter() - start
            found = scored(predictive, torch.from_numpy(y[test])[:, None])
            rows.append({"method": method, "fold": fold, "rows": len(test), **found, "seconds": seconds})
    return rows


def ranked(frame: pd.DataFrame, score: str) -> Ranks:
    """Return the mean ranks of the methods by a score, over all pairs of a table and a fold that every method has."""
    wide = frame.pivot(index=["table", "fold"], columns="method", values=score).dropna()
    return mean_ranks(list(wide.columns), wide.to_numpy())
