"""Exact integrals over a box of weights: expectations, densities and distribution functions of sums of uniforms.

The package does not depend on networks or posteriors and can be used on its own; :mod:`bdl_pipe.collapsed` uses it.
"""

from .few_uniforms import expect, log_triangular_density, triangular_cdf, triangular_density
from .piecewise import Piecewise, cubic_sigmoid, radius, sigmoid_error, triangular
from .softmax import mean_sigmoid, softmax_one
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
