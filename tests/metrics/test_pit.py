"""The probability integral transform against SciPy, and bands and errors on uniform values."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from scipy.stats import binom

from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.metrics.pit import pit, pit_histogram, quantile_error
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed

ALARM = 1e-6


def test_the_transform_of_a_mixture_is_the_mean_over_its_draws() -> None:
    """With 50 digits. The Gaussian of the same mean and variance, a wrong variant, gives another value."""
    mean, sd = [-2.0, 0.5, 4.0], [0.1, 1.5, 0.7]
    predictive = Gaussian(torch.tensor(mean).reshape(3, 1, 1).double(), torch.tensor(sd).reshape(3, 1, 1).double() ** 2)
    with mpmath.workdps(50):
        exact = sum(mpmath.ncdf(-1, m, s) for m, s in zip(mean, sd, strict=True)) / 3
    found = pit(predictive, torch.tensor([[-1.0]]))[0, 0]
    assert found == pytest.approx(float(exact), rel=1e-12)
    moments = float(predictive.mean), math.sqrt(float(predictive.variance))
    assert abs(scipy.stats.norm.cdf(-1, *moments) - found) > 0.05


def test_targets_drawn_from_a_mixture_have_a_uniform_transform() -> None:
    random = Seed(0).numpy()
    mean, sd = random.normal(size=(4, 500, 1)), random.uniform(0.2, 1, (4, 500, 1))
    draw = random.integers(4, size=500)
    targets = mean[draw, range(500)] + sd[draw, range(500)] * random.normal(size=(500, 1))
    values = pit(Gaussian(torch.tensor(mean), torch.tensor(sd**2)), torch.tensor(targets))[:, 0]
    assert quantile_error(values).p_value > ALARM
    assert pit_histogram(values, level=1 - ALARM).outside.size == 0
    variance = (sd**2).mean(0) + mean.var(0)
    narrow = pit(Gaussian(torch.tensor(mean.mean(0)[None]), torch.tensor(variance[None] / 9)), torch.tensor(targets))[
        :, 0
    ]
    assert quantile_error(narrow).p_value < ALARM
    assert 0 in pit_histogram(narrow, level=1 - ALARM).outside  # too narrow: too many at the ends


def test_the_histogram_counts_values_at_both_ends() -> None:
    found = pit_histogram(np.array([0, 0.05, 0.1, 0.55, 1.0]), bins=10)
    assert found.count.tolist() == [2, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert pit_histogram(np.array([0.3]), bins=1).outside.size == 0
    assert (pit_histogram(np.array([0.3]), bins=1).low, pit_histogram(np.array([0.3]), bins=1).high) == (1, 1)


def test_all_bins_are_in_the_band_as_often_as_stated() -> None:
    """2,000 samples of 80 uniform values at 80 %; a separate band for each bin, a wrong variant, fails too often."""
    random = Seed(1).numpy()
    samples = [pit_histogram(random.random(80), bins=8, level=0.8) for _ in range(2000)]
    outside = sum(one.outside.size > 0 for one in samples)
    assert outside <= binom.isf(ALARM, 2000, 0.2)
    low, high = binom.ppf(0.1, 80, 1 / 8), binom.isf(0.1, 80, 1 / 8)
    alone = sum(((one.count < low) | (one.count > high)).any() for one in samples)
    assert alone > binom.isf(ALARM, 2000, 0.2)


def test_the_quantile_error_matches_a_hand_calculation() -> None:
    """Shares at .25, .5, .75 of four values are .5, .5, 1."""
    found = quantile_error(np.array([0.1, 0.25, 0.6, 0.7]), levels=3)
    np.testing.assert_allclose(found.shares, [0.5, 0.5, 1])
    assert found.value == pytest.approx(2 * 0.0625 / 3)
    assert found.expected == pytest.approx((0.1875 * 2 + 0.25) / 3 / 4)
    assert found.p_value == pytest.approx(scipy.stats.kstest([0.1, 0.25, 0.6, 0.7], "uniform").pvalue)


def test_the_expected_quantile_error_is_the_mean_over_uniform_values() -> None:
    """500 samples of 30 values, within five standard errors: false alarms 6e-7."""
    random = Seed(2).numpy()
    errors = np.array([quantile_error(random.random(30)).value for _ in range(500)])
    expected = quantile_error(random.random(30)).expected
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(500)
    assert abs(errors.mean() - expected / 2) > 5 * errors.std() / math.sqrt(500)  # the wrong variant


def test_the_test_of_uniformity_keeps_its_rate_of_false_alarms() -> None:
    random = Seed(3).numpy()
    alarms = sum(quantile_error(random.random(25)).p_value <= 0.1 for _ in range(500))
    assert binom.ppf(ALARM, 500, 0.1) <= alarms <= binom.isf(ALARM, 500, 0.1)
    bent = sum(quantile_error(random.random(25) ** 2).p_value <= 0.1 for _ in range(100))
    assert bent > binom.isf(ALARM, 100, 0.1)


def test_values_outside_0_to_1_and_numbers_below_1_are_refused() -> None:
    for bad in (np.zeros(0), np.array([1.1]), np.array([np.nan])):
        with pytest.raises(DataError, match=r"in \[0, 1\]"):
            quantile_error(bad)
    with pytest.raises(ConfigError, match="levels must be at least 1, got 0"):
        quantile_error(np.array([0.5]), levels=0)
    with pytest.raises(ConfigError, match="bins must be at least 1, got 0"):
        pit_histogram(np.array([0.5]), bins=0)
