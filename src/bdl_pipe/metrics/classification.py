"""Scores of probabilities: accuracy, likelihood, Brier, and what the draws say of classes.

NLL of a batch: −log (1/S) Σ_s exp(mean_i log p(y_i | x_i, θ_s)) mixes the draws once for the whole batch. The published
evaluation of pseudo-coresets by Markov chains (Kim et al. 2022, 2023) prints its mean over batches as the NLL. It is an
upper bound of the NLL, which mixes the draws at each row, and a lower bound of the draws' mean NLL.
"""

from typing import Any

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
