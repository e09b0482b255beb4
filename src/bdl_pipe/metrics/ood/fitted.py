"""OOD scores that are fitted to training rows and then computed for other rows.

Each function takes the arrays of training rows, then the arrays of the rows to score. It returns one number in float64
for each row to score, high if the row looks like the training data. The rows to score are not used in the fit.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import pinvh
from scipy.special import xlogy

from ...errors import DataError

Values = Float[np.ndarray, " row"]
Train = Float[np.ndarray, "train width"]
Features = Float[np.ndarray, "row width"]
NEIGHBOURS_A_ROW = 1e-3  # k per training row: 50 for CIFAR's 50,000
_SMALLEST = 1e-9  # a residual below this share of the rows' own length is rounding


def kl_matching(train_log_probs: Float[np.ndarray, "train class"], log_probs: Float[np.ndarray, "row class"]) -> Values:
    """Return −min_k KL(p ‖ d_k), d_k the mean probabilities of the training rows for which class k is predicted.

    Source: Hendrycks et al. 2022, section 4.2. Deviation: d_k is a mean over training rows; the paper uses validation
    rows. A class that is predicted for no training row has no d_k.
    """
    train, logs = np.asarray(train_log_probs, np.float64), np.asarray(log_probs, np.float64)
    predicted = train.argmax(1)
    typical = np.stack([np.exp(train[predicted == k]).mean(0) for k in np.unique(predicted)])  # [class, class]
    probs = np.exp(logs)
    own = xlogy(probs, probs).sum(1)
    with np.errstate(divide="ignore"):
        log_typical = np.maximum(np.log(typical), np.log(np.finfo(np.float64).tiny))  # 0 · log 0 is 0
    return (probs @ log_typical.T - own[:, None]).max(1)


def mahalanobis(train: Train, labels: Int[np.ndarray, " train"], features: Features) -> Values:
    """Return −min_k (h − μ_k)ᵀ Σ⁻¹ (h − μ_k), Σ the covariance within classes, which all share.

    Source: Lee et al. 2018, eq. 1 and 2. Σ is divided by the number of rows. If Σ is singular, Σ⁻¹ is the
    pseudo-inverse: it leaves out directions in which no training row varies, as the published code does.
    """
    return -class_distance(train, labels, features)


def relative_mahalanobis(train: Train, labels: Int[np.ndarray, " train"], features: Features) -> Values:
    """Return −min_k [d_k(h) − d_0(h)], d_0 the squared distance to the mean of all rows under their covariance.

    Source: Ren et al. 2021, section 2. d_k is the squared distance to class k in :func:`mahalanobis`.
    """
    return -(class_distance(train, labels, features) - whole_distance(train, features))


def class_distance(train: Train, labels: Int[np.ndarray, " train"], features: Features) -> Values:
    """Return the squared distance to the nearest class, (h − μ_k)ᵀ Σ⁻¹ (h − μ_k); see :func:`mahalanobis`."""
    known, rows = _float64(train, features)
    classes, place = np.unique(labels, return_inverse=True)
    means = np.stack([known[place == k].mean(0) for k in range(len(classes))])
    precision = _precision(known - means[place])
    return np.stack([_squared(rows - mean, precision) for mean in means], axis=1).min(1)


def whole_distance(train: Train, features: Features) -> Values:
    """Return the squared distance to the mean of all training rows under their covariance."""
    known, rows = _float64(train, features)
    centre = known.mean(0)
    return _squared(rows - centre, _precision(known - centre))


def nearest(train: Train, features: Features, neighbours: int | None = None) -> Values:
    """Return −‖h − h₍ₖ₎‖ to the k-th nearest training row, of features of length 1 (Sun et al. 2022, section 3).

    Args:
        neighbours: k. None means a thousandth of the training rows, at least 1. The paper takes 50 for CIFAR's 50,000
            rows and 1,000 for ImageNet's 1.3 million.

    Raises:
        DataError: there are fewer training rows than ``neighbours``.
    """
    known, rows = (part / np.maximum(_lengths(part), np.finfo(np.float64).tiny) for part in _float64(train, features))
    k = max(1, round(NEIGHBOURS_A_ROW * len(known))) if neighbours is None else neighbours
    if not 0 < k <= len(known):
        raise DataError(f"neighbours must be 1 … {len(known)}, the number of training rows, got {k}")
    squared = (known**2).sum(1) + (rows**2).sum(1)[:, None] - 2 * rows @ known.T
    return -np.sqrt(np.maximum(np.partition(squared, k - 1, axis=1)[:, k - 1], 0.0))


def principal_dimension(width: int) -> int:
    """Return the dimension of ViM's principal space for features of ``width`` (Wang et al. 2022, section 5)."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


def vim(
    train: Train,
    train_logits: Float[np.ndarray, "train class"],
    features: Features,
    logits: Float[np.ndarray, "row class"],
    origin: Float[np.ndarray, " width"],
    dimension: int | None = None,
) -> Values | None:
    """Return log Σ_k exp(z_k) − α ‖R Rᵀ(h − o)‖, the virtual logit against the others (Wang et al. 2022, eq. 5 to 7).

    R are the directions in which training rows, seen from o, vary least: all but the first ``dimension``. α makes the
    mean virtual logit of training rows the mean of their largest logits.

    Args:
        origin: o = −W⁺b, where the last layer's outputs are nearest to 0.
        dimension: None means :func:`principal_dimension`.

    Returns:
        None if no training row leaves the principal space, so that there is no α.
    """
    from .outputs import energy

    known, rows = (part - np.asarray(origin, np.float64) for part in _float64(train, features))
    first = principal_dimension(known.shape[1]) if dimension is None else dimension
    _, vectors = np.linalg.eigh(known.T @ known / len(known))  # eigenvalues ascend
    rest = vectors[:, : known.shape[1] - first]
    typical = float(_lengths(known @ rest).mean())
    if not typical > _SMALLEST * float(_lengths(known).mean()):
        return None
    alpha = float(np.asarray(train_logits, np.float64).max(1).mean()) / typical
    virtual: np.ndarray = alpha * _lengths(rows @ rest)[:, 0]
    return energy(logits) - virtual


def react(
    train: Train,
    features: Features,
    weight: Float[np.ndarray, "class width"],
    bias: Float[np.ndarray, " class"] | None = None,
    percentile: float = 90.0,
) -> Values | None:
    """Return log Σ_k exp(w_kᵀ min(h, c) + b_k), c the percentile of all activations of training rows.

    Source: Sun, Guo & Li 2021, section 3, with the energy of Liu et al. 2020 and the paper's 90th percentile. One c
    clips all features. The features of the paper are at least 0, as a ReLU leaves them. Features of both signs are
    clipped from above only, as the formula says.

    Args:
        weight, bias: the last layer; without a bias b is 0.

    Returns:
        None if c is not above 0: features after a ReLU would all become 0, and all rows equal.
    """
    from .outputs import energy

    limit = float(np.percentile(np.asarray(train, np.float64), percentile))
    if limit <= 0:
        return None
    logits = np.minimum(np.asarray(features, np.float64), limit) @ np.asarray(weight, np.float64).T
    return energy(logits if bias is None else logits + np.asarray(bias, np.float64))


def _precision(centred: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse of the covariance of centred rows."""
    inverse: np.ndarray = pinvh(centred.T @ centred / len(centred))
    return inverse


def _squared(centred: np.ndarray, precision: np.ndarray) -> np.ndarray:
    values: np.ndarray = ((centred @ precision) * centred).sum(1)
    return values


def _lengths(rows: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return lengths


def _float64(known: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(known, np.float64), np.asarray(rows, np.float64)
