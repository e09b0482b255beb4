"""Training trajectories: the snapshots that a network leaves on its way down, and what they say of its weights."""

from .pca_ess import PCA_ESS, PcaEssConfig
from .pca_vi import PCA_VI, PcaViConfig
from .sgd import SGD, SgdConfig
from .swa import SWA, SwaConfig
from .swag import SWAG, SwagConfig

__all__ = [
    "PCA_ESS",
    "PCA_VI",
    "SGD",
    "SWA",
    "SWAG",
    "PcaEssConfig",
    "PcaViConfig",
    "SgdConfig",
    "SwaConfig",
    "SwagConfig",
]
