"""Intervals of a user's own network on the diabetes data, with and without rows held out by default.

    python -m benchmarks.own_intervals          # writes results/own_intervals.md, a minute on one core

A perceptron of two hidden layers of 50 units is trained by ``bayesianise`` for 100 epochs at a rate of 1e-2, from new
weights, on three quarters of the 442 patients (standardised columns); the rest are the test rows. Each row is the mean
over four splits, with the standard error of the mean.
"""

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import bayesianise
from bdl_pipe.predictive import Continuous
from benchmarks import written

OUT: Final = Path("results/own_intervals.md")
METHODS: Final = ("vbll", "kfac_laplace", "swag")
SPLITS, LEVEL = 4, 0.9


def main() -> None:
    """Write the page."""
    lines = list[list[str]]()
    for method in METHODS:
        for held_out in (0.0, 0.2):
            scores = np.array([scores_of(method, held_out, split) for split in range(SPLITS)])
            mean, error = scores.mean(0), scores.std(0, ddof=1) / SPLITS**0.5
            cells = map(written.error, mean, error, (0, 0, 2, 1))
            lines.append([f"`{method}`", f"{held_out:.0%}", *cells])
    head = ("method", "held out", "rows in 90 % intervals, %", "width of intervals", "NLL", "RMSE")
    table = written.table(head, lines, left=len(head))
    OUT.write_text(written.page("Intervals of your own network", __doc__, written.origin(), table))


def scores_of(method: str, held_out: float, split: int) -> tuple[float, float, float, float]:
    """Return the share of test rows in intervals (%), their mean width, the NLL and the RMSE."""
    x, y = load_diabetes(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor(y, dtype=torch.float32)[:, None]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split))
    train, test = order[: len(x) * 3 // 4], order[len(x) * 3 // 4 :]
    torch.manual_seed(split)
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    loader: Any = DataLoader(TensorDataset(x[train], y[train]), 32)
    options = {"epochs": 100, "lr": 1e-2, "random_state": split, "held_out": held_out}
    predictive = bayesianise(model, method, loader, **options).predict(x[test])
    assert isinstance(predictive, Continuous)
    low, high = predictive.quantile((1 - LEVEL) / 2), predictive.quantile((1 + LEVEL) / 2)
    inside = ((low <= y[test]) & (y[test] <= high)).double().mean()
    error = (predictive.mean - y[test]).square().mean().sqrt()
    return 100 * float(inside), float((high - low).mean()), -float(predictive.log_prob(y[test]).mean()), float(error)


if __name__ == "__main__":
    sys.exit(main())
