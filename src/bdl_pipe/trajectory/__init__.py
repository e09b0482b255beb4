"""Training trajectories: the snapshots that a network leaves on its way down."""

from .sgd import SGD, SgdConfig

__all__ = ["SGD", "SgdConfig"]
