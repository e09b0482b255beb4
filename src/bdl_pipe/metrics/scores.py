"""The likelihood scores that every predictive has."""

from torch import Tensor

from ..predictive import Continuous, Predictive
from .metric import Mean, Metric


def nll(predictive: Predictive, targets: Tensor) -> Mean:
    """Return −log p(y|x) in nats; for regression, of all output columns together."""
    return Mean.of(-predictive.log_prob(targets))


def log_likelihood(predictive: Predictive, targets: Tensor) -> Mean:
    """Return log p(y|x) in nats."""
    return Mean.of(predictive.log_prob(targets))


NLL = Metric("nll", "NLL", "mean negative log predictive density, natural log", better=-1, of=nll, shifted=True)
LOG_LIKELIHOOD = Metric(
    "log_likelihood",
    "Log-likelihood",
    "mean log predictive density, natural log",
    better=+1,
    of=log_likelihood,
    kind=Continuous,
)
