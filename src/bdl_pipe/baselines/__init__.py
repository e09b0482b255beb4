"""What everything else is compared with: one trained network, and several."""

from .deterministic import DETERMINISTIC
from .ensemble import ENSEMBLE

__all__ = ["DETERMINISTIC", "ENSEMBLE"]
