"""The degrees of freedom and the scale of a Student t, from residuals of rows that a fit left out.

z = c t_ν, where z is a residual over an estimate of its standard deviation. For one ν, the best c² is the fixed point
of the mean of w z², w = (ν + 1)/(ν + z²/c²) (Lange, Little & Taylor 1989, section 3). A search finds the best ν.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

_ITERATIONS: Final = 60  # of the fixed point; the error shrinks by two fifths or more in each
_DEGREES: Final = (2.1, 100.0)  # the variance exists, and the distribution differs from a Gaussian


@dataclass(frozen=True)
class StudentNoise:
    """Estimates from residuals.

    Attributes:
        degrees: ν, from 2.1 to 100, of all outputs.
        factors: c of each output.
        density: the mean of log p(z).
    """

    degrees: float
    factors: tuple[float, ...]
    density: float


def fit(scaled: Sequence[Float[np.ndarray, " row"]]) -> StudentNoise:
    """Maximise the log-likelihood of the residuals of each output; they need no sign."""
    from scipy.optimize import minimize_scalar
    from scipy.stats import t

    def density(log_degrees: float) -> float:
        degrees = math.exp(log_degrees)
        return float(np.mean([t.logpdf(z, degrees, scale=_factor(degrees, z)).mean() for z in scaled]))

    bounds = [math.log(end) for end in _DEGREES]
    best = minimize_scalar(lambda x: -density(x), bounds=bounds, method="bounded", options={"xatol": 1e-3})
    degrees = math.exp(best.x)
    return StudentNoise(degrees, tuple(_factor(degrees, z) for z in scaled), -float(best.fun))


def _factor(degrees: float, z: np.ndarray) -> float:
    squared = z**2
    square = max(float(np.median(squared)), 1e-12 * max(float(squared.mean()), 1e-300))
    for _ in range(_ITERATIONS):
        square = float(((degrees + 1) * squared / (degrees + squared / square)).mean())
    return math.sqrt(square)
