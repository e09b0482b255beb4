"""The table of metrics, in the order of stored scores, and the function that adds a metric to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from torch import Tensor

from ..errors import short
from ..plugins import PluginError, Registered
from ..predictive import Predictive
from . import classification, cost, joint, regression, scores
from .metric import Mean, Metric

Values = Callable[[Predictive, Tensor], Tensor | None]

_AFTER: Final = "after recalibration"
_RECALIBRATED: Final = tuple(
    replace(metric, name=f"{metric.name}_recalibrated", about=f"{metric.about}, {_AFTER}", of=None, shifted=False)
    for metric in (scores.NLL, regression.CRPS, classification.ECE)
)
_CONFORMAL: Final = (
    Metric("coverage_conformal", "Coverage %", "share of targets in the conformal set of 90 %", better=0, percent=True),
    Metric("size_conformal", "Set size", "mean number of classes in the conformal set of 90 %", better=-1),
    Metric("width_conformal", "Width", "mean width of the conformal interval of 90 %, original units", better=-1),
)

METRICS: Final[Registered[Metric]] = Registered(
    "metric",
    {
        metric.name: metric
        for metric in (
            regression.RMSE,
            *_RECALIBRATED[:2],
            *_CONFORMAL,
            classification.ACCURACY,
            scores.NLL,
            classification.BRIER,
            classification.ENTROPY,
            classification.MUTUAL_INFORMATION,
            classification.BATCH_NLL,
            scores.LOG_LIKELIHOOD,
            regression.COVERAGE_90,
            regression.WIDTH_90,
            regression.CRPS,
            regression.OUT_OF_REACH,
            classification.ECE,
            *_RECALIBRATED[2:],
            joint.JOINT_NLL,
            joint.JOINT_GAP,
            *joint.DYADIC,
            regression.LOG_LIKELIHOOD_NORMALISED,
            regression.REFERENCE_KL,
            regression.REFERENCE_TV,
            regression.REFERENCE_SD_RATIO,
            regression.NOISE_RATIO,
        )
    },
)


_OTHERS: Final = {metric.name: metric for metric in (*classification.DETECTION, *cost.COSTS)}


def metric_of(name: str) -> Metric:
    """Return the metric of test rows, of out-of-distribution detection or of cost that has this name."""
    return _OTHERS[name] if name in _OTHERS else METRICS[name]


def registered() -> list[Metric]:
    """Return all metrics of test rows, in the order of stored scores: the library's, then those that were added."""
    return list(METRICS.values())


def register_metric(
    name: str, values: Values, *, label: str, better: Literal[-1, 0, 1], about: str = "", percent: bool = False
) -> None:
    """Add a metric, whose mean over the test rows is stored and reported for every run.

    Args:
        name: its name in stored scores.
        values: (predictive, targets) -> values [batch, ...], one or several for each row, in original units; None where
            the predictive has no such metric.
        label: its title in a report.
        better: +1: a higher value is better; -1: a lower value is better; 0: neither is.
        about: one sentence for readers.
        percent: a report prints the value as per cent.

    Raises:
        PluginError: ``values`` is no function, or the name is taken.
    """
    if not callable(values):
        raise PluginError(f"the metric {name} must be a function of a predictive and targets, got {short(values)}")

    def of(predictive: Predictive, targets: Tensor) -> Mean | None:
        found = values(predictive, targets)
        if found is None:
            return None
        if not isinstance(found, Tensor) or found.ndim == 0 or len(found) != len(targets):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise PluginError(f"the metric {name} must be a tensor of {len(targets)} rows, got {shape}")
        return Mean.of(found)

    METRICS.add(name, Metric(name, label, about, better, percent, of), values.__module__)
