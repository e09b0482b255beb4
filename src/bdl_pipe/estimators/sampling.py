"""Draws of targets from predictives."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..derived_predictive import Exponential, Mixture
from ..predictive import Categorical, Continuous, Gaussian, Predictive
from ..seeds import Seed

_FURTHEST: Final = 1e-9  # the probability beyond each end of the bracket in which draws are searched
_TOLERANCE: Final = 1e-12  # the largest error of a draw's level


def sample(predictive: Predictive, draws: int, rng: Seed) -> Tensor:
    """Draw the targets of each row separately: labels int64 [draw, batch], or float64 [draw, batch, output].

    Draws of a mixture of Gaussians are exact. Draws of other distributions invert the distribution function and stay in
    its central 1 − 2·10⁻⁹. Random numbers are drawn on the CPU.
    """
    if isinstance(predictive, Categorical):
        probabilities = predictive.mean.double().cpu()
        return torch.multinomial(probabilities, draws, replacement=True, generator=rng.generator()).T
    assert isinstance(predictive, Continuous)
    if isinstance(predictive, Exponential):
        return sample(predictive.base, draws, rng).exp()
    shape = (draws, *predictive.mean.shape)
    if isinstance(predictive, Mixture):
        shares = torch.tensor(predictive.shares, dtype=torch.float64).expand(shape[1], -1)
        which = torch.multinomial(shares, draws, replacement=True, generator=rng.fold("part").generator()).T
        drawn = torch.stack([sample(part, draws, rng.fold("of", k)) for k, part in enumerate(predictive.parts)])
        return drawn.gather(0, which[None, :, :, None].expand(1, *shape))[0]
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
    """Return the values [batch, output] at which the distribution function has these levels (Chandrupatla 1997)."""
    from scipy.optimize.elementwise import find_root  # at the top it would add half a second to every import

    values, wanted, device = ((low + high) / 2).numpy().ravel(), levels.numpy().ravel(), predictive.mean.device

    def excess(at: np.ndarray, which: np.ndarray) -> np.ndarray:
        values[which] = at
        below = predictive.cdf(torch.tensor(values).reshape(levels.shape).to(device)).cpu().numpy().ravel()
        return below[which] - wanted[which]

    ends = low.double().numpy().ravel(), high.double().numpy().ravel()
    found = find_root(excess, ends, args=(np.arange(len(wanted)),), tolerances={"fatol": _TOLERANCE})
    return torch.tensor(found.x).reshape(levels.shape)
