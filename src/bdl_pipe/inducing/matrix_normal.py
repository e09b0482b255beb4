"""A matrix-normal posterior of a layer's weights with diagonal row and column covariances.

Source: Louizos and Welling 2016, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors":
q(W) = MN(M, U, V), which is N(vec M, U ⊗ V) for the concatenated rows of W. With diagonal U [out] and V [in] the layer
stores out·in + out + in numbers, as in table 1 of Ritter et al. 2021, and the entries are independent, with standard
deviations √(U_i V_j). The KL from N(0, σ²I) needs only the traces and determinants of U and V:

    ½[tr(U) tr(V)/σ² + ‖M‖²/σ² − out·in − in·log det U − out·log det V] + out·in·log σ

Ours: the prior is that of the other kinds; M starts at the given weights; ``sd_max`` bounds each deviation, since √U
and √V are below √sd_max each. Their pseudo-rows, which make a layer's outputs a Gaussian process, are left out. They
draw the outputs of a layer, as ``training_draws: outputs`` does.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import WeightConfig
from .posteriors import capped, free, log_capped
from .weightspace import IndependentWeights


@final
class MatrixNormalWeights(IndependentWeights):
    """A matrix-normal distribution with diagonal covariances.

    Attributes:
        mean: M [out, in].
        free_out, free_in: the diagonals of √U [out] and √V [in] before the bound is applied.
    """

    def __init__(self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.detach().clone())
        self._prior, self._cap = prior_sd, None if config.sd_max is None else config.sd_max**0.5
        start = free(config.start_sd**0.5, self._cap)
        self.free_out = nn.Parameter(torch.full_like(mean[:, 0], start).detach())
        self.free_in = nn.Parameter(torch.full_like(mean[0], start).detach())

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        return torch.outer(capped(self.free_out, self._cap), capped(self.free_in, self._cap))

    def centre(self) -> Float[Tensor, "out in"]:
        return self.mean

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        out, columns = self.mean.shape
        traces = [capped(f, self._cap).square().sum() / self._prior for f in (self.free_out, self.free_in)]
        squares = traces[0] * traces[1] + (self.mean / self._prior).square().sum() - out * columns
        log_roots = [log_capped(f, self._cap).sum() for f in (self.free_out, self.free_in)]
        scale = torch.as_tensor(self._prior, dtype=squares.dtype).log()
        return 0.5 * squares - columns * log_roots[0] - out * log_roots[1] + out * columns * scale
