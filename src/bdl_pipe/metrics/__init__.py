"""Metrics of predictives, as states (sum, count) that partial results from many workers add up to.

Every function takes a :class:`~bdl_pipe.predictive.Predictive` whose draws are already mixed by its
own ``log_prob`` and ``mean``; where draws matter by themselves (mutual information) it says so.
Natural logarithms and per-example means throughout.
"""

from .classification import (
    DETECTION,
    Bins,
    accuracy,
    batch_nll,
    bins_of,
    brier,
    detection,
)
from .cost import COSTS
from .joint import GroupLogProbs
from .metric import Mean, Metric, StoredMetric
from .registered import METRICS, register_metric, registered
from .regression import covered, crps, interval, noise_variance, out_of_reach, squared_error
from .scores import log_likelihood, nll

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
