"""The k-tied normal posterior of a layer's weights: independent entries, deviations of rank k.

Source: Swiatkowski et al. 2020, "The k-tied Normal Distribution": W_ij ~ N(M_ij, A_ij²) with A = Σ_k u_k v_kᵀ for
positive u_k [out] and v_k [in]: out·in + k(out + in) numbers. k = 1 is the matrix-normal posterior with diagonal
covariances.

Ours: ``sd_max`` bounds each deviation, since all factors are below √(sd_max/k). The factors start near √(sd_init/k),
with N(0, 0.1²) added to their unconstrained numbers: equal factors have equal gradients, so that the rank would stay 1.
"""

from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import WeightConfig
from .posteriors import capped, free, gaussian_kl
from .weightspace import IndependentWeights

_DIFFERENT: Final = 0.1


@final
class TiedWeights(IndependentWeights):
    """A distribution of independent Gaussians whose matrix of standard deviations has rank k.

    Attributes:
        mean: M [out, in].
        free_out, free_in: the factors u [out, k] and v [in, k] before the bound is applied.
    """

    def __init__(
        self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.detach().clone())
        self._prior = prior_sd
        self._cap = None if config.sd_max is None else (config.sd_max / config.rank) ** 0.5
        start = free((config.start_sd / config.rank) ** 0.5, self._cap)
        out, columns = (torch.randn(size, config.rank, generator=generator) for size in mean.shape)
        self.free_out = nn.Parameter(start + _DIFFERENT * out)
        self.free_in = nn.Parameter(start + _DIFFERENT * columns)

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        return capped(self.free_out, self._cap) @ capped(self.free_in, self._cap).mT

    def centre(self) -> Float[Tensor, "out in"]:
        return self.mean

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        sd = self.sd
        return gaussian_kl(self.mean, sd, sd.log(), self._prior)
