"""OOD scores as functions of arrays, fitted to nothing or to training rows.

Each function returns one number in float64 for each row, high if the row looks like the training data. ``log_probs``
are the logarithms of the predicted probabilities, which are a mixture if there are several draws. ``logits`` are the
outputs of the last layer, averaged if there are several draws. A function that is fitted takes the arrays of training
rows first, then the arrays of the rows to score, which are not used in the fit.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import pinvh
from scipy.special import logsumexp, xlogy

from ...errors import DataError

Values = Float[np.ndarray, " row"]
Train = Float[np.ndarray, "train width"]
Features = Float[np.ndarray, "row width"]
NEIGHBOURS_A_ROW = 1e-3  # k per training row: 50 for CIFAR's 50,000
_SMALLEST = 1e-9  # a residual below this share of the rows' own length is rounding


def max_softmax(log_probs: Float[np.ndarray, "row class"]) -> Values:
    """Return log max_k p_k, which orders rows as max_k p_k does (Hendrycks & Gimpel 2017, section 3)."""
    return np.asarray(log_probs, np.float64).max(1)


def max_logit(logits: Float[np.ndarray, "row class"]) -> Values:
    """Return max_k z_k (Hendrycks et al. 2022, section 3)."""
    return np.asarray(logits, np.float64).max(1)


def energy(logits: Float[np.ndarray, "row class"], temperature: float = 1.0) -> Values:
    """Return T log Σ_k exp(z_k / T), the energy with its sign changed (Liu et al. 2020, eq. 4 and 7)."""
    return temperature * logsumexp(np.asarray(logits, np.float64) / temperature, axis=1)


def entropy(log_probs: Float[np.ndarray, "row class"]) -> Values:
    """Return Σ_k p_k log p_k, the entropy with its sign changed, in nats."""
    return -_entropy(np.asarray(log_probs, np.float64))


def mutual_information(draw_log_probs: Float[np.ndarray, "draw row class"]) -> Values:
    """Return mean_s H[p_s] − H[mean_s p_s], the information of label and draw with its sign changed, in nats.

    Source: Houlsby et al. 2011, eq. 2, with draws of equal weight. A single draw gives 0.
    """
    logs = np.asarray(draw_log_probs, np.float64)
    mixed = logsumexp(logs, axis=0) - np.log(len(logs))
    return _entropy(logs).mean(0) - _entropy(mixed)


def gen(log_probs: Float[np.ndarray, "row class"], gamma: float = 0.1, top: int = 100) -> Values:
    """Return −Σ_j p_j^γ (1 − p_j)^γ over the ``top`` most probable classes j (Liu, Lochman & Zach 2023, eq. 4 and 5).

    1 − p is computed from the logarithm, so that rows whose probability rounds to 1 keep their order.
    """
    largest = np.sort(np.asarray(log_probs, np.float64), axis=1)[:, ::-1][:, :top]
    rest = -np.expm1(np.minimum(largest, 0.0))
    return -(np.exp(gamma * largest) * rest**gamma).sum(1)


def kl_matching(train_log_probs: Float[np.ndarray, "train class"], log_probs: Float[np.ndarray, "row class"]) -> Values:
    """Return −min_k KL(p ‖ d_k), d_k the mean probabilities of the training rows for which class k is predicted.

    Source: Hendrycks et al. 2022, section 4.2. Deviation: d_k is a mean over training rows; the paper uses validation
    rows. A class that is predicted for no training row has no d_k.
    """
    train, logs = np.asarray(train_log_probs, np.float64), np.asarray(log_probs, np.float64)
    predicted = train.argmax(1)
    typical = np.stack([np.exp(train[predicted == k]).mean(0) for k in np.unique(predicted)])  # [class, class]
    probs = np.exp(logs)
    inner = xlogy(probs, probs).sum(1)
    with np.errstate(divide="ignore"):
        log_typical = np.maximum(np.log(typical), np.log(np.finfo(np.float64).tiny))  # 0 · log 0 is 0
    return (probs @ log_typical.T - inner[:, None]).max(1)


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
    of_train, rows = _float64(train, features)
    classes, place = np.unique(labels, return_inverse=True)
    means = np.stack([of_train[place == k].mean(0) for k in range(len(classes))])
    precision = _precision(of_train - means[place])
    return np.stack([_squared(rows - mean, precision) for mean in means], axis=1).min(1)


def whole_distance(train: Train, features: Features) -> Values:
    """Return the squared distance to the mean of all training rows under their covariance."""
    of_train, rows = _float64(train, features)
    centre = of_train.mean(0)
    return _squared(rows - centre, _precision(of_train - centre))


def nearest(train: Train, features: Features, neighbours: int | None = None) -> Values:
    """Return −‖h − h₍ₖ₎‖ to the k-th nearest training row, of features of length 1 (Sun et al. 2022, section 3).

    Args:
        neighbours: k. None means a thousandth of the training rows, at least 1. The paper takes 50 for CIFAR's 50,000
            rows and 1,000 for ImageNet's 1.3 million.

    Raises:
        DataError: there are fewer training rows than ``neighbours``.
    """
    tiny = np.finfo(np.float64).tiny
    of_train, rows = (part / np.maximum(_lengths(part), tiny) for part in _float64(train, features))
    k = max(1, round(NEIGHBOURS_A_ROW * len(of_train))) if neighbours is None else neighbours
    if not 0 < k <= len(of_train):
        raise DataError(f"neighbours must be 1 … {len(of_train)}, the number of training rows, got {k}")
    squared = (of_train**2).sum(1) + (rows**2).sum(1)[:, None] - 2 * rows @ of_train.T
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
) -> Values | None:
    """Return log Σ_k exp(z_k) − α ‖R Rᵀ(h − o)‖, the virtual logit against the others (Wang et al. 2022, eq. 5 to 7).

    R are the directions in which training rows, seen from o, vary least: all but :func:`principal_dimension`. α makes
    the mean virtual logit of training rows the mean of their largest logits.

    Args:
        origin: o = −W⁺b, where the last layer's outputs are nearest to 0.

    Returns:
        None if no training row leaves the principal space, so that there is no α.
    """
    of_train, rows = (part - np.asarray(origin, np.float64) for part in _float64(train, features))
    _, vectors = np.linalg.eigh(of_train.T @ of_train / len(of_train))  # eigenvalues ascend
    rest = vectors[:, : of_train.shape[1] - principal_dimension(of_train.shape[1])]
    typical = float(_lengths(of_train @ rest).mean())
    if not typical > _SMALLEST * float(_lengths(of_train).mean()):
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
    limit = float(np.percentile(np.asarray(train, np.float64), percentile))
    if limit <= 0:
        return None
    logits = np.minimum(np.asarray(features, np.float64), limit) @ np.asarray(weight, np.float64).T
    return energy(logits if bias is None else logits + np.asarray(bias, np.float64))


def _precision(centred: np.ndarray) -> np.ndarray:
    inverse: np.ndarray = pinvh(centred.T @ centred / len(centred))
    return inverse


def _squared(centred: np.ndarray, precision: np.ndarray) -> np.ndarray:
    values: np.ndarray = ((centred @ precision) * centred).sum(1)
    return values


def _lengths(rows: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return lengths


def _float64(train: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(train, np.float64), np.asarray(rows, np.float64)


def _entropy(log_probs: np.ndarray) -> np.ndarray:
    probs = np.exp(log_probs)
    return -xlogy(probs, probs).sum(-1)
