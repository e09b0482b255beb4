"""The metrics of predictives, in the order of stored scores, and the function that adds a metric.

Metrics of stored predictions are in :mod:`bdl_pipe.metrics.of_predictions`, and all metrics together in
:mod:`bdl_pipe.metrics.table`. Evaluation imports neither module, so that no prediction depends on them.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from torch import Tensor

from ..errors import short
from ..plugins import PluginError, Registered
from ..predictive import Predictive
from . import classification, joint, regression, scores
from .metric import Mean, Metric, Question, StoredMetric, StoredTask

Values = Callable[[Predictive, Tensor], Tensor | None]


def _other(metric: Metric, suffix: str, when: str) -> Metric:
    """Return the metric of the predictive before or after recalibration, which is not the run's own."""
    about = f"{metric.about}, {when} recalibration"
    return replace(metric, name=f"{metric.name}_{suffix}", about=about, of=None, shifted=False, question="")


_BEFORE: Final = tuple(
    _other(metric, "before", "before") for metric in (scores.NLL, regression.CRPS, regression.COVERAGE_90)
)
_CONFORMAL: Final = (
    Metric("coverage_conformal", "Coverage %", "share of targets in their 90 % conformal set", better=0, percent=True),
    Metric("size_conformal", "Set size", "mean number of classes in the 90 % conformal set", better=-1),
    Metric("width_conformal", "Width", "mean width of the 90 % conformal interval, original units", better=-1),
)

METRICS: Final[Registered[Metric]] = Registered(
    "metric",
    {
        metric.name: metric
        for metric in (
            regression.RMSE,
            _other(scores.NLL, "recalibrated", "after"),
            *_BEFORE,
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
            _other(classification.ECE, "recalibrated", "after"),
            joint.JOINT_NLL,
            joint.JOINT_GAP,
            *joint.DYADIC,
            joint.JOINT_DRAWS,
            regression.LOG_LIKELIHOOD_NORMALISED,
            regression.REFERENCE_KL,
            regression.REFERENCE_TV,
            regression.REFERENCE_SD_RATIO,
            regression.NOISE_RATIO,
        )
    },
)


def registered() -> list[Metric]:
    """Return all metrics of predictives, in the order of stored scores: the library's metrics, then the added ones."""
    return [metric for metric in METRICS.values() if not isinstance(metric, StoredMetric)]


def register_metric(
    name: str,
    function: Callable[..., Any],
    *,
    label: str,
    better: Literal[-1, 0, 1],
    about: str = "",
    percent: bool = False,
    task: StoredTask = "both",
    of: Literal["predictions", "predictive"] = "predictions",
    question: Question = "",
) -> None:
    """Add a metric, which is stored and reported for every run.

    Args:
        name: its name in stored scores.
        function: stored predictions (:mod:`bdl_pipe.metrics.stored`) -> a number; or, with ``of="predictive"``,
            (predictive, targets) -> values [batch, ...], one or several for each row, in original units; their mean is
            the score. It returns None if the metric is not defined.
        label: its title in a report.
        better: +1: a higher value is better; -1: a lower value is better; 0: neither is.
        about: one sentence for readers.
        percent: a report prints the value as per cent.
        task: the stored predictions that ``function`` takes: ``classification``, ``regression`` or ``both``.
        of: ``predictions`` means that a new or changed metric repeats only the scores, no fit and no prediction.
            ``predictive`` gives access to more, such as draws; a new or changed metric evaluates every run again.
        question: the report's page that shows the metric. If empty, the table of all runs shows it.

    Raises:
        PluginError: ``function`` is not a function, the task or the page is unknown, or the name is taken.
    """
    what = "stored predictions" if of == "predictions" else "a predictive and targets"
    if not callable(function):
        raise PluginError(f"the metric {name} must be a function of {what}, got {short(function)}")
    for key, value, allowed in (
        ("task", task, get_args(StoredTask)),
        ("question", question, get_args(Question)),
        ("of", of, ("predictions", "predictive")),
    ):
        if value not in allowed:
            rule = ", ".join(word or '""' for word in allowed)
            raise PluginError(f"the {key} of the metric {name} must be one of {rule}, got {short(value)}")
    # loaded by name: with an import statement, the results of a plugin would depend on all metrics
    if name in importlib.import_module(f"{__package__}.of_predictions").LIBRARY:
        raise PluginError(f"the metric {name} is taken: the library has one of this name")
    about_it: Any = {"name": name, "label": label, "about": about, "better": better, "percent": percent}
    metric = (
        StoredMetric(**about_it, question=question, function=function, task=task)
        if of == "predictions"
        else Metric(**about_it, question=question, of=_mean_of(name, function))
    )
    METRICS.add(name, metric, function.__module__)


def _mean_of(name: str, values: Values) -> Callable[[Predictive, Tensor], Mean | None]:
    def of(predictive: Predictive, targets: Tensor) -> Mean | None:
        found = values(predictive, targets)
        if found is None:
            return None
        if not isinstance(found, Tensor) or found.ndim == 0 or len(found) != len(targets):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise PluginError(f"the metric {name} must be a tensor of {len(targets)} rows, got {shape}")
        return Mean.of(found)

    return of
