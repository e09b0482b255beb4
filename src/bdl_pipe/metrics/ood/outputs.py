"""OOD scores that need only a row's own outputs: its probabilities, its logits, its draws.

Each function takes arrays and returns one number in float64 for each row, high if the row looks like the training data.
Nothing is fitted. ``log_probs`` are the logarithms of the predicted probabilities, which are a mixture if there are
several draws. ``logits`` are the outputs of the last layer, averaged if there are several draws.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, xlogy

Values = Float[np.ndarray, " row"]


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


def _entropy(log_probs: np.ndarray) -> np.ndarray:
    probs = np.exp(log_probs)
    return -xlogy(probs, probs).sum(-1)
