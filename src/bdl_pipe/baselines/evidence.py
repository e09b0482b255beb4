"""The prior and noise variance that maximise the evidence of Bayesian linear regression.

With r = s/σ², K = σ²(I + rΦΦᵀ): at a given r the best noise is σ² = tr Yᵀ(I + rΦΦᵀ)⁻¹Y/(no), so the evidence is a
function of r alone. With Φ's singular values and Y's coordinates along them (one thin SVD), it and its slope cost
O(ho). The root of the slope is searched between the two neighbours of the best point of a grid over log r. The grid
finds local maxima that a fixed point (MacKay 1992) or a descent from one start may miss.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError

_LOG_RANGE: Final = (math.log(1e-6), math.log(1e12))  # the range of log r times Φ's largest squared singular value
_CELLS: Final = 240


@dataclass(frozen=True)
class Hyperparameters:
    """The two variances that maximise the evidence.

    Attributes:
        prior_variance: s.
        noise_variance: σ².
    """

    prior_variance: float
    noise_variance: float


@dataclass(frozen=True)
class _Spectrum:
    """The sums from which the evidence is computed.

    They are Φ's nonzero squared singular values [m], Y's energy along each of Φ's left singular vectors [m] and outside
    them, n·o, and o.
    """

    squared: np.ndarray
    energy: np.ndarray
    outside: float
    count: int
    outputs: int

    def rest(self, log_ratio: float) -> float:
        """Return tr Yᵀ(I + rΦΦᵀ)⁻¹Y = no·σ²(r)."""
        return self.outside + float((self.energy / (1 + math.exp(log_ratio) * self.squared)).sum())

    def evidence(self, log_ratio: float) -> float:
        """Return log p(Y) at r and its best σ², up to a constant."""
        log_det = float(np.log1p(math.exp(log_ratio) * self.squared).sum())
        return -0.5 * (self.outputs * log_det + self.count * math.log(self.rest(log_ratio)))

    def slope(self, log_ratio: float) -> float:
        """Return the derivative of ``evidence`` with respect to log r."""
        grown = math.exp(log_ratio) * self.squared
        gain = float((self.energy * grown / (1 + grown) ** 2).sum()) / self.rest(log_ratio)
        return 0.5 * (self.count * gain - self.outputs * float((grown / (1 + grown)).sum()))


def fit_hyperparameters(features: Float[Tensor, "n h"], targets: Float[Tensor, "n o"]) -> Hyperparameters:
    """Return the (s, σ²) with the largest evidence of the training rows, one pair for all outputs, without a gradient.

    If the evidence still rises at an end of the range of r (targets are pure noise, or the features fit them exactly),
    this end is returned.

    Raises:
        DataError: features or targets are not finite, or are all zero.
    """
    spectrum = _spectrum(features.detach().double(), targets.detach().double())
    top = math.log(spectrum.squared[0])
    grid = np.linspace(_LOG_RANGE[0] - top, _LOG_RANGE[1] - top, _CELLS + 1)
    best = int(np.argmax([spectrum.evidence(float(x)) for x in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _CELLS)])
    log_ratio = float(grid[best])
    if spectrum.slope(low) > 0 > spectrum.slope(high):
        from scipy.optimize import brentq  # imported here, because the import takes half a second

        log_ratio = float(brentq(spectrum.slope, low, high, xtol=1e-13, rtol=1e-13))
    noise = spectrum.rest(log_ratio) / spectrum.count
    return Hyperparameters(math.exp(log_ratio) * noise, noise)


def _spectrum(features: Tensor, targets: Tensor) -> _Spectrum:
    if not (torch.isfinite(features).all() and torch.isfinite(targets).all()):
        raise DataError("features and targets must be finite")
    if not (features.any() and targets.any()):
        raise DataError("features and targets must not be all zero")
    left, singular, _ = torch.linalg.svd(features, full_matrices=False)
    kept = singular > singular[0] * max(features.shape) * torch.finfo(features.dtype).eps
    along = left[:, kept].T @ targets  # [m, o]
    # from the residual, since ‖Y‖² − ‖along‖² cancels; 1e-30 keeps the logarithm of an exact fit finite
    outside = float((targets - left[:, kept] @ along).square().sum()) + 1e-30 * float(targets.square().sum())
    energy = along.square().sum(1).numpy(force=True)
    return _Spectrum(singular[kept].square().numpy(force=True), energy, outside, targets.numel(), targets.shape[1])
