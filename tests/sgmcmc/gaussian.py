"""A Gaussian target, noisy gradients of it, and every kernel with a step size for it.

Z = 5 standard errors: a false alarm in 1.7 million comparisons.
"""

import pytest
import torch
from torch import Tensor

from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Density, Hmc, Noisy, Psgld, Sghmc, Sgld, Sgnht
from bdl_pipe.sgmcmc.sampling import density_of

Z = 5.0
PRECISIONS = torch.tensor([100.0, 30.0], dtype=torch.float64)
TEMPERATURE = 0.5
ALL = {
    kernel.name: kernel for kernel in (Sgld(), Psgld(), Sghmc(), Sgnht(friction=0.2, thermostat=1e-3), Hmc(leapfrogs=5))
}
STEPS = {"sgld": 5e-3, "psgld": 5e-3, "sghmc": 0.02, "sgnht": 0.01, "hmc": 0.1}
every_kernel = pytest.mark.parametrize("name", list(ALL))


def gaussian(positions: Tensor) -> Tensor:
    return -0.5 * (positions.square() * PRECISIONS).sum(1)


def noisy(variance: float, rng: Seed) -> Noisy:
    """The Gaussian's density, with independent noise of this variance on each gradient."""
    exact = density_of(gaussian)

    def at(step: int) -> Density:
        def density(positions: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = exact(positions)
            noise = torch.randn(gradient.shape, generator=rng.fold(step).generator(), dtype=gradient.dtype)
            return value, gradient + variance**0.5 * noise

        return density

    return Noisy(at)


def standard_errors(sample_: Tensor, variance: Tensor) -> float:
    """The largest distance of a sample's variances from ``variance``, in standard errors of it.

    A standard error is √(2/n) of the variance: the sample is of independent Gaussians of mean 0.
    """
    return float(((sample_.square().mean(0) - variance) / variance).abs().max()) / (2 / len(sample_)) ** 0.5
