"""Training trajectories: the snapshots that a network leaves on its way down, and what they say of its weights."""

from .sgd import SGD, SgdConfig
from .swa import SWA, SwaConfig
from .swag import SWAG, SwagConfig

__all__ = ["SGD", "SWA", "SWAG", "SgdConfig", "SwaConfig", "SwagConfig"]
