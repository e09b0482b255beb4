"""Adaptive conformal intervals: their bound for any sequence at all, drift, blocks, and bad input."""

import math

import numpy as np
import pytest
import torch

from bdl_pipe import AdaptiveIntervals
from bdl_pipe.distribution import NumberDistribution
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed


def standard(rows: int) -> Gaussian:
    return Gaussian(torch.zeros(1, rows, 1), torch.ones(1, rows, 1))


def stream(kind: str) -> np.ndarray:
    random = np.random.default_rng(0)
    noise = random.normal(size=1200)
    return {
        "growing": noise * np.linspace(1, 8, 1200),
        "jumping": noise * np.where(np.arange(1200) // 200 % 2, 10.0, 0.5),
        "worse and worse": 1.1 ** np.arange(1200),  # no row is like an earlier one
    }[kind]


@pytest.mark.parametrize("block", [1, 40])
@pytest.mark.parametrize("kind", ["growing", "jumping", "worse and worse"])
def test_misses_are_as_frequent_as_the_bound_says_whatever_the_targets(kind: str, block: int) -> None:
    adaptive, fixed, inside = AdaptiveIntervals(0.9, rate=0.05, window=200), 0, 0
    targets = stream(kind)
    quantile = np.quantile(np.abs(targets[:100]), 0.9)
    for start in range(0, 1200, block):
        predictive, values = standard(block), targets[start : start + block]
        low, high = adaptive.intervals(predictive)
        inside += int(((low[:, 0] <= values) & (values <= high[:, 0])).sum())
        adaptive.observe(predictive, values)
        fixed += int((np.abs(values) > quantile).sum())
    assert adaptive.rows == 1200 and inside == 1200 - adaptive.misses
    bound = (0.9 + block * 0.05) / (1200 * 0.05)
    assert abs(adaptive.misses / 1200 - 0.1) <= bound
    assert abs(fixed / 1200 - 0.1) > (0.9 + 0.05) / (1200 * 0.05), "intervals of the first rows alone break it"


def test_the_next_interval_is_split_conformal_at_alpha() -> None:
    """α after one miss is .1 − .9 γ; the threshold is the ⌈(n + 1)(1 − α)⌉-th smallest of the window's scores."""
    adaptive, targets = AdaptiveIntervals(0.9, rate=0.01, window=50), np.random.default_rng(1).normal(size=80)
    assert math.isinf(adaptive.intervals(standard(1))[1][0, 0]) and math.isnan(adaptive.coverage)
    adaptive.observe(standard(80), targets)
    assert adaptive.alpha == pytest.approx(0.1 + 80 * 0.01 * 0.1), "no miss while intervals are infinite"
    place = math.ceil(51 * (1 - adaptive.alpha))
    radius = np.sort(np.abs(targets[-50:]).astype(np.float32))[place - 1]
    low, high = adaptive.intervals(standard(2))
    assert high[:, 0] == pytest.approx([radius] * 2) and (low == -high).all()
    before = adaptive.alpha
    adaptive.observe(standard(1), [100.0])
    assert adaptive.alpha == pytest.approx(before - 0.9 * 0.01) and adaptive.misses == 1
    assert adaptive.coverage == pytest.approx(80 / 81)


def test_intervals_have_the_shape_of_a_distributions_mean() -> None:
    adaptive = AdaptiveIntervals(0.5)
    for flat, shape in ((True, (80,)), (False, (80, 1))):
        distribution = NumberDistribution(standard(80), Seed(0), flat)
        for _ in range(2):  # infinite, and then not
            low, high = adaptive.intervals(distribution)
            assert low.shape == high.shape == distribution.mean.shape == shape
            adaptive.observe(distribution, np.arange(80.0))


def test_bad_settings_classes_and_gaps_are_refused() -> None:
    for settings, message in (
        ({"level": 1.0}, r"^level must be in \(0, 1\), got 1.0"),
        ({"rate": 0.0}, "^rate must be > 0 and finite, got 0.0"),
        ({"window": 0}, "^window must be a whole number > 0, got 0"),
        ({"window": 1.5}, "^window must be a whole number > 0, got 1.5"),
    ):
        with pytest.raises(ConfigError, match=message):
            AdaptiveIntervals(**settings)
    with pytest.raises(DataError, match=r"^targets: must be \[2, 1\] finite numbers"):
        AdaptiveIntervals().observe(standard(2), [1.0, math.nan])
    for wrong in ([1.0], ["a", "b"], [[1.0, 2.0]]):
        with pytest.raises(DataError, match=r"^targets: must be \[2, 1\] finite numbers, got"):
            AdaptiveIntervals().observe(standard(2), wrong)
    with pytest.raises(DataError, match=r"^predictive: must be of numbers, not of classes"):
        AdaptiveIntervals().intervals(Categorical(torch.zeros(1, 2, 3).log_softmax(-1)))
