"""A metric: its name, the function that computes it, how a report prints it; and a mean that batches add up to."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Literal

import numpy as np
from torch import Tensor

from ..predictive import Categorical, Continuous, Predictive


@dataclass(frozen=True)
class Mean:
    """A sum in float64 and the count of its values; ``Mean()`` is the neutral element of ``+``."""

    sum: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """Return the mean of all the values of a tensor."""
        return cls(float(values.double().sum()), values.numel())

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        """Return the mean; NaN if the count is 0."""
        return self.sum / self.count if self.count else math.nan

    @property
    def root(self) -> float:
        """Return the root of the mean. For squared errors it is the RMSE."""
        return math.sqrt(self.value)


BatchMetric = Callable[[Any, Tensor], Mean | None]  # the first argument is a predictive of the metric's task
Task = Literal["classification", "regression", "both"]
Question = Literal["", "trust", "intervals", "refuse", "unseen"]  # the page of the report that shows a metric
_PREDICTIVES: Final = {"classification": Categorical, "regression": Continuous, "both": Predictive}


@dataclass(frozen=True)
class Metric:
    """A score of a posterior on rows with known targets.

    Attributes:
        name: its name in stored scores.
        label: its title in a report.
        about: one sentence for readers.
        better: +1: a higher value is better; -1: a lower value is better; 0: neither is.
        task: the task of the predictions that have the metric.
        percent: a report prints the value as per cent.
        of: computes the mean of one batch from its predictive and its targets, both in original units; returns None if
            the predictive has no such score. Without a function, :mod:`bdl_pipe.evaluation` computes the metric
            together with others.
        value: the score of the sum over all batches.
        always: every posterior of the task has the metric; for classes also on corrupted images and on rows of another
            data set.
        headline: the report's table of all runs shows the metric.
        unit: another way in which a report prints the value, see :mod:`bdl_pipe.metrics.written`.
        short: its title after another word, such as the name of a protocol; empty: the label.
        least: the least true value; a value below it is noise, since the estimate is unbiased.
        question: the report's page that shows the metric; empty if no such page shows it.
        beside: the metric to read together with this one, such as its value by chance; may be empty.
    """

    name: str
    label: str
    about: str
    better: Literal[-1, 0, 1]
    task: Task = "both"
    percent: bool = False
    of: BatchMetric | None = None
    value: Callable[[Any], float] = attrgetter("value")
    always: bool = False
    headline: bool = False
    unit: Literal["", "digits", "count", "bytes", "seconds", "noise"] = ""
    short: str = ""
    least: float = -math.inf
    question: Question = ""
    beside: str = ""

    def batch(self, predictive: Predictive, targets: Tensor) -> Mean | None:
        """Return the mean of one batch; None if evaluation computes the metric, or the predictive has no such score."""
        return self.of(predictive, targets) if self.of and isinstance(predictive, _PREDICTIVES[self.task]) else None

    def other(self, suffix: str, when: str) -> "Metric":
        """Return the metric of the predictive before or after recalibration, which is not the run's own.

        Args:
            suffix: the end of its name.
            when: ``before`` or ``after``.
        """
        about = f"{self.about}, {when} recalibration"
        changes: Any = {"of": None, "always": False, "headline": False, "short": "", "question": ""}
        return replace(self, name=f"{self.name}_{suffix}", about=about, **changes)


@dataclass(frozen=True, kw_only=True)
class StoredMetric(Metric):
    """A score that follows from the stored predictions of one fit, :mod:`bdl_pipe.metrics.stored`.

    Attributes:
        function: computes the score of predictions; returns None if they have no such score.
        rows: returns each row's contribution [row]; their mean is the score, so that two fits are compared in pairs of
            rows: the score is linear in the rows, up to terms that vanish faster than its error. ``rows`` returns None
            if the predictions have no such score, and is None if the contributions are unknown.
    """

    function: Callable[[Any], float | None]
    rows: Callable[[Any], np.ndarray | None] | None = None
