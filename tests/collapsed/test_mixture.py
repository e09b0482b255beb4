"""The predictive of collapsed regression, against numpy, its own integrals and draws from the model."""

import math

import numpy as np
import pytest
import torch

from bdl_pipe import metrics
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear
from bdl_pipe.collapsed.rectified import Rectified

from .cases import numbers

TAIL = 0.01


def predictive(tail: float = TAIL, outputs: int = 1, batch: int = 4) -> CollapsedMixture:
    random = numbers("mixture", outputs)
    shape = (3, batch, outputs)
    centre, widths = random.normal(size=shape), random.uniform(0, 1, (*shape, 2))
    return CollapsedMixture(Linear(*map(torch.tensor, (centre, widths, random.uniform(0.3, 1, shape)))), tail)


def normal(y: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).exp()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_log_density_mixes_the_parts_and_the_tail_over_samples(outputs: int) -> None:
    found, y = predictive(outputs=outputs), torch.tensor(numbers("mixture", "y").normal(size=(4, outputs)))
    exact = (1 - TAIL) * found.part.log_density(y).exp()
    exact = exact + TAIL * normal(y, found.part.mean, found.part.variance)
    torch.testing.assert_close(found.log_prob(y), exact.prod(-1).mean(0).log())
    plain = predictive(0.0, outputs)
    torch.testing.assert_close(plain.log_prob(y), plain.part.log_density(y).exp().prod(-1).mean(0).log())


def test_a_tail_keeps_the_moments_and_scores_targets_beyond_the_reach() -> None:
    plain, tailed = predictive(0.0), predictive()
    torch.testing.assert_close(tailed.mean, plain.mean)
    torch.testing.assert_close(tailed.variance, plain.variance)
    low, high = plain.reach
    far = high + 1
    assert (plain.log_prob(far) == -torch.inf).all()
    expected = (TAIL * normal(far, tailed.draw_mean, tailed.draw_variance)).mean(0)[:, 0].log()
    torch.testing.assert_close(tailed.log_prob(far), expected)
    inside = (low + high) / 2
    assert (tailed.log_prob(inside) - plain.log_prob(inside) > math.log(1 - TAIL) - 1e-12).all()


@pytest.mark.parametrize("tail", [0.0, TAIL])
@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.95])
def test_quantiles_invert_the_distribution_function(tail: float, level: float) -> None:
    found = predictive(tail, outputs=2)
    torch.testing.assert_close(
        found.cdf(found.quantile(level)), torch.full((4, 2), level, dtype=torch.float64), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("tail", [0.0, TAIL])
def test_crps_equals_its_energy_form_from_draws(tail: float) -> None:
    """Against the form E|Y − y| − ½E|Y − Y'|, from 400,000 draws of each, within 4.5 sd (false alarm 7e-6).

    Boxes left out, the wrong variant, must fail.
    """
    found, y = predictive(tail, batch=1), 1.7
    first, second = (draws(found, numbers("crps", i), 400_000) for i in range(2))
    each = np.abs(first - y) - 0.5 * np.abs(first - second)
    margin = 4.5 * each.std() / math.sqrt(len(each))
    for one, right in ((found, True), (narrow(found), False)):
        got = metrics.crps(one, torch.tensor([[y]])).value
        assert (abs(got - each.mean()) < margin) == right


def narrow(found: CollapsedMixture) -> CollapsedMixture:
    """The same mixture with boxes of no width."""
    part = found.part
    assert isinstance(part, Linear)
    return CollapsedMixture(Linear(part.centre, 0 * part.half_widths, part.radius), found.tail)


def draws(found: CollapsedMixture, random: np.random.Generator, count: int) -> np.ndarray:
    """Targets of the first row, drawn from the model itself."""
    part = found.part
    assert isinstance(part, Linear)
    c, h, r = (v[:, 0, 0].numpy() for v in (part.centre, part.half_widths, part.radius))
    which = random.integers(len(c), size=count)
    noise = r[which] * (random.uniform(size=count) - random.uniform(size=count))
    y = c[which] + (random.uniform(-1, 1, (count, h.shape[-1])) * h[which]).sum(1) + noise
    mean, sd = found.draw_mean[:, 0, 0].numpy(), found.draw_variance[:, 0, 0].sqrt().numpy()
    return np.where(random.uniform(size=count) < found.tail, random.normal(mean[which], sd[which]), y)


def test_intervals_cover_their_share_of_draws_from_the_model() -> None:
    """Binomial(40,000, .9), within 4.5 sd (false alarm 7e-6); boxes left out, the wrong variant, must fail."""
    found, number = predictive(batch=1), 40_000
    y = torch.tensor(draws(found, numbers("cover"), number))[:, None]
    margin = 4.5 * math.sqrt(0.9 * 0.1 / number)
    for one, right in ((found, True), (narrow(found), False)):
        low, high = metrics.interval(one, 0.9)
        assert (abs(metrics.covered(low, high, y).value - 0.9) < margin) == right


def test_rescaling_moves_mean_density_and_quantiles() -> None:
    found, shift, scale = predictive(outputs=2), torch.tensor([20.0, -3.0]), torch.tensor([9.0, 0.5])
    y = torch.tensor(numbers("units").normal(size=(4, 2)))
    other = found.rescale(shift, scale)
    torch.testing.assert_close(other.mean, shift + scale * found.mean)
    expected = found.log_prob(y) - scale.double().log().sum()
    torch.testing.assert_close(other.log_prob(shift + scale * y), expected)
    torch.testing.assert_close(other.quantile(0.3), shift + scale * found.quantile(0.3), rtol=1e-9, atol=1e-9)


def test_a_rectified_part_gives_finite_scores_and_quantiles_that_invert_the_cdf() -> None:
    random = numbers("mixture", "rectified")
    shape = (3, 4, 1)
    values = (random.normal(size=shape), random.choice([-1.0, 1.0], shape), random.normal(size=shape))
    part = Rectified(*map(torch.tensor, (*values, random.uniform(0, 1, (*shape, 3)), random.uniform(0.3, 1, shape))))
    found = CollapsedMixture(part, TAIL)
    levels = torch.full((4, 1), 0.25).double()
    torch.testing.assert_close(found.cdf(found.quantile(0.25)), levels, rtol=0, atol=1e-10)
    assert found.log_prob(found.mean).isfinite().all()
