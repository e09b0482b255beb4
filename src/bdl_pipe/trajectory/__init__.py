"""Training trajectories: the snapshots that a network leaves on its way down, and what they say of its weights."""

from .laplace import KFAC_LAPLACE, KfacLaplaceConfig
from .linearised import LinearisedDraws
from .sgd import SGD, SgdConfig
from .swag import SWAG, SwagConfig

__all__ = ["KFAC_LAPLACE", "SGD", "SWAG", "KfacLaplaceConfig", "LinearisedDraws", "SgdConfig", "SwagConfig"]
