"""The metrics of predictives, in the order of stored scores, and the function that adds a metric.

A family's file has its functions, and the tuple of its metrics. :mod:`bdl_pipe.metrics.table` adds the metrics of
stored predictions; evaluation does not import it, so that no prediction depends on such a metric.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

from torch import Tensor

from ..errors import short
from ..plugins import PluginError, Registered
from ..predictive import Predictive
from . import classification, joint, regression
from .metric import Mean, Metric, Question, StoredMetric, Task

Values = Callable[[Predictive, Tensor], Tensor | None]
BEFORE: Final = (classification.NLL, regression.CRPS, regression.COVERAGE_90)  # also of regression before recalibration
RECALIBRATED: Final = (
    classification.NLL.other("recalibrated", "after"),
    *(metric.other("before", "before") for metric in BEFORE),
    Metric("coverage_conformal", "Coverage %", "share of targets in their 90 % conformal set", better=0, percent=True),
    Metric("size_conformal", "Set size", "mean number of classes in the 90 % conformal set", better=-1),
    Metric("width_conformal", "Width", "mean width of the 90 % conformal interval, original units", better=-1),
)
_FAMILIES: Final = (
    regression.ERRORS,
    RECALIBRATED,
    classification.METRICS,
    regression.METRICS,
    (classification.ECE, classification.ECE.other("recalibrated", "after")),
    joint.METRICS,
    regression.OTHER_UNITS,
)
METRICS: Final[Registered[Metric]] = Registered(
    "metric", {metric.name: metric for family in _FAMILIES for metric in family}
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
    task: Task = "both",
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
        task: the task of the predictions that ``function`` takes: ``classification``, ``regression`` or ``both``.
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
        ("task", task, get_args(Task)),
        ("question", question, get_args(Question)),
        ("of", of, ("predictions", "predictive")),
    ):
        if value not in allowed:
            rule = ", ".join(word or '""' for word in allowed)
            raise PluginError(f"the {key} of the metric {name} must be one of {rule}, got {short(value)}")
    # loaded by name: with an import statement, the results of a plugin would depend on all metrics
    if name in importlib.import_module(f"{__package__}.table").LIBRARY:
        raise PluginError(f"the metric {name} is taken: the library has one of this name")
    facts: Any = {"label": label, "about": about, "better": better, "percent": percent, "question": question}
    facts["headline"] = not question
    metric = (
        StoredMetric(name, **facts, task=task, function=function)
        if of == "predictions"
        else Metric(name, **facts, task=task, of=_mean_of(name, function))
    )
    METRICS.add(name, metric, function.__module__)


def _mean_of(name: str, values: Values) -> Callable[[Predictive, Tensor], Mean | None]:
    def of(predictive: Predictive, targets: Tensor) -> Mean | None:
        of_rows = values(predictive, targets)
        if of_rows is None:
            return None
        if not isinstance(of_rows, Tensor) or of_rows.ndim == 0 or len(of_rows) != len(targets):
            shape = tuple(of_rows.shape) if isinstance(of_rows, Tensor) else type(of_rows).__name__
            raise PluginError(f"the metric {name} must be a tensor of {len(targets)} rows, got {shape}")
        return Mean.of(of_rows)

    return of
