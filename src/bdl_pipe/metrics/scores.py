"""Proper scores and accuracy, per example.

NLL = −log p(y|x); Brier = Σ_k (p_k − 1{y = k})², in [0, 2] (Brier 1950, the sum over classes, not
halved); RMSE is the root of the mean of :func:`squared_error`, taken after everything is added up.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..predictive import Categorical, Continuous, Predictive
from .mean import Mean


def accuracy(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Whether the most probable class (the first, at a tie) is the label."""
    return Mean.of(predictive.log_probs.argmax(-1) == targets)


def nll(predictive: Predictive, targets: Tensor) -> Mean:
    """−log p(y|x) in nats; of all output columns together, for regression."""
    return Mean.of(-predictive.log_prob(targets))


def log_likelihood(predictive: Predictive, targets: Tensor) -> Mean:
    """log p(y|x) in nats."""
    return Mean.of(predictive.log_prob(targets))


def brier(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Mean:
    """Σ_k (p_k − 1{y = k})²."""
    truth = F.one_hot(targets.long(), predictive.log_probs.shape[-1])
    return Mean.of(((predictive.mean - truth) ** 2).sum(-1))


def squared_error(predictive: Continuous, targets: Float[Tensor, "batch output"]) -> Mean:
    """(y − E[y|x])², one value for each output of each example."""
    return Mean.of((targets - predictive.mean) ** 2)
