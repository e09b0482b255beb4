"""Scores of regression that ScoringBench (Landsgesell et al. 2026, arXiv:2603.29928) has beside RMSE, CRPS and the
log score: the interval score at 90 %, and the CRPS weighted by quantile. A plugin of the project of results/your_data.

ScoringBench sums the weighted CRPS over 99 quantiles; here it is integrated.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

import bdl_pipe as bdl
from bdl_pipe.metrics import quantile_scores
from bdl_pipe.predictive import Continuous


def _score(of: Callable[[Continuous, Tensor], Tensor], predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return of(predictive, targets) if isinstance(predictive, Continuous) else None


def _interval(predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return _score(partial(quantile_scores.interval_score, level=0.9), predictive, targets)


def _left(predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return _score(partial(quantile_scores.quantile_weighted_crps, weight="left"), predictive, targets)


def _right(predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return _score(partial(quantile_scores.quantile_weighted_crps, weight="right"), predictive, targets)


def _centre(predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return _score(partial(quantile_scores.quantile_weighted_crps, weight="centre"), predictive, targets)


bdl.register_metric("interval_score_90", _interval, label="Interval score", better=-1, of="predictive")
bdl.register_metric("crps_left", _left, label="CRPS, left tail", better=-1, of="predictive")
bdl.register_metric("crps_right", _right, label="CRPS, right tail", better=-1, of="predictive")
bdl.register_metric("crps_centre", _centre, label="CRPS, centre", better=-1, of="predictive")
