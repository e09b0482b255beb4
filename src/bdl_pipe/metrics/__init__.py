"""Metrics of predictives, as states (sum, count) that partial results from many workers add up to.

Every function takes a :class:`~bdl_pipe.predictive.Predictive` whose draws are already mixed by its
own ``log_prob`` and ``mean``; where draws matter by themselves (joint, mutual information) it says so.
Natural logarithms and per-example means throughout.
"""

from .calibration import Bins, bins_of
from .joint import joint_log_prob, joint_scores, target_terms
from .mean import Mean
from .ood import detection
from .regression import covered, crps, interval
from .scores import accuracy, brier, log_likelihood, nll, squared_error

__all__ = [
    "Bins",
    "Mean",
    "accuracy",
    "bins_of",
    "brier",
    "covered",
    "crps",
    "detection",
    "interval",
    "joint_log_prob",
    "joint_scores",
    "log_likelihood",
    "nll",
    "squared_error",
    "target_terms",
]
