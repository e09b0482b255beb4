"""Posteriors of a layer's weights that store few numbers beside the weights: matrix-normal, k-tied and rank-1.

Matrix-normal: Louizos and Welling 2016, "Structured and Efficient Variational Deep Learning with Matrix Gaussian
Posteriors": q(W) = MN(M, U, V), which is N(vec M, U ⊗ V) for the concatenated rows of W. With diagonal U [out] and V
[in] the layer stores out·in + out + in numbers, as in table 1 of Ritter et al. 2021, and the entries are independent,
with standard deviations √(U_i V_j). The KL from N(0, σ²I) needs only the traces and determinants of U and V:

    ½[tr(U) tr(V)/σ² + ‖M‖²/σ² − out·in − in·log det U − out·log det V] + out·in·log σ

k-tied: Swiatkowski et al. 2020, "The k-tied Normal Distribution": W_ij ~ N(M_ij, A_ij²) with A = Σ_k u_k v_kᵀ for
positive u_k [out] and v_k [in]: out·in + k(out + in) numbers. k = 1 is the matrix-normal posterior.

Rank-1: Dusenberry et al. 2020, "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors": W = W̄ ∘ r sᵀ with a
point estimate W̄ and q(r, s) = (1/K) Σ_k N(r; m_k, diag) N(s; n_k, diag), a mixture of K components: out·in +
2K(out + in) numbers, with K = 1 those of table 1 of Ritter et al. 2021. The entries of W in one row or column are
correlated; W is not Gaussian. The priors are r, s ~ N(1, τ²) and W̄ ~ N(0, σ²), so that the loss has

    (1/K) Σ_k KL[q_k(r) q_k(s) ‖ p(r) p(s)] + ½‖W̄‖²/σ².

A mixture has no KL in closed form; the mean over its components is an upper bound (convexity), with equality for K = 1,
so that the loss stays a bound of the evidence of r and s.

Ours: the prior is that of the other kinds; M starts at the given weights; ``sd_max`` bounds each deviation, since √U
and √V are below √sd_max each and k-tied factors below √(sd_max/k). Louizos and Welling's pseudo-rows, which make a
layer's outputs a Gaussian process, are left out. They draw the outputs of a layer, as ``training_draws: outputs``
does. k-tied factors start near √(sd_init/k), with N(0, 0.1²) added to their unconstrained numbers: equal factors have
equal gradients, so that the rank would stay 1. Rank-1 draws use the components in turn, one a step, where the paper
computes all components on copies of the batch. The bias is one more input, multiplied by r and its s; there it is
added after the factors. The means start at N(1, spread²), one of the published code's two starts, so that the network
starts near the given weights; the other is a random sign. Only the Gaussian prior of the paper is offered.
"""

from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import WeightConfig
from .layers import Weights
from .posteriors import Noise, capped, free, gaussian_kl, log_capped
from .weightspace import IndependentWeights

_DIFFERENT: Final = 0.1


@final
class MatrixNormalWeights(IndependentWeights):
    """A matrix-normal distribution with diagonal covariances.

    Attributes:
        mean: M [out, in].
        free_out, free_in: the diagonals of √U [out] and √V [in] before the bound is applied.
    """

    def __init__(self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float) -> None:
        super().__init__(mean)
        self._prior, self._cap = prior_sd, None if config.sd_max is None else config.sd_max**0.5
        start = free(config.start_sd**0.5, self._cap)
        self.free_out = nn.Parameter(torch.full_like(mean[:, 0], start).detach())
        self.free_in = nn.Parameter(torch.full_like(mean[0], start).detach())

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        return torch.outer(capped(self.free_out, self._cap), capped(self.free_in, self._cap))

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        out, columns = self.mean.shape
        traces = [capped(f, self._cap).square().sum() / self._prior for f in (self.free_out, self.free_in)]
        squares = traces[0] * traces[1] + (self.mean / self._prior).square().sum() - out * columns
        log_roots = [log_capped(f, self._cap).sum() for f in (self.free_out, self.free_in)]
        scale = torch.as_tensor(self._prior, dtype=squares.dtype).log()
        return 0.5 * squares - columns * log_roots[0] - out * log_roots[1] + out * columns * scale


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
        super().__init__(mean)
        self._prior = prior_sd
        self._cap = None if config.sd_max is None else (config.sd_max / config.rank) ** 0.5
        start = free((config.start_sd / config.rank) ** 0.5, self._cap)
        out, columns = (torch.randn(size, config.rank, generator=generator) for size in mean.shape)
        self.free_out = nn.Parameter(start + _DIFFERENT * out)
        self.free_in = nn.Parameter(start + _DIFFERENT * columns)

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        return capped(self.free_out, self._cap) @ capped(self.free_in, self._cap).mT

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        sd = self.sd
        return gaussian_kl(self.mean, sd, sd.log(), self._prior)


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
