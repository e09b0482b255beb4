"""Exact integrals over a box of weights: expectations, densities, distribution functions of linear forms of uniforms.

There is no network and no posterior in here: :mod:`bdl_pipe.collapsed` builds on it, and it may be used alone.
"""

from .few_uniforms import expect, log_triangular_density, triangular_cdf, triangular_density
from .piecewise import Piecewise, cubic_sigmoid, sigmoid_error
from .softmax import mean_sigmoid, softmax_one
from .triangle import radius, triangular
from .uniform_logits import log_expected_softmax

__all__ = [
    "Piecewise",
    "cubic_sigmoid",
    "expect",
    "log_expected_softmax",
    "log_triangular_density",
    "mean_sigmoid",
    "radius",
    "sigmoid_error",
    "softmax_one",
    "triangular",
    "triangular_cdf",
    "triangular_density",
]
