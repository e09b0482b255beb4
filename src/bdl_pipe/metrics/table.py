"""All metrics in one table: of predictives, of stored predictions, of other data sets, of cost; and of plugins.

A metric of stored predictions is a function of the predictions of one fit (:mod:`bdl_pipe.metrics.stored`), so that a
new one needs no posterior, and repeats no fit and no prediction. It returns a number, or None if the metric is not
defined for these predictions. :func:`bdl_pipe.register_metric` adds a metric.

    for (split, seed), fit in stored.read(Path("work/evaluate/houses-vbll/predictions.parquet")):
        print(split, seed, scores(fit))
"""

import math
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Final, Literal

from ..errors import short
from ..plugins import PluginError
from . import brier_parts, calibration_tests, conformal, pit, selective
from .cost import COSTS
from .metric import Metric, StoredMetric
from .registered import METRICS, registered
from .separation import DETECTION
from .stored import Stored, StoredClasses, StoredValues

_FAMILIES: Final = (
    calibration_tests.METRICS,
    brier_parts.METRICS,
    conformal.METRICS,
    pit.METRICS,
    selective.METRICS,
)
_KINDS: Final[Mapping[str, Any]] = {"classification": StoredClasses, "regression": StoredValues, "both": Stored}
LIBRARY: Final[Mapping[str, StoredMetric]] = {metric.name: metric for family in _FAMILIES for metric in family}
"""The library's metrics of stored predictions, by name."""
OF_TEST_ROWS: Final[Mapping[str, Metric]] = ChainMap(dict[str, Metric](LIBRARY), METRICS)  # type: ignore[arg-type]
"""Metrics of test rows by name, in the order of tables: of predictives, then of stored predictions."""
_OTHERS: Final = {metric.name: metric for metric in (*DETECTION, *COSTS)}


def metric_of(name: str) -> Metric:
    """Return the metric of test rows, of out-of-distribution detection or of cost that has this name."""
    return _OTHERS[name] if name in _OTHERS else OF_TEST_ROWS[name]


def always(task: Literal["classification", "regression"]) -> list[str]:
    """List the metrics that every posterior of a task has, without stored predictions."""
    return [metric.name for metric in registered() if metric.always and metric.task in (task, "both")]


def stored_metrics(task: Literal["classification", "regression"] | None = None) -> dict[str, StoredMetric]:
    """Return the metrics of stored predictions of one task or of both: the library's, then the added ones, by name."""
    added = {name: metric for name, metric in METRICS.items() if isinstance(metric, StoredMetric)}
    return {name: one for name, one in {**LIBRARY, **added}.items() if task is None or one.task in (task, "both")}


def scores(fit: Stored) -> dict[str, tuple[float, int]]:
    """Return all scores that the predictions of one fit have: name -> (value, number of rows).

    Raises:
        PluginError: a metric's function returns no finite number.
    """
    values = {name: score(metric, fit) for name, metric in stored_metrics().items()}
    return {name: (value, len(fit)) for name, value in values.items() if value is not None}


def score(metric: StoredMetric, fit: Stored) -> float | None:
    """Return a score of the predictions of one fit; None if they have no such score.

    Raises:
        PluginError: the function returns no finite number.
    """
    value = metric.function(fit) if isinstance(fit, _KINDS[metric.task]) else None
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise PluginError(f"the metric {metric.name} must be a finite number or None, got {short(value)}")
    return float(value)
