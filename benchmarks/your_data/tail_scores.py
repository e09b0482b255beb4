"""Scores of regression that ScoringBench (Landsgesell et al. 2026, arXiv:2603.29928) has beside RMSE, CRPS and the
log score: the interval score at 90 %, and the CRPS weighted by quantile. A plugin of the project of results/your_data.

ScoringBench sums the weighted CRPS over 99 quantiles; here it is integrated.
"""

from functools import lru_cache, partial

from torch import Tensor

import bdl_pipe as bdl
from bdl_pipe.metrics.quantile_scores import Weight, interval_score, quantile_weighted_crps
from bdl_pipe.predictive import Continuous


def _interval(predictive: bdl.Predictive, targets: Tensor) -> Tensor | None:
    return interval_score(predictive, targets, level=0.9) if isinstance(predictive, Continuous) else None


@lru_cache(maxsize=1)  # the three metrics below are asked for the same batch one after the other
def _weighted(predictive: Continuous, targets: Tensor) -> dict[Weight, Tensor]:
    return quantile_weighted_crps(predictive, targets)


def _crps(predictive: bdl.Predictive, targets: Tensor, weight: Weight) -> Tensor | None:
    return _weighted(predictive, targets)[weight] if isinstance(predictive, Continuous) else None


bdl.register_metric("interval_score_90", _interval, label="Interval score", better=-1, of="predictive")
bdl.register_metric("crps_left", partial(_crps, weight="left"), label="CRPS, left tail", better=-1, of="predictive")
bdl.register_metric("crps_right", partial(_crps, weight="right"), label="CRPS, right tail", better=-1, of="predictive")
bdl.register_metric("crps_centre", partial(_crps, weight="centre"), label="CRPS, centre", better=-1, of="predictive")
