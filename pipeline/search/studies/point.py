"""One trial of a study: a point of the grid with one seed, fitted on training rows, scored on validation rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from bdl_pipe import evaluation
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.posterior import Predictor
from bdl_pipe.registry import posterior_of

from ...work.worker import keep_freed_memory
from ..trial import MILESTONES, SECONDS, TIME, Chain, Milestones, Upstream
from . import POINT, SEED, numbers


def trial(
    sampled: Mapping[str, Any],
    chain: Chain,
    evaluate: EvaluateConfig,
    data: FitData,
    upstream: Upstream,
) -> None:
    """Fit and score one trial, as Ray Tune's trainable: the scores are reported, or none where the fit diverged.

    A checkpoint is kept at each quarter of the first row's steps, so that what was interrupted goes on there.
    """
    from ray import tune

    torch.set_num_threads(chain.threads)
    keep_freed_memory()
    chain = replace(chain, repeat=sampled[SEED])
    configs = chain.configs(numbers(sampled[POINT]))
    report = Milestones(lambda _: {})
    try:
        made = chain.make(data, upstream, configs, report)
        scores = validation_scores(chain.finish(made, data, configs, upstream), data, evaluate, chain)
    except Diverged:
        scores = {}
    tune.report({**scores, TIME: MILESTONES, SECONDS: report.seconds})


def validation_scores(state: State, data: FitData, evaluate: EvaluateConfig, chain: Chain) -> dict[str, float]:
    """Compute the metrics of the validation rows, in the targets' own units.

    Raises:
        Diverged: a prediction is not finite.
    """
    fitted = Predictor(posterior_of(state, data.device), data.transform, data.classes)
    config = replace(evaluate, joint_pairs=0)
    found = evaluation.score_clean(fitted, data.validation, config, chain.predictions, data.device)
    return {name: value for name, (value, _) in found.metrics.items()}
