"""Global inducing weights: all layers' U are drawn together from a smaller matrix (Ritter et al. 2021, appendix H).

The layers' whitened U, stacked along the rows to [Σ rows, cols], have the prior N(0, I) and are augmented like a
layer's W, with σ = 1. This gives correlations between layers for one more Z_r, Z_c, D_r, D_c and λ, and a single q(U).
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import WeightConfig
from .layers import Factors, Inducing, inducing_posterior
from .posteriors import Noise


@final
class Shared(nn.Module):
    """The joint distribution of the layers' U, each [rows, cols] with the same cols."""

    def __init__(self, rows: dict[str, int], cols: int, config: WeightConfig, generator: torch.Generator) -> None:
        """Create the distribution from the ``rows`` of each layer's U, by key, and the global matrix's ``config``."""
        super().__init__()
        self._rows = dict(rows)
        stacked = (sum(rows.values()), cols)
        self.weights = Inducing(stacked, config, 1.0, inducing_posterior(config, generator), generator)

    def forward(self, noise: Noise, factors: Factors) -> dict[str, Tensor]:
        """Return a draw of every layer's U, by key."""
        return self._split(self.weights(noise, factors))

    def centre(self) -> dict[str, Tensor]:
        """Return E[U] of every layer, by key."""
        return self._split(self.weights.centre())

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL from the prior in nats."""
        return self.weights.kl(None)

    def _split(self, stacked: Float[Tensor, "total cols"]) -> dict[str, Tensor]:
        return dict(zip(self._rows, stacked.split(list(self._rows.values()), -2), strict=True))
