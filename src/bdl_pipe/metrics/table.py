"""All metrics in one table: of predictives, of stored predictions, of other data sets, of cost; and of plugins."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Final

from .classification import DETECTION
from .cost import COSTS
from .metric import Metric
from .of_predictions import LIBRARY
from .registered import METRICS

OF_TEST_ROWS: Final[Mapping[str, Metric]] = ChainMap(dict[str, Metric](LIBRARY), METRICS)  # type: ignore[arg-type]
"""Metrics of test rows by name, in the order of tables: of predictives, then of stored predictions."""
_OTHERS: Final = {metric.name: metric for metric in (*DETECTION, *COSTS)}


def metric_of(name: str) -> Metric:
    """Return the metric of test rows, of out-of-distribution detection or of cost that has this name."""
    return _OTHERS[name] if name in _OTHERS else OF_TEST_ROWS[name]
