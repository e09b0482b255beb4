"""TabArena's metrics of points: RMSE, 1 − ROC AUC of two classes, and the log loss of more; lower is better.

TabArena (Erickson et al. 2025) has three folds, three or ten times. The folds themselves are files of OpenML, which are
not here: ours are drawn with its number of folds and a seed. So a figure of ours is of its protocol, not of its rows.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold

from . import estimators

FOLDS: Final = 3


def folds(y: np.ndarray, task: str, repeat: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and test rows, by class where there are classes."""
    kind = KFold if task == "regression" else StratifiedKFold
    yield from kind(FOLDS, shuffle=True, random_state=repeat).split(np.zeros(len(y)), y)


def error(task: str, y: np.ndarray, predicted: np.ndarray, classes: np.ndarray | None = None) -> float:
    """Return TabArena's error of predictions: means [n], or probabilities [n, class] in the order of ``classes``."""
    if task == "regression":
        return float(np.sqrt(np.mean((np.asarray(y, dtype=float) - predicted) ** 2)))
    assert classes is not None
    if task == "binary":
        return 1 - float(roc_auc_score(y == classes[1], predicted[:, 1]))
    return float(log_loss(y, predicted, labels=classes))


def run(
    frame: pd.DataFrame, target: str, task: str, methods: Sequence[str], only: int = FOLDS
) -> list[dict[str, object]]:
    """Fit and score the methods that have the task on the first ``only`` folds of the first repeat."""
    known = frame[frame[target].notna()].reset_index(drop=True)
    x, y = known.drop(columns=target), known[target].to_numpy()
    rows = list[dict[str, object]]()
    for fold, (train, test) in enumerate(folds(y, task, 0)):
        if fold >= only:
            break
        for method in methods:
            start = time.perf_counter()
            model = estimators.of(method, task, 0)
            if model is None:
                continue
            model.fit(x.iloc[train], y[train])
            if task == "regression":
                value = error(task, y[test], model.predict(x.iloc[test]))
            else:
                value = error(task, y[test], model.predict_proba(x.iloc[test]), np.asarray(model.classes_))
            seconds = time.perf_counter() - start
            rows.append({"method": method, "fold": fold, "rows": len(test), "error": value, "seconds": seconds})
    return rows
