"""Tables of the report's figures for ``dvc plots``, which compares them between commits and experiments.

Each table is a CSV file with a row for each point and the columns ``dataset`` and ``run``; ``dvc.yaml`` names its axes.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bdl_pipe import artifacts
from bdl_pipe.scores import Quantity

from .tables import Table, write_csv

Point = tuple[float, float]  # x and y
_AXES: Final = {  # the file's name -> the names of x and y
    "reliability": ("confidence", "accuracy"),
    "intervals": ("level", "coverage"),
    "risk": ("coverage", "risk"),
    "cost": ("fit_seconds", "nll"),
}


def write(table: Table, folder: Path) -> None:
    """Write the tables of all runs into ``folder``, completely or not at all."""
    drawn = {"reliability": reliability, "intervals": intervals, "risk": risk, "cost": cost}
    with artifacts.replacing(folder) as place:
        for name, points in drawn.items():
            rows = [(run.dataset, run.key, *at) for run in table.runs for at in points(table, run.key)]
            write_csv(place / f"{name}.csv", ["dataset", "run", *_AXES[name]], rows)
        write_csv(place / "training.csv", ["dataset", "run", "step", "loss"], training(table))


def training(table: Table) -> list[tuple[str, str, float, float]]:
    """Return data set, fitted entry, step and loss of the fits of all runs; runs may share a fit."""
    points = ((run.dataset, fit, *at) for run in table.runs for fit, curve in run.training.items() for at in curve)
    return list(dict.fromkeys(points))


def reliability(table: Table, run: str) -> Iterator[Point]:
    """Yield the mean confidence and the accuracy of each bin with rows, for classes."""
    bins = table.drawn["calibration"].get(run)
    if bins is not None:
        filled = bins[bins["count"] > 0]
        yield from zip(filled["confidence"].tolist(), filled["accuracy"].tolist(), strict=True)


def intervals(table: Table, run: str) -> Iterator[Point]:
    """Yield the level of each central interval and the share of targets in it, for regression.

    The central interval of level L has the targets with F(y) in [(1 − L)/2, (1 + L)/2]. The stored counts of F(y) in
    equal bins give the levels of an even number of bins around 1/2 if the number of bins is even, else of an odd one.
    """
    counts = table.drawn["pit"].get(run)
    if counts is not None:
        bins, total = counts.tolist(), sum(counts)
        for outside in reversed(range((len(bins) + 1) // 2)):
            inside = bins[outside : len(bins) - outside]
            yield len(inside) / len(bins), sum(inside) / total


def risk(table: Table, run: str) -> Iterator[Point]:
    """Yield the share of rows that are kept, the most certain first, and their mean loss."""
    risks = table.drawn["risk"].get(run)
    if risks is not None:
        yield from risks.items()


def cost(table: Table, run: str) -> Iterator[Point]:
    """Yield the seconds of a fit and the NLL, of a run with both."""
    of = [table.estimate(run, quantity) for quantity in (Quantity("fit_seconds", "cost"), Quantity("nll"))]
    means = [estimate.mean for estimate in of if estimate is not None and math.isfinite(estimate.mean)]
    if len(means) == len(of):
        yield means[0], means[1]
