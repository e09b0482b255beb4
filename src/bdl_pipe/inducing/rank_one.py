"""Rank-1 posterior of a layer's weights: fixed weights with one random factor for each output and each input.

Source: Dusenberry et al. 2020, "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors": W = W̄ ∘ r sᵀ with a
point estimate W̄ and q(r, s) = (1/K) Σ_k N(r; m_k, diag) N(s; n_k, diag), a mixture of K components: out·in +
2K(out + in) numbers, with K = 1 those of table 1 of Ritter et al. 2021. The entries of W in one row or column are
correlated; W is not Gaussian. The priors are r, s ~ N(1, τ²) and W̄ ~ N(0, σ²), so that the loss has

    (1/K) Σ_k KL[q_k(r) q_k(s) ‖ p(r) p(s)] + ½‖W̄‖²/σ².

A mixture has no KL in closed form; the mean over its components is an upper bound (convexity), with equality for K = 1,
so that the loss stays a bound of the evidence of r and s.

Ours: draws use the components in turn, one a step, where the paper computes all components on copies of the batch. The
bias is one more input, multiplied by r and its s; there it is added after the factors. The means start at N(1,
spread²), one of the published code's two starts, so that the network starts near the given weights; the other is a
random sign. Only the Gaussian prior of the paper is offered.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import WeightConfig
from .layers import Weights
from .posteriors import Noise, capped, free, gaussian_kl, log_capped


@final
class RankOneWeights(Weights):
    """The distribution of W̄ ∘ r sᵀ.

    Attributes:
        mean: W̄ [out, in].
        out_mean, in_mean: the components' means of r [member, out] and s [member, in].
        free_out, free_in: their standard deviations before the bound is applied, in the same shapes.
    """

    def __init__(
        self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.detach().clone())
        self._prior, self._factor_sd, self._cap = prior_sd, config.factor_sd, config.sd_max
        out, columns = (torch.randn(config.members, size, generator=generator) for size in mean.shape)
        self.out_mean = nn.Parameter(1 + config.spread * out)
        self.in_mean = nn.Parameter(1 + config.spread * columns)
        self.free_out = nn.Parameter(torch.full_like(out, free(config.start_sd, config.sd_max)))
        self.free_in = nn.Parameter(torch.full_like(columns, free(config.start_sd, config.sd_max)))

    @property
    def components(self) -> int:
        """Return K."""
        return len(self.out_mean)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        out, columns = self.mean.shape
        return {"out": (out,), "in": (columns,)}

    def factors(self) -> tuple[Float[Tensor, "member out"], Float[Tensor, "member in"]]:
        """Return the standard deviations of r and s."""
        return capped(self.free_out, self._cap), capped(self.free_in, self._cap)

    def forward(
        self, noise: Noise, factors: tuple[Float[Tensor, "member out"], Float[Tensor, "member in"]]
    ) -> Float[Tensor, "out in"]:
        """Return a draw of W; ``noise["member"]`` is the component, a one-hot vector [member]."""
        member = noise["member"].to(self.mean.dtype)
        of_outputs = member @ (self.out_mean + factors[0] * noise["out"])
        of_inputs = member @ (self.in_mean + factors[1] * noise["in"])
        return self.mean * torch.outer(of_outputs, of_inputs)

    def centre(self) -> Float[Tensor, "out in"]:
        return self.mean * (self.out_mean.mT @ self.in_mean) / self.components

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        """Return the bound of the mixture's KL, plus minus the log prior of W̄ up to a constant, in nats."""
        total = 0.5 * (self.mean / self._prior).square().sum()
        for mean, unbounded in ((self.out_mean, self.free_out), (self.in_mean, self.free_in)):
            sd, log_sd = capped(unbounded, self._cap), log_capped(unbounded, self._cap)
            total = total + gaussian_kl(mean - 1, sd, log_sd, self._factor_sd) / self.components
        return total
