"""Scores of probabilities: accuracy, likelihood, Brier, calibration by bins, and what the draws say of classes.

NLL of a batch: −log (1/S) Σ_s exp(mean_i log p(y_i | x_i, θ_s)) mixes the draws once for the whole batch. The published
evaluation of pseudo-coresets by Markov chains (Kim et al. 2022, 2023) prints its mean over batches as the NLL. It is an
upper bound of the NLL, which mixes the draws at each row, and a lower bound of the draws' mean NLL.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..predictive import Categorical, Predictive, mixture
from .metric import Mean, Metric


def accuracy(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Return the share of rows in which the most probable class (the first, at a tie) is the label."""
    return Mean.of(predictive.log_probs.argmax(-1) == targets)


def brier(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Return Σ_k (p_k − 1{y = k})² of each row, in [0, 2]: the sum over classes, not halved (Brier 1950)."""
    truth = F.one_hot(targets.long(), predictive.log_probs.shape[-1])
    return Mean.of(((predictive.mean - truth) ** 2).sum(-1))


def nll(predictive: Predictive, targets: Tensor) -> Mean:
    """Return −log p(y|x) in nats; for regression, of all output columns together."""
    return Mean.of(-predictive.log_prob(targets))


def log_likelihood(predictive: Predictive, targets: Tensor) -> Mean:
    """Return log p(y|x) in nats."""
    return Mean.of(predictive.log_prob(targets))


def batch_nll(terms: Float[Tensor, "draw batch"]) -> Mean:
    """Return −log (1/S) Σ_s exp(mean_i log p(y_i | x_i, θ_s)) of one batch, in nats, as the value of each of its rows.

    The batch NLL is at least the NLL (Hölder) and at most the draws' mean NLL (Jensen); all three are equal for one
    draw. Deviation: a batch is weighted by its number of rows, so that both bounds hold for batches of unequal sizes.
    """
    rows = terms.shape[1]
    return Mean(-rows * float(mixture(terms.double().mean(1))), rows)


@dataclass(frozen=True)
class Bins:
    """The sums of each bin [bin] of stated probabilities, added by ``+``.

    ECE = Σ_b (n_b / N) |accuracy_b − confidence_b| over bins of the largest class probability (Naeini et al. 2015; Guo
    et al. 2017, eq. 3). Equal-width bins are ((b−1)/B, b/B] as in Guo; their sums add up across workers.

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


def equal_width(values: np.ndarray, bins: int) -> Int[np.ndarray, "..."]:
    """Return the bin of each probability in ((b − 1)/B, b/B]; 0 goes to the first bin."""
    return np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], values, side="left")


def bins_of(predictive: Categorical, targets: Int[Tensor, " batch"], bins: int) -> Bins:
    """Return sums over equal-width bins of the largest class probability."""
    top, label = predictive.log_probs.max(-1)
    stated, happened = top.double().exp().cpu().numpy(), (label == targets).double().cpu().numpy()
    place = equal_width(stated, bins)
    count = np.bincount(place, minlength=bins)
    return Bins(count, np.bincount(place, stated, bins), np.bincount(place, happened, bins))


def _has_draws(predictive: Categorical) -> bool:
    return len(predictive.draw_log_probs) > 1


NLL = Metric("nll", "NLL", "mean negative log predictive density, natural log", -1, of=nll, always=True, headline=True)
_CLASSES: Any = {"task": "classification"}
_FIRST: Any = {"always": True, "headline": True, **_CLASSES}
METRICS = (
    Metric(
        "accuracy",
        "Accuracy %",
        "share of rows that are classified correctly",
        +1,
        percent=True,
        of=accuracy,
        short="acc. %",
        **_FIRST,
    ),
    NLL,
    Metric(
        "brier",
        "Brier",
        "squared distance between probabilities and one-hot label, summed over classes",
        -1,
        of=brier,
        **_FIRST,
    ),
    Metric(
        "entropy",
        "Entropy",
        "mean entropy of the predicted probabilities, natural log",
        0,
        of=lambda predictive, targets: Mean.of(predictive.entropy()),
        **_CLASSES,
    ),
    Metric(
        "mutual_information",
        "Mutual information",
        "mean mutual information between label and draw, natural log",
        0,
        of=lambda predictive, targets: Mean.of(predictive.mutual_information()) if _has_draws(predictive) else None,
        **_CLASSES,
    ),
    Metric(
        "batch_nll",
        "Batch NLL",
        "negative log of the mean over draws of a batch's likelihood per row (the geometric mean)",
        -1,
        of=lambda predictive, targets: batch_nll(predictive.draw_log_prob(targets)) if _has_draws(predictive) else None,
        short="batch NLL",
        **_CLASSES,
    ),
    Metric(
        "log_likelihood",
        "Log-likelihood",
        "mean log predictive density, natural log",
        +1,
        task="regression",
        of=log_likelihood,
    ),
)
ECE = Metric(
    "ece",
    "ECE %",
    "expected calibration error, equal-width bins",
    -1,
    percent=True,
    value=Bins.ece,
    question="trust",
    **_FIRST,
)
