"""What everything else is compared with: one trained network, several, and an exact Gaussian process."""

from .deterministic import DETERMINISTIC
from .ensemble import ENSEMBLE
from .gp import GP

__all__ = ["DETERMINISTIC", "ENSEMBLE", "GP"]
