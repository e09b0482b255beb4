"""The closed-form head on the features of a trunk."""

from dataclasses import dataclass

from torch import Tensor

from ... import networks
from ...errors import require
from ..shared.trunk import features
from . import closed_form


@dataclass(frozen=True)
class HeadConfig:
    """The settings of the closed-form head and its features.

    Attributes:
        rho: ρ, the precision of the prior of the head's weights.
        gamma: γ, the *precision* of the coreset's Gaussian likelihood.
        feature_scale: the factor of φ.
    """

    rho: float
    gamma: float
    feature_scale: float

    def __post_init__(self) -> None:
        for name in ("rho", "gamma", "feature_scale"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))

    def solve(self, network: networks.Network, images: Tensor, labels: Tensor) -> closed_form.HeadPosterior:
        """Solve for the posterior of the head on this network's features, with β_S = n̂."""
        phi = features(network, images, self.feature_scale)
        return closed_form.solve(phi, labels, self.rho, self.gamma)
