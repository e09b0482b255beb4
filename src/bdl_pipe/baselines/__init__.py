"""What everything else is compared with: one network, several, cheap posteriors over weights, Gaussian processes."""

from .bnn import BNN, BnnPosterior
from .deterministic import DETERMINISTIC
from .dropout import DROPOUT, DropoutPosterior
from .ensemble import ENSEMBLE
from .exact_layer import ExactLayerPosterior
from .gbll import GBLL, LDGBLL
from .gp import GP
from .map_blr import MAP_BLR
from .sngp import SNGP

__all__ = [
    "BNN",
    "DETERMINISTIC",
    "DROPOUT",
    "ENSEMBLE",
    "GBLL",
    "GP",
    "LDGBLL",
    "MAP_BLR",
    "SNGP",
    "BnnPosterior",
    "DropoutPosterior",
    "ExactLayerPosterior",
]
