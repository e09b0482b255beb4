"""Draws of targets from predictives."""

from typing import Final

import torch
from torch import Tensor

from ..predictive import Categorical, Continuous, Exponential, Gaussian, Predictive
from ..seeds import Seed

_FURTHEST: Final = 1e-9  # of the distribution lies beyond each end of the bracket in which draws are looked for
_HALVINGS: Final = 40


def sample(predictive: Predictive, draws: int, rng: Seed) -> Tensor:
    """Draw targets, each row's by itself: labels int64 [draw, batch], or float64 [draw, batch, output].

    A mixture of Gaussians is drawn from directly; any other distribution by inverting its distribution function by
    bisection, to 2⁻⁴⁰ of the width of its central 1 − 2·10⁻⁹. Random numbers are drawn on the CPU.
    """
    if isinstance(predictive, Categorical):
        probabilities = predictive.mean.double().cpu()
        return torch.multinomial(probabilities, draws, replacement=True, generator=rng.generator()).T
    assert isinstance(predictive, Continuous)
    if isinstance(predictive, Exponential):
        return sample(predictive.base, draws, rng).exp()
    shape = (draws, *predictive.mean.shape)
    if isinstance(predictive, Gaussian):
        mean, sd = predictive.draw_mean.double().cpu(), predictive.draw_variance.double().sqrt().cpu()
        which = torch.randint(len(mean), (draws, shape[1], 1), generator=rng.fold("component").generator())
        index = which.expand(shape)
        normal = torch.randn(shape, dtype=torch.float64, generator=rng.fold("normal").generator())
        return mean.gather(0, index) + sd.gather(0, index) * normal
    levels = torch.rand(shape, dtype=torch.float64, generator=rng.generator()).clamp(_FURTHEST, 1 - _FURTHEST)
    lowest, highest = predictive.bracket(_FURTHEST)[0].cpu(), predictive.bracket(1 - _FURTHEST)[1].cpu()
    return torch.stack([_inverted(predictive, level, lowest, highest) for level in levels])


def _inverted(predictive: Continuous, levels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the values [batch, output] at which the distribution function has these levels."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = predictive.cdf(middle.to(predictive.mean.device)).cpu() < levels
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
