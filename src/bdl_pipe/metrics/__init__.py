"""Metrics of predictives. A metric returns a state (sum, count), and the states of several workers add up.

Every function takes a :class:`~bdl_pipe.predictive.Predictive`; its ``log_prob`` and ``mean`` average over the draws.
Docstrings state which functions need the single draws, such as mutual information. All logarithms are natural, and all
means are per row.
"""

from .classification import Bins, accuracy, batch_nll, bins_of, brier, log_likelihood, nll
from .cost import COSTS
from .joint import GroupLogProbs
from .metric import Mean, Metric, StoredMetric
from .registered import METRICS, register_metric, registered
from .regression import covered, crps, interval, noise_variance, out_of_reach, squared_error
from .separation import DETECTION, detection

__all__ = [
    "COSTS",
    "DETECTION",
    "METRICS",
    "Bins",
    "GroupLogProbs",
    "Mean",
    "Metric",
    "StoredMetric",
    "accuracy",
    "batch_nll",
    "bins_of",
    "brier",
    "covered",
    "crps",
    "detection",
    "interval",
    "log_likelihood",
    "nll",
    "noise_variance",
    "out_of_reach",
    "register_metric",
    "registered",
    "squared_error",
]
