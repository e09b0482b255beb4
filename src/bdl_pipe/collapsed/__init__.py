"""Collapsed inference: some weights are integrated out exactly, the others sampled."""

from . import box
from .piecewise import Piecewise, cubic_sigmoid, sigmoid_error
from .triangle import radius, triangular

__all__ = ["Piecewise", "box", "cubic_sigmoid", "radius", "sigmoid_error", "triangular"]
