"""What everything else is compared with: one network, several, cheap posteriors over weights, Gaussian processes."""

from .bnn import BNN, BnnPosterior
from .deterministic import DETERMINISTIC
from .dropout import DROPOUT, DropoutPosterior
from .ensemble import ENSEMBLE
from .gp import GP
from .sngp import SNGP

__all__ = ["BNN", "DETERMINISTIC", "DROPOUT", "ENSEMBLE", "GP", "SNGP", "BnnPosterior", "DropoutPosterior"]
