"""Calibration: how often what is said with probability p is true.

ECE = Σ_b (n_b / N) |accuracy_b − confidence_b| over bins of the largest class probability (Naeini et
al. 2015; Guo et al. 2017, eq. 3). Equal-width bins are ((b−1)/B, b/B] as in Guo; their sums add up
across workers.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from ..predictive import Categorical


@dataclass(frozen=True)
class Bins:
    """Per-bin sums [bin], added by ``+``.

    Attributes:
        count: examples.
        confidence: sum of the stated probabilities.
        correct: how often the stated event happened.
    """

    count: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    def __add__(self, other: "Bins") -> "Bins":
        return Bins(self.count + other.count, self.confidence + other.confidence, self.correct + other.correct)

    def ece(self) -> float:
        """Σ_b |correct_b − confidence_b| / N."""
        return float(np.abs(self.correct - self.confidence).sum() / self.count.sum())

    def table(self) -> dict[str, np.ndarray]:
        """The reliability diagram: bin, lower, upper, count, mean confidence, accuracy (NaN: empty bin)."""
        number = len(self.count)
        edges = np.linspace(0, 1, number + 1)
        filled = np.where(self.count > 0, self.count, np.nan)
        return {
            "bin": np.arange(number),
            "lower": edges[:-1],
            "upper": edges[1:],
            "count": self.count,
            "confidence": self.confidence / filled,
            "accuracy": self.correct / filled,
        }


def bins_of(predictive: Categorical, targets: Int[Tensor, " batch"], bins: int) -> Bins:
    """Sums over equal-width bins of the largest class probability."""
    confidence, correct = _confidence(predictive, targets)
    return _sums(confidence, correct, bins)


def _confidence(predictive: Categorical, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
    top, label = predictive.log_probs.max(-1)
    return top.double().exp().cpu().numpy(), (label == targets).double().cpu().numpy()


def _sums(stated: np.ndarray, happened: np.ndarray, bins: int) -> Bins:
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(inner, stated, side="left")  # (lower, upper]; 0 goes to the first bin
    count = np.bincount(place, minlength=bins)
    return Bins(count, np.bincount(place, stated, bins), np.bincount(place, happened, bins))
