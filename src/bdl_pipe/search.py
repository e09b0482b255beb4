"""Search a method's hyperparameters with your own optimiser: the space, a config for a sample, and its score.

    method = METHODS["deterministic"]
    sample = {key: draw(*bounds) for key, bounds in method.search.items()}  # (low, high, scale) by dotted key
    config = sampled_config(method, present, sample)
    state = method.stages["student"].fit_one(data, {}, config, rng=rng, report=Silent())
    score = validation_nll(state, data, rng)

``data`` must hold validation rows that no fit has seen. ``python -m pipeline tune`` searches this way, with Ray Tune.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any, Final

import torch

from . import config, evaluation
from .artifacts import State
from .data.fitdata import FitData
from .evaluation import EvaluateConfig
from .method import Method
from .metrics import table
from .metrics.stored import of_table
from .posterior import Predictor
from .registry import posterior_of
from .seeds import Seed

DIVERGED: Final = 1e9  # A sample that diverged has a finite score, because optimisers compare scores.
Sampled = Mapping[str, Any]  # dotted key of the method's config -> value


def sampled_config(method: Method, present: object, sampled: Sampled) -> object:
    """Return a method's config ``present`` with the hyperparameters ``sampled`` in place of its own.

    Raises:
        ConfigError: the sample breaks a rule of the config. The space itself has no rules between keys.
    """
    merged = config.merge(config.to_mapping(present), nested(sampled))
    return config.read(method.config, merged, f"methods.{method.name}")


def hyperparameters(method: Method, present: object) -> dict[str, int | float] | None:
    """Return the values of the searched keys in a config of the method; None if a value is outside the space."""
    values, sampled = config.to_mapping(present), dict[str, int | float]()
    for key, (low, high, scale) in method.search.items():
        value: object = reduce(getitem, key.split("."), values)
        if not isinstance(value, int | float) or not low <= value <= high:  # null, or a rule such as validation
            return None
        sampled[key] = value if scale == "integer" else float(value)
    return sampled


def validation_nll(state: State, data: FitData, rng: Seed) -> float:
    """Compute the mean of −log p(y | x) over the validation rows, in nats, in the targets' own units.

    Args:
        state: the state of a posterior that was fitted to the training rows.

    Raises:
        Diverged: a prediction is not finite.
    """
    fitted = Predictor(posterior_of(state, data.device), data.transform, data.classes)
    total, validation = 0.0, data.validation
    for rows, predictive in fitted.batches(validation.inputs, rng=rng, device=data.device):
        targets = torch.tensor(validation.targets[rows], device=data.device)
        total -= float(predictive.log_prob(targets).double().sum())
    nll = total / len(validation)
    return min(nll, DIVERGED) if nll == nll else DIVERGED


def validation_scores(state: State, data: FitData, rng: Seed, how: EvaluateConfig) -> dict[str, float]:
    """Compute the scores of validation rows, without joint scores, from predictives and stored predictions, by name.

    Raises:
        Diverged: a prediction is not finite.
    """
    predictor = Predictor(posterior_of(state, data.device), data.transform, data.classes)
    alone = replace(how, joint_pairs=0, joint_groups=0)
    scored = evaluation.score_clean(predictor, data.validation, alone, rng, data.device)
    stored = table.scores(of_table(scored.predictions, rng, scored.draws))
    return {name: value for name, (value, _) in (scored.metrics | stored).items()}


def rounded(value: float) -> float:
    """Round to four significant digits, so that a file holds exactly the sampled value; integers are kept."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def same(sampled: Sampled, present: Sampled) -> bool:
    """Return whether a sample has the hyperparameters ``present``, up to rounding."""
    return all(rounded(sampled[key]) == rounded(value) for key, value in present.items())


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys: ``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return tree
