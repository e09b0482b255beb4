"""A module with a factorised Gaussian posterior over its weights (Blundell et al. 2015).

q(θ) = Π N(m_i, s_i²) over the weights and biases of linear and convolutional layers, with the prior N(0, 4/√n_in) of
Harrison, Willes & Snoek 2023 (appendix G.2), n_in the layer's fan-in. Weights of normalisation layers stay point
estimates. log s is stored.
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import require
from .base import WEIGHTED


@final
class MeanField(nn.Module):
    """A ``module`` with Gaussian weights; its own parameters are the means.

    Attributes:
        module: the network or trunk whose weights are drawn.
        log_sd: log s of each weight, under its name in ``module`` with ``/`` for dots.
    """

    def __init__(self, module: nn.Module, initial_sd: float, prior_scale: float = 4.0) -> None:
        """Wrap ``module``, with the initial s ``initial_sd`` and the prior variance ``prior_scale``/√n_in."""
        super().__init__()
        require(initial_sd > 0, "initial_sd", "must be > 0", initial_sd)
        require(prior_scale > 0, "prior_scale", "must be > 0", prior_scale)
        self.module = module
        self._shapes: dict[str, torch.Size] = {}  # shape of each Gaussian weight, by its name in ``module``
        sds, priors = {}, []
        for place, layer in module.named_modules():
            if isinstance(layer, WEIGHTED):
                fan_in = layer.weight[0].numel()
                for name, weight in layer.named_parameters(recurse=False):
                    full = f"{place}.{name}" if place else name
                    self._shapes[full] = weight.shape
                    priors.append(torch.full((weight.numel(),), prior_scale / math.sqrt(fan_in), dtype=torch.float64))
                    sds[_key(full)] = nn.Parameter(torch.full_like(weight, math.log(initial_sd)).detach())
        self.log_sd = nn.ParameterDict(sds)
        self._prior: Tensor
        self.register_buffer("_prior", torch.cat(priors), persistent=False)  # prior variances [weight]

    def draw(self, steps: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw standard normal numbers for ``steps`` draws of all weights: name -> [steps, ...]."""
        return {k: torch.randn(steps, *v.shape, generator=generator) for k, v in self.log_sd.items()}

    def forward(self, inputs: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Compute the module's output with the weights m + s·noise."""
        means, log_sds = self._flat()
        drawn = means + log_sds.exp() * torch.cat([noise[_key(name)].flatten() for name in self._shapes])
        parts = drawn.split([shape.numel() for shape in self._shapes.values()])
        weights = {k: part.view(shape) for (k, shape), part in zip(self._shapes.items(), parts, strict=True)}
        return functional_call(self.module, weights, (inputs,))

    def kl(self) -> Tensor:
        """Compute KL(q(θ) || p(θ)), a scalar, constants kept."""
        means, log_sds = self._flat()
        prior = self._prior.to(means)
        log_ratio = 2 * log_sds - prior.log()
        return 0.5 * (log_ratio.exp() + means.square() / prior - 1 - log_ratio).sum()

    def _flat(self) -> tuple[Tensor, Tensor]:
        """Return m and log s of all weights [weight], so that operations run once and not for each layer."""
        means = dict(self.module.named_parameters())
        return (
            torch.cat([means[name].flatten() for name in self._shapes]),
            torch.cat([self.log_sd[_key(name)].flatten() for name in self._shapes]),
        )


def _key(name: str) -> str:
    return name.replace(".", "/")
