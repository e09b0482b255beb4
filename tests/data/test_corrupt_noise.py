"""Noise against its own law. Every |z| < 5 has a false-alarm rate of 6e-7; the wrong strengths must fail."""

import numpy as np
import pytest

from bdl_pipe.data.corrupt import corrupt, noise
from bdl_pipe.data.corrupt.streams import Streams
from bdl_pipe.seeds import Seed

from .pictures import flat

SEVERITIES = (1, 2, 3, 4, 5)
ROUNDING = 1 / 12 / 255**2  # the variance that whole grey levels add


def residuals(name: str, severity: int, value: int, number: int = 32) -> np.ndarray:
    images = flat(number, 3, value)
    return (corrupt(images, name, severity, Seed(9)).astype(float) - value).ravel() / 255


def variance_z(values: np.ndarray, expected: float, excess: float = 0.0, rounding: float = ROUNDING) -> float:
    """How many standard errors the sample variance is from ``expected`` (``excess``: the law's kurtosis − 3)."""
    return (values.var() / (expected + rounding) - 1) / np.sqrt((2 + excess) / len(values))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_has_cifars_deviations(severity: int) -> None:
    values = residuals("gaussian_noise", severity, 128)
    sigmas, imagenet = (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)
    assert abs(variance_z(values, sigmas[severity - 1] ** 2)) < 5
    assert abs(values.mean()) * np.sqrt(len(values)) / sigmas[severity - 1] < 5
    assert abs(variance_z(values, imagenet[severity - 1] ** 2)) > 50
    assert abs(variance_z(values, (sigmas[severity - 1] + 0.005) ** 2)) > 5


@pytest.mark.parametrize("photons", [500, 250, 100, 75, 50])
@pytest.mark.parametrize("level", [0.2, 0.5])
def test_shot_noise_has_the_variance_of_counted_photons(photons: int, level: float) -> None:
    """Var = x/c: the same c at every brightness, as no noise of constant variance has. Before rounding."""
    images = np.full((32, 3, 32, 32), level, np.float32)
    found = noise.shot_noise(images, photons, Streams(Seed(9), range(32))).astype(float).ravel()
    assert abs(variance_z(found, level / photons, 1 / (level * photons), rounding=0)) < 5
    assert abs(found.mean() - level) / np.sqrt(level / photons / len(found)) < 5
    assert abs(variance_z(found, 0.3 / photons, rounding=0)) > 5
    np.testing.assert_allclose(found * photons, np.rint(found * photons), atol=1e-3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_has_cifars_photons(severity: int) -> None:
    """Grey levels of 1/255 hide some of the variance x/c: within 5 %, where the next severity differs by 25 %."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    assert residuals("shot_noise", severity, 128).var() == pytest.approx(128 / 255 / photons + ROUNDING, rel=0.05)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_replaces_its_share_half_by_black_half_by_white(severity: int) -> None:
    values = residuals("impulse_noise", severity, 128)
    shares, total = (0.01, 0.02, 0.03, 0.05, 0.07), len(values)
    black, white = (values < -0.5).sum(), (values > 0.49).sum()
    assert (values == 0).sum() == total - black - white

    def z(count: int, share: float) -> float:
        return (count - total * share) / np.sqrt(total * share * (1 - share))

    for count in (black, white):
        assert abs(z(count, shares[severity - 1] / 2)) < 5
        assert abs(z(count, shares[severity - 1])) > 5  # the whole share for each: wrong


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("value", [64, 128])
def test_speckle_noise_is_in_proportion_to_the_value(severity: int, value: int) -> None:
    sigma = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    values = residuals("speckle_noise", severity, value)
    assert abs(variance_z(values, (sigma * value / 255) ** 2)) < 5
    assert abs(variance_z(values, sigma**2)) > 50  # not in proportion: wrong


def test_black_stays_black_under_noise_that_scales_with_the_value() -> None:
    for name in ("shot_noise", "speckle_noise"):
        assert not residuals(name, 5, 0).any()
