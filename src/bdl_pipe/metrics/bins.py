"""Calibration by bins: how often statements of probability p are true.

ECE = Σ_b (n_b / N) |accuracy_b − confidence_b| over bins of the largest class probability (Naeini et al. 2015; Guo et
al. 2017, eq. 3). Equal-width bins are ((b−1)/B, b/B] as in Guo; their sums add up across workers.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from ..predictive import Categorical
from .metric import Metric


@dataclass(frozen=True)
class Bins:
    """The sums of each bin [bin], added by ``+``.

    Attributes:
        count: the number of examples.
        confidence: the sum of the stated probabilities.
        correct: how often the stated event happened.
    """

    count: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    def __add__(self, other: "Bins") -> "Bins":
        return Bins(self.count + other.count, self.confidence + other.confidence, self.correct + other.correct)

    def ece(self) -> float:
        """Return Σ_b |correct_b − confidence_b| / N."""
        return float(np.abs(self.correct - self.confidence).sum() / self.count.sum())

    def table(self) -> dict[str, np.ndarray]:
        """Return the reliability diagram: bin, lower, upper, count, mean confidence, accuracy (NaN: empty bin)."""
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
    """Return sums over equal-width bins of the largest class probability."""
    top, label = predictive.log_probs.max(-1)
    stated, happened = top.double().exp().cpu().numpy(), (label == targets).double().cpu().numpy()
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(inner, stated, side="left")  # (lower, upper]; 0 goes to the first bin
    count = np.bincount(place, minlength=bins)
    return Bins(count, np.bincount(place, stated, bins), np.bincount(place, happened, bins))


ECE = Metric(
    "ece",
    "ECE %",
    "expected calibration error, equal-width bins",
    better=-1,
    task="classification",
    percent=True,
    value=Bins.ece,
    always=True,
    headline=True,
    question="trust",
)
METRICS = (ECE, ECE.other("recalibrated", "after"))
