"""What everything else is compared with: one trained network, several, and one with a Gaussian-process head."""

from .deterministic import DETERMINISTIC
from .ensemble import ENSEMBLE
from .sngp import SNGP

__all__ = ["DETERMINISTIC", "ENSEMBLE", "SNGP"]
