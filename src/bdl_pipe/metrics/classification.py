"""Scores of classes: accuracy, Brier, calibration, and how well a score separates *in* from *out*.

Calibration: how often statements of probability p are true. ECE = Σ_b (n_b / N) |accuracy_b − confidence_b| over
bins of the largest class probability (Naeini et al. 2015; Guo et al. 2017, eq. 3). Equal-width bins are ((b−1)/B, b/B]
as in Guo; their sums add up across workers.

NLL of a batch: −log (1/S) Σ_s exp(mean_i log p(y_i | x_i, θ_s)) mixes the draws once for the whole batch. The published
evaluation of pseudo-coresets by Markov chains (Kim et al. 2022, 2023) prints its mean over batches as the NLL. It is an
upper bound of the NLL, which mixes the draws at each row, and a lower bound of the draws' mean NLL.

Detection: a score that is higher for inputs of the data's own distribution (*in*) separates them from other inputs
(*out*). AUROC; AUPR-In takes *in* as the positive class, AUPR-Out takes *out* (Hendrycks & Gimpel 2017), both as
average precision; FPR95 is the share of *out* that is accepted at the threshold that accepts at least 95 % of *in*
(Liang et al. 2018).
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..predictive import Categorical, mixture
from .metric import Mean, Metric


def accuracy(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Return the share of rows in which the most probable class (the first, at a tie) is the label."""
    return Mean.of(predictive.log_probs.argmax(-1) == targets)


def brier(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Return Σ_k (p_k − 1{y = k})² of each row, in [0, 2]: the sum over classes, not halved (Brier 1950)."""
    truth = F.one_hot(targets.long(), predictive.log_probs.shape[-1])
    return Mean.of(((predictive.mean - truth) ** 2).sum(-1))


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


def batch_nll(terms: Float[Tensor, "draw batch"]) -> Mean:
    """Return −log (1/S) Σ_s exp(mean_i log p(y_i | x_i, θ_s)) of one batch, in nats, as the value of each of its rows.

    The batch NLL is at least the NLL (Hölder) and at most the draws' mean NLL (Jensen); all three are equal for one
    draw. Deviation: a batch is weighted by its number of rows, so that both bounds hold for batches of unequal sizes.
    """
    rows = terms.shape[1]
    return Mean(-rows * float(mixture(terms.double().mean(1))), rows)


def detection(score_in: np.ndarray, score_out: np.ndarray) -> dict[str, float]:
    """Return ``auroc``, ``aupr_in``, ``aupr_out``, ``fpr95`` of scores [n_in] and [n_out]."""
    from sklearn.metrics import average_precision_score, roc_auc_score  # here: it takes half a second in each stage

    scores = np.concatenate([score_in, score_out])
    inside = np.concatenate([np.ones(len(score_in)), np.zeros(len(score_out))])
    return {
        "auroc": float(roc_auc_score(inside, scores)),
        "aupr_in": float(average_precision_score(inside, scores)),
        "aupr_out": float(average_precision_score(1 - inside, -scores)),
        "fpr95": false_positive_rate(score_in, score_out, 0.95),
    }


def false_positive_rate(score_in: np.ndarray, score_out: np.ndarray, accepted: float) -> float:
    """Return the share of *out* at or above the highest threshold that at least ``accepted`` of *in* reach."""
    needed = int(np.ceil(accepted * len(score_in) - 1e-9))  # 0.95·20 is 19 and not 20
    threshold = np.sort(score_in)[::-1][needed - 1]
    return float((score_out >= threshold).mean())


ACCURACY = Metric(
    "accuracy",
    "Accuracy %",
    "share of rows that are classified correctly",
    better=+1,
    percent=True,
    of=accuracy,
    kind=Categorical,
    shifted=True,
)
BRIER = Metric(
    "brier",
    "Brier",
    "squared distance between probabilities and one-hot label, summed over classes",
    better=-1,
    of=brier,
    kind=Categorical,
    shifted=True,
)
ENTROPY = Metric("entropy", "Entropy", "mean entropy of the predicted probabilities, natural log", better=0)
MUTUAL_INFORMATION = Metric(
    "mutual_information", "Mutual information", "mean mutual information between label and draw, natural log", better=0
)
BATCH_NLL = Metric(
    "batch_nll",
    "Batch NLL",
    "negative log of the mean over draws of a batch's likelihood per row (the geometric mean)",
    better=-1,
)
ECE = Metric(
    "ece",
    "ECE %",
    "expected calibration error, equal-width bins",
    better=-1,
    percent=True,
    shifted=True,
    question="trust",
)

DETECTION = (  # the metrics of an OOD score, which :func:`detection` computes
    Metric("auroc", "AUROC", "area under the ROC curve", better=+1),
    Metric("aupr_in", "AUPR-In", "average precision of the data set's own inputs", better=+1),
    Metric("aupr_out", "AUPR-Out", "average precision of the other inputs", better=+1),
    Metric("fpr95", "FPR95", "share of the other inputs accepted when 95 % of the own inputs are", better=-1),
)
