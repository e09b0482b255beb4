"""Gaussians over the weights, for comparison with inducing weights.

:class:`IndependentWeights` is what all kinds with independent entries share, also the two of ``low_rank``.
:class:`FactorisedWeights` (FFG-W; Blundell et al. 2015) with a hard cap on its standard deviations (Louizos & Welling
2017), and :class:`FullCovarianceWeights` (FCG-W), one covariance over all of a layer's weights. The initial means are
the given weights. :class:`IndependentWeights` may draw a layer's outputs instead of its weights (the local
reparameterisation of Kingma, Salimans & Welling 2015; :class:`LocalLayer`): for an output a that is linear in the
weights, a ~ N(E[W]x, Var[W]x²), independent between rows. For a convolution, places are also drawn independently,
although they share weights (Molchanov, Ashukha & Vetrov 2017); the marginals are exact.
"""

from abc import abstractmethod
from typing import cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from .config import WeightConfig
from .layers import Weights
from .posteriors import Noise, Triangle, capped, free, full_kl, gaussian_kl, log_capped
from .sparse import Kept, whole


class IndependentWeights(Weights):
    """A distribution of independent Gaussians with the means :meth:`centre` and the deviations :attr:`sd`."""

    def __init__(self, mean: Float[Tensor, "out in"]) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.detach().clone())

    @property
    @abstractmethod
    def sd(self) -> Float[Tensor, "out in"]:
        """Return the bounded standard deviations."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": tuple(self.centre().shape)}

    def factors(self) -> Tensor:
        return self.sd

    def forward(self, noise: Noise, factors: Tensor) -> Float[Tensor, "out in"]:
        return self.centre() + factors * noise["weight"]

    def centre(self) -> Float[Tensor, "out in"]:
        return self.mean


@final
class FactorisedWeights(IndependentWeights):
    """A distribution of independent Gaussians; pruned weights are 0, without variance and KL.

    Attributes:
        mean: E[W] [out, in]; after pruning, the vector of the kept weights' means.
        free_sd: the standard deviations before the bound is applied, in ``mean``'s shape.
        kept: the pattern of the kept weights; None if all weights are kept.
    """

    def __init__(self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float) -> None:
        super().__init__(mean)
        self._shape = (mean.shape[0], mean.shape[1])
        self._cap, self._prior = config.sd_max, prior_sd
        self.free_sd = nn.Parameter(torch.full_like(mean, free(config.start_sd, config.sd_max)).detach())
        self.kept: Kept | None = None

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        """Return the bounded standard deviations; 0 for pruned weights."""
        return whole(capped(self.free_sd, self._cap), self.kept)

    def importance(self) -> dict[str, Float[Tensor, "row column"]]:
        """Return |mean| over standard deviation (Ritter et al. 2021, appendix K)."""
        return {"weight": (self.centre() / self.sd).detach().abs().nan_to_num(0.0, torch.inf)}

    def keep(self, masks: dict[str, Bool[Tensor, "row column"]]) -> None:
        kept, free_sd = Kept(masks["weight"]), whole(self.free_sd, self.kept)
        self.mean = nn.Parameter(kept.of(self.centre().detach()))
        self.free_sd = nn.Parameter(kept.of(free_sd.detach()))
        self.kept = kept

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": self._shape}

    def centre(self) -> Float[Tensor, "out in"]:
        return whole(self.mean, self.kept)

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        return gaussian_kl(self.mean, capped(self.free_sd, self._cap), log_capped(self.free_sd, self._cap), self._prior)


@final
class FullCovarianceWeights(Weights):
    """A Gaussian with a full covariance over vec(W), row by row; ``covariance`` holds its factor's lower triangle."""

    def __init__(self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.detach().clone())
        self._prior = prior_sd
        self.covariance = Triangle(mean.numel(), config.start_sd, config.sd_max)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.mean.numel(),)}

    def factors(self) -> Tensor:
        return self.covariance()

    def forward(self, noise: Noise, factors: Tensor) -> Float[Tensor, "out in"]:
        return self.mean + (factors @ noise["weight"]).view_as(self.mean)

    def centre(self) -> Float[Tensor, "out in"]:
        return self.mean

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        return full_kl(self.mean.flatten(), self.covariance(), self._prior)


@final
class LocalLayer(nn.Module):
    """A linear or convolutional layer that draws its outputs if a call passes variances and noise to it.

    Its three buffers, like ``layer``'s weights, are empty except during a call of the network.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        for name in ("variance", "bias_variance", "noise"):
            self.register_buffer(name, torch.empty(0), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        mean = self.layer(inputs)
        noise = cast(Tensor, self.noise)
        if noise.numel() == 0:
            return mean
        lent = {"weight": cast(Tensor, self.variance)}
        if self.layer.bias is not None:
            drawn = cast(Tensor, self.bias_variance)
            lent["bias"] = drawn if drawn.numel() else torch.zeros_like(cast(Tensor, self.layer.bias))  # a constant
        variance = functional_call(self.layer, lent, (inputs.square(),))
        least = torch.finfo(variance.dtype).tiny  # for zero inputs, since √ has no derivative at 0
        return mean + variance.clamp_min(least).sqrt() * noise.to(mean.dtype)
