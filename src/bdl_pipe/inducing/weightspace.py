"""Gaussians over the weights themselves, which the inducing ones are compared with.

:class:`FactorisedWeights` (FFG-W; Blundell et al. 2015) with a hard cap on its standard deviations (Louizos &
Welling 2017), and :class:`FullCovarianceWeights` (FCG-W), one covariance over all of a layer's weights. Means start
at the weights that are given. In training the first may draw a layer's outputs in place of its weights (the local
reparameterisation of Kingma, Salimans & Welling 2015; :class:`LocalLayer`): for an output a that is linear in the
weights, a ~ N(E[W]x, Var[W]x²), independent between rows and, for a convolution, taken as independent between
places, which share weights (Molchanov, Ashukha & Vetrov 2017): its marginals are exact.
"""

from typing import cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from .config import WeightConfig
from .layers import Weights
from .posteriors import Noise, Triangle, capped, free, full_kl, gaussian_kl, log_capped
from .sparse import Kept, whole


@final
class FactorisedWeights(Weights):
    """A distribution of independent Gaussians; weights that have been removed are 0, without variance and without a KL.

    Attributes:
        mean: E[W] [out, in]; once pruned, of the weights that are kept.
        free_sd: the standard deviations before their cap, of ``mean``'s shape.
        kept: which weights these are; None: all.
    """

    def __init__(self, mean: Float[Tensor, "out in"], config: WeightConfig, prior_sd: float) -> None:
        super().__init__()
        self._shape = (mean.shape[0], mean.shape[1])
        self.mean = nn.Parameter(mean.detach().clone())
        self._cap, self._prior = config.sd_max, prior_sd
        self.free_sd = nn.Parameter(torch.full_like(mean, free(config.start_sd, config.sd_max)).detach())
        self.kept: Kept | None = None

    @property
    def sd(self) -> Float[Tensor, "out in"]:
        """Return the standard deviations under their cap, 0 where a weight has been removed."""
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

    def factors(self) -> Tensor:
        return self.sd

    def forward(self, noise: Noise, factors: Tensor) -> Float[Tensor, "out in"]:
        return self.centre() + factors * noise["weight"]

    def centre(self) -> Float[Tensor, "out in"]:
        return whole(self.mean, self.kept)

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        return gaussian_kl(self.mean, capped(self.free_sd, self._cap), log_capped(self.free_sd, self._cap), self._prior)


@final
class FullCovarianceWeights(Weights):
    """A distribution that is one Gaussian over vec(W), row after row.

    ``covariance`` keeps the lower triangle of its factor.
    """

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
    """A linear or convolutional layer that draws its outputs where it is lent variances and noise.

    The three buffers are empty but within a call of the network that holds the layer, as ``layer``'s weights are.
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
            lent["bias"] = cast(Tensor, self.bias_variance)
        variance = functional_call(self.layer, lent, (inputs.square(),))
        least = torch.finfo(variance.dtype).tiny  # inputs of zeros: √ has no slope at 0
        return mean + variance.clamp_min(least).sqrt() * noise.to(mean.dtype)
