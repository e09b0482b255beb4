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


def fit(
    scaled: Sequence[Float[np.ndarray, " row"]], weights: Sequence[Float[np.ndarray, " row"] | None] | None = None
) -> StudentNoise:
    """Maximise the log-likelihood of the residuals of each output; they need no sign.

    Args:
        weights: of the rows of each output. None: all are 1.
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import t

    of_outputs = list(zip(scaled, weights or [None] * len(scaled), strict=True))

    def density(log_degrees: float) -> float:
        degrees = math.exp(log_degrees)
        each = [mean(t.logpdf(z, degrees, scale=_factor(degrees, z, w)), w) for z, w in of_outputs]
        return float(np.mean(each))

    bounds = [math.log(end) for end in _DEGREES]
    best = minimize_scalar(lambda x: -density(x), bounds=bounds, method="bounded", options={"xatol": 1e-3})
    degrees = math.exp(best.x)
    return StudentNoise(degrees, tuple(_factor(degrees, z, w) for z, w in of_outputs), -float(best.fun))


def _factor(degrees: float, z: np.ndarray, weights: np.ndarray | None) -> float:
    squared = z**2
    square = max(float(np.median(squared)), 1e-12 * max(float(squared.mean()), 1e-300))  # a start
    for _ in range(_ITERATIONS):
        square = mean((degrees + 1) * squared / (degrees + squared / square), weights)
    return math.sqrt(square)


def mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of values; with weights [row] the weighted one."""
    return float(values.mean() if weights is None else np.average(values, weights=weights))
