"""What everything else is compared with: one trained network, several, and two cheap posteriors over weights."""

from .bnn import BNN, BnnPosterior
from .deterministic import DETERMINISTIC
from .dropout import DROPOUT, DropoutPosterior
from .ensemble import ENSEMBLE

__all__ = ["BNN", "DETERMINISTIC", "DROPOUT", "ENSEMBLE", "BnnPosterior", "DropoutPosterior"]
