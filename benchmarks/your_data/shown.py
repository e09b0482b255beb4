"""Figures and tables of the page results/your_data, as text."""

import math

import numpy as np

TEST_OVER_TRAIN = 1 / 9  # test rows over training rows: a standard split tests on a tenth of the rows


def mean_and_error(differences: np.ndarray) -> tuple[float, float]:
    """Return the mean over splits, and the standard error of Nadeau and Bengio (2003), NaN of one split."""
    if not len(differences):
        return math.nan, math.nan
    if len(differences) < 2:
        return float(differences.mean()), math.nan
    spread = (1 / len(differences) + TEST_OVER_TRAIN) * differences.var(ddof=1)
    return float(differences.mean()), math.sqrt(spread)


def figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def small(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def seconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def error(difference: float, spread: float) -> str:
    if math.isnan(difference):
        return ""
    return f"{difference:+.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")
