"""Collapsed inference: some weights are integrated out exactly, the others sampled."""

from . import box
from .piecewise import Piecewise, sigmoid, sigmoid_error, triangular
from .triangular import radius

__all__ = ["Piecewise", "box", "radius", "sigmoid", "sigmoid_error", "triangular"]
