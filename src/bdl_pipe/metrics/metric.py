"""A metric: its name, the function that computes it, how a report prints it; and a mean that batches add up to."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from torch import Tensor

from ..predictive import Predictive


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


BatchMetric = Callable[[Any, Tensor], Mean | None]  # the first argument is a predictive of the metric's kind
StoredTask = Literal["classification", "regression", "both"]
Question = Literal["", "trust", "intervals", "refuse", "unseen"]  # the page of the report that shows a metric


@dataclass(frozen=True)
class Metric:
    """A score of a posterior on rows with known targets.

    Attributes:
        name: its name in stored scores.
        label: its title in a report.
        about: one sentence for readers.
        better: +1: a higher value is better; -1: a lower value is better; 0: neither is.
        percent: a report prints the value as per cent.
        of: computes the mean of one batch from its predictive and its targets, both in original units; returns None if
            the predictive has no such score. Without a function, :mod:`bdl_pipe.evaluation` computes the metric
            together with others.
        kind: the class of the predictives that ``of`` takes.
        value: the score of the mean over all batches.
        shifted: the metric is also computed on corrupted images and on rows of another data set.
        unit: another way in which a report prints the value, see :mod:`bdl_pipe.metrics.written`.
        question: the report's page that shows the metric; empty if no such page shows it.
        beside: the metric to read together with this one, such as its value by chance; may be empty.
    """

    name: str
    label: str
    about: str
    better: Literal[-1, 0, 1]
    percent: bool = False
    of: BatchMetric | None = None
    kind: type[Any] = Predictive
    value: Callable[[Mean], float] = attrgetter("value")
    shifted: bool = False
    unit: Literal["", "digits", "count", "bytes", "seconds", "noise"] = ""
    question: Question = ""
    beside: str = ""

    def batch(self, predictive: Predictive, targets: Tensor) -> Mean | None:
        """Return the mean of one batch; None if evaluation computes the metric, or the predictive has no such score."""
        return self.of(predictive, targets) if self.of is not None and isinstance(predictive, self.kind) else None


@dataclass(frozen=True, kw_only=True)
class StoredMetric(Metric):
    """A score that follows from the stored predictions of one fit, :mod:`bdl_pipe.metrics.stored`.

    Attributes:
        function: computes the score of predictions; returns None if they have no such score.
        task: the task of the predictions that ``function`` takes.
        rows: returns each row's contribution [row]; their mean is the score, so that two fits are compared in pairs of
            rows: the score is linear in the rows, up to terms that vanish faster than its error. ``rows`` returns None
            if the predictions have no such score, and is None if the contributions are unknown.
    """

    function: Callable[[Any], float | None]
    task: StoredTask = "both"
    rows: Callable[[Any], np.ndarray | None] | None = None
