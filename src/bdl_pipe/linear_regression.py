"""Bayesian linear regression on features: posterior, evidence, predictive, updates by rows, and the best variances.

    Y = ΦW + ε,  w_k ~ N(0, sI),  ε ~ N(0, σ²I),  independent outputs k
    A = ΦᵀΦ/σ² + I/s,  W | Y ~ N(A⁻¹ΦᵀY/σ², A⁻¹)      (Bishop 2006, eqs 3.53–3.54)

s is ``prior_variance`` and σ² ``noise_variance``, in the units of the targets. The evidence of N(0, sΦΦᵀ + σ²I) needs
only the h×h factor of A (Woodbury; the determinant lemma) and is computed as a sum of squares, without an n×n matrix or
differences of large numbers. Posterior, evidence and predictive are differentiable and work under ``torch.func.vmap``.

A row whose noise is σ²e^g equals the row times e^(−g/2) with the noise σ², and a row of weight w in the log-likelihood
equals the row times √w, but for the number of rows in the evidence, which is Σw: see :func:`scaled`.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .errors import DataError, Diverged
from .joint_predictive import GaussianFunctions
from .predictive import Gaussian

Variance = float | Float[Tensor, ""]
_LOG_RANGE: Final = (math.log(1e-6), math.log(1e12))  # the range of log r times Φ's largest squared singular value
_CELLS: Final = 240


def with_bias(features: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows h1"]:
    """Append a last feature that is one in every row.

    Its weight, the bias, has the same prior N(0, s) as the other weights and is integrated out with them. Centre the
    targets, so that the bias need not be large.
    """
    return F.pad(features, (0, 1), value=1.0)


def scaled(
    features: Float[Tensor, "n h"],
    targets: Tensor,
    log_noise: Float[Tensor, "n 1"] | None,
    weights: Float[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, "n h"], Tensor]:
    """Return φs and ys of targets [n, o], s = e^(−g/2) √w, which have one noise and weight 1.

    Args:
        log_noise: g. None: the noise is one already.
        weights: w > 0 of the rows' log-likelihoods. None: all are 1.
    """
    if log_noise is not None:
        s = (-log_noise / 2).exp()
        features, targets = features * s, targets * s
    if weights is not None:
        root = weights.sqrt()[:, None]
        features, targets = features * root, targets * root
    return features, targets


@dataclass(frozen=True)
class LinearPosterior:
    """The posterior W | Y = Π_k N(w_k | m_k, A⁻¹), made by :func:`posterior`.

    Attributes:
        mean: m.
        factor: lower Cholesky factor of the precision A.
        noise_variance: σ², for every output.
    """

    mean: Float[Tensor, "h o"]
    factor: Float[Tensor, "h h"]
    noise_variance: Float[Tensor, ""]

    def predict(
        self,
        features: Float[Tensor, "b h"],
        log_noise: Float[Tensor, "b 1"] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Gaussian:
        """Return p(y | x, Y) = N(φᵀm, φᵀA⁻¹φ + σ²e^g), in ``dtype`` if given; g is ``log_noise``, and None is 0."""
        mean = features @ self.mean
        whitened = torch.linalg.solve_triangular(self.factor, features.mT, upper=False)  # L⁻¹φ [h, b]
        noise = self.noise_variance if log_noise is None else self.noise_variance * log_noise[:, 0].exp()
        variance = (whitened.square().sum(-2) + noise)[:, None].expand_as(mean)
        return Gaussian(mean[None].to(dtype or mean.dtype), variance[None].to(dtype or mean.dtype))

    def functions(
        self, features: Float[Tensor, "group row h"], log_noise: Float[Tensor, "group row 1"] | None = None
    ) -> GaussianFunctions:
        """Return the Gaussian over φᵀw_k at the rows of each group, which share w_k."""
        whitened = torch.linalg.solve_triangular(self.factor, features.flatten(0, 1).mT, upper=False)  # L⁻¹φ
        grouped, mean = whitened.mT.unflatten(0, features.shape[:2]), features @ self.mean
        noise = self.noise_variance.expand(1, mean.shape[-1])
        noise = noise if log_noise is None else noise[:, None, None] * log_noise.exp()
        return GaussianFunctions(mean[None], (grouped @ grouped.mT)[None, :, None], noise, classes=False)


def posterior(
    features: Float[Tensor, "n h"], targets: Float[Tensor, "n o"], prior_variance: Variance, noise_variance: Variance
) -> LinearPosterior:
    """Return the posterior of the weights; both variances are > 0.

    Raises:
        Diverged: the features are not finite, or s‖Φ‖²/σ² is too large for the dtype.
    """
    prior, noise = (_like(features, variance) for variance in (prior_variance, noise_variance))
    identity = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    # the factor of I + (s/σ²)ΦᵀΦ, which has no eigenvalue below 1
    try:
        factor = torch.linalg.cholesky(identity + prior / noise * (features.mT @ features)) / prior.sqrt()
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged("the features became NaN or too large: lower the learning rate") from error
    return LinearPosterior(torch.cholesky_solve(features.mT @ targets / noise, factor), factor, noise)


def log_marginal_likelihood(
    features: Float[Tensor, "n h"],
    targets: Float[Tensor, "n o"],
    prior_variance: Variance,
    noise_variance: Variance,
    rows: Variance | None = None,
) -> Float[Tensor, ""]:
    """Return Σ_k log N(y_k | 0, sΦΦᵀ + σ²I), in nats (Bishop 2006, eq. 3.86); see :func:`best_variances` for ``rows``.

    It raises the errors of ``posterior``.
    """
    q = posterior(features, targets, prior_variance, noise_variance)
    prior, noise = _like(features, prior_variance), q.noise_variance
    (n, h), outputs = features.shape, targets.shape[-1]
    count = n if rows is None else rows
    log_det = count * noise.log() + h * prior.log() + 2 * q.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    misfit = (targets - features @ q.mean).square().sum((-2, -1)) / noise
    size = q.mean.square().sum((-2, -1)) / prior
    return -0.5 * (misfit + size + outputs * (log_det + count * math.log(2 * math.pi)))


def _like(features: Tensor, variance: Variance) -> Tensor:
    return torch.as_tensor(variance, dtype=features.dtype, device=features.device)


@dataclass
class RecursiveLayer:
    """A Gaussian w ~ N(A⁻¹b, A⁻¹) that learns rows: A ← A + φφᵀ/σ², b ← b + φy/σ²; float64.

    The update is exact: after any rows, in any order, the Gaussian equals the posterior of Bayesian linear regression
    on all these rows with the first Gaussian as its prior (Bishop 2006, eqs 3.50–3.51).

    Attributes:
        precision: A.
        shift: b, of one output or of several, which share A.
        noise_variance: σ².
    """

    precision: Float[Tensor, "h h"]
    shift: Float[Tensor, " h"] | Float[Tensor, "h o"]
    noise_variance: Float[Tensor, ""]

    def learn(
        self,
        features: Float[Tensor, "n h"],
        targets: Float[Tensor, "n 1"],
        log_noise: Float[Tensor, "n 1"] | None = None,
        keep: float = 1.0,
    ) -> None:
        """Condition the Gaussian on rows with the noise σ²e^g; g is ``log_noise``, and None is 0.

        Args:
            keep: the factor λ of all weights so far after each row: A ← λA + φφᵀ/σ², b ← λb + φy/σ² (exponential
                forgetting, as in recursive least squares).
        """
        phi, y = scaled(features.double(), targets.double(), log_noise)
        weights = keep ** torch.arange(len(phi) - 1, -1, -1, dtype=torch.float64, device=phi.device)
        weighted, earlier = weights * phi.mT / self.noise_variance, keep ** len(phi)
        self.precision = earlier * self.precision + weighted @ phi
        self.shift = earlier * self.shift + weighted @ (y[:, 0] if self.shift.ndim == 1 else y)

    def posterior(self) -> LinearPosterior:
        """Return the Gaussian as a posterior that predicts."""
        factor = torch.linalg.cholesky(self.precision)
        shift = self.shift[:, None] if self.shift.ndim == 1 else self.shift
        return LinearPosterior(torch.cholesky_solve(shift, factor), factor, self.noise_variance)


def best_variances(
    features: Float[Tensor, "n h"], targets: Float[Tensor, "n o"], rows: float | None = None
) -> tuple[float, float]:
    """Return the (s, σ²) with the largest evidence of the rows, one pair for all outputs, without a gradient.

    With r = s/σ², K = σ²(I + rΦΦᵀ): at a given r the best noise is σ² = tr Yᵀ(I + rΦΦᵀ)⁻¹Y/(no), so the evidence is a
    function of r alone. With Φ's singular values and Y's coordinates along them (one thin SVD), it and its slope cost
    O(ho). The root of the slope is searched between the two neighbours of the best point of a grid over log r. The grid
    finds local maxima that a fixed point (MacKay 1992) or a descent from one start may miss. If the evidence still
    rises at an end of the range of r (targets are pure noise, or the features fit them exactly), this end is returned.

    Args:
        rows: the number n of rows in the evidence. None: as many as there are. With weights w_i it is Σ w_i, and the
            features and targets are those of :func:`scaled`: a weight of 2 counts as two equal rows.

    Raises:
        DataError: features or targets are not finite, or are all zero.
    """
    phi, y = features.detach().double(), targets.detach().double()
    if not (torch.isfinite(phi).all() and torch.isfinite(y).all()):
        raise DataError("features and targets must be finite")
    if not (phi.any() and y.any()):
        raise DataError("features and targets must not be all zero")
    left, singular, _ = torch.linalg.svd(phi, full_matrices=False)
    kept = singular > singular[0] * max(phi.shape) * torch.finfo(phi.dtype).eps
    squared, outputs = singular[kept].square().numpy(force=True), y.shape[1]
    count = y.numel() if rows is None else rows * outputs
    along = left[:, kept].T @ y  # [m, o]
    energy = along.square().sum(1).numpy(force=True)
    # from the residual, since ‖Y‖² − ‖along‖² cancels; 1e-30 keeps the logarithm of an exact fit finite
    outside = float((y - left[:, kept] @ along).square().sum()) + 1e-30 * float(y.square().sum())

    def rest(log_ratio: float) -> float:
        """Return tr Yᵀ(I + rΦΦᵀ)⁻¹Y = no·σ²(r)."""
        return outside + float((energy / (1 + math.exp(log_ratio) * squared)).sum())

    def evidence(log_ratio: float) -> float:
        """Return log p(Y) at r and its best σ², up to a constant."""
        log_det = float(np.log1p(math.exp(log_ratio) * squared).sum())
        return -0.5 * (outputs * log_det + count * math.log(rest(log_ratio)))

    def slope(log_ratio: float) -> float:
        grown = math.exp(log_ratio) * squared
        gain = float((energy * grown / (1 + grown) ** 2).sum()) / rest(log_ratio)
        return 0.5 * (count * gain - outputs * float((grown / (1 + grown)).sum()))

    top = math.log(squared[0])
    grid = np.linspace(_LOG_RANGE[0] - top, _LOG_RANGE[1] - top, _CELLS + 1)
    best = int(np.argmax([evidence(float(x)) for x in grid]))
    low, high, log_ratio = (float(grid[min(max(at, 0), _CELLS)]) for at in (best - 1, best + 1, best))
    if slope(low) > 0 > slope(high):
        from scipy.optimize import brentq  # imported here, because the import takes half a second

        log_ratio = float(brentq(slope, low, high, xtol=1e-13, rtol=1e-13))
    noise = rest(log_ratio) / count
    return math.exp(log_ratio) * noise, noise
