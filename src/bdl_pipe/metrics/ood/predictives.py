"""OOD scores of predictives: numbers for each input that are high if the input looks like the training data."""

from collections.abc import Callable
from typing import Final

import numpy as np
from torch import Tensor

from ...errors import short
from ...plugins import PluginError, Registered
from ...predictive import Categorical, Continuous, Predictive

OodScore = Callable[[Predictive], Tensor | None]


def max_prob(predictive: Predictive) -> Tensor | None:
    """Return the log of the largest class probability; the log orders probabilities that float32 rounds to 1."""
    return predictive.log_probs.max(-1).values if isinstance(predictive, Categorical) else None


def mutual_information(predictive: Predictive) -> Tensor | None:
    """Return the mutual information of classes, negated; None for a single draw."""
    if not isinstance(predictive, Categorical) or len(predictive.draw_log_probs) == 1:
        return None
    return -predictive.mutual_information()


def variance(predictive: Predictive) -> Tensor | None:
    """Return the variance of regression, summed over outputs and negated."""
    return -predictive.variance.sum(-1) if isinstance(predictive, Continuous) else None


# Evaluation computes these scores of every predictive; a score returns None for a predictive that does not have it.
OOD_SCORES: Final[Registered[OodScore]] = Registered(
    "OOD score", {"max_prob": max_prob, "mutual_information": mutual_information, "variance": variance}
)


def register_ood_score(name: str, score: OodScore) -> None:
    """Add an OOD score; ``auroc``, ``aupr_in``, ``aupr_out`` and ``fpr95`` by it are reported for every run.

    Args:
        score: a predictive -> [batch], high if an input looks like the training data; or None if the predictive has no
            such score.

    Raises:
        PluginError: ``score`` is not a function, or the name is taken.
    """
    if not callable(score):
        raise PluginError(f"the OOD score {name} must be a function of a predictive, got {short(score)}")
    OOD_SCORES.add(name, score, score.__module__)


def ood_scores(predictive: Predictive) -> dict[str, np.ndarray]:
    """Return scores [batch] that are high if an input looks like the training data.

    The registered scores come first, then the method's own scores.

    Raises:
        PluginError: a score is not one number for each input.
    """
    rows = len(predictive.mean)
    scores = {name: value for name, of in OOD_SCORES.items() if (value := of(predictive)) is not None}
    for name, value in predictive.scores.items():
        if name in scores:
            raise PluginError(f"the OOD score {name} of {type(predictive).__name__} is taken: give it another name")
        scores[name] = value
    for name, value in scores.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != (rows,):
            raise PluginError(f"the OOD score {name} must be a tensor of shape {(rows,)}, got {shape}")
        if value.isnan().any():
            raise PluginError(f"the OOD score {name} must be a number for each input, got NaN")
    return {name: value.double().cpu().numpy() for name, value in scores.items()}
