"""A predictive as named columns with a row for each input, for files and the served model.

Classes: ``p_<class>``, ``predicted``, ``entropy`` H[y|x] and ``mutual_information`` I[y;θ|x], in nats. Regression, in
original units: ``mean``, ``variance``, ``sd``, ``epistemic_variance`` (the variance of the draws' means; 0 for a closed
form, where ``variance`` includes the model's and the noise's) and the central 90 % interval ``lower``, ``upper``,
the quantiles of the *mixture* of draws, not of a Gaussian with its moments; with several outputs each name ends in
``_<target>``.

A recalibrated posterior of classes adds ``recalibrated_p_<class>`` and ``set``, the classes of the conformal set with
``|`` between them (within a name, ``|`` is written ``\\|`` and ``\\`` is written ``\\\\``). A recalibrated posterior of
regression has all columns after recalibration, and adds the ends ``conformal_lower``, ``conformal_upper``.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from .errors import require
from .posterior import Predictor
from .predictive import Categorical, Continuous, Predictive
from .seeds import Seed

COVERAGE: Final = 0.9


def table(batches: Iterable[tuple[slice, Predictive]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Make :func:`columns` of all rows, from the predictives of their batches (``Predictor.batches``)."""
    parts = [columns(predictive, names) for _, predictive in batches]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def predictions(
    fitted: Predictor,
    raw: np.ndarray,
    names: Sequence[str],
    *,
    rng: Seed,
    level: float | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, np.ndarray]:
    """Predict raw rows: the :func:`columns`, and the columns of the recalibration if there is one.

    Args:
        names: the classes, or the target columns.
        level: the probability of the conformal sets, in (0, 1); None means 0.9.

    Raises:
        ConfigError: ``level`` is not in (0, 1), or there are too few calibration rows for it.
        Diverged: a prediction is not finite.
    """
    level = COVERAGE if level is None else level
    require(0 < level < 1, "level", "must be in (0, 1)", level)
    parts = []
    for rows, transformed in fitted.transformed_batches(raw, rng=rng, device=device):
        part = columns(fitted.final(transformed), names)
        parts.append(part | _recalibrated(fitted, transformed, names, level, raw[rows]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _recalibrated(
    fitted: Predictor, transformed: Predictive, names: Sequence[str], level: float, rows: np.ndarray
) -> dict[str, np.ndarray]:
    learnt = fitted.recalibration
    if learnt is None:
        return {}
    if isinstance(transformed, Categorical):
        better = learnt.apply(transformed)
        columns_of_classes = {f"recalibrated_p_{name}": _array(better.mean)[:, k] for k, name in enumerate(names)}
        members = learnt.class_set(transformed, level, rows).cpu().numpy()
        escaped = [name.replace("\\", "\\\\").replace("|", "\\|") for name in names]
        sets = ["|".join(name for name, inside in zip(escaped, row, strict=True) if inside) for row in members]
        return {**columns_of_classes, "set": np.array(sets, dtype=object)}
    assert isinstance(transformed, Continuous)
    low, high = learnt.interval(transformed, fitted.transform, level, rows)
    return _by_target({"conformal_lower": _array(low), "conformal_upper": _array(high)}, names)


def columns(predictive: Predictive, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Make columns of [batch] values; ``names``: the classes, or the target columns."""
    if isinstance(predictive, Categorical):
        probabilities = _array(predictive.mean)
        table = {f"p_{name}": probabilities[:, k] for k, name in enumerate(names)}
        table["predicted"] = np.array(names, dtype=object)[probabilities.argmax(1)]
        table["entropy"] = _array(predictive.entropy())
        table["mutual_information"] = _array(predictive.mutual_information())
        return table
    assert isinstance(predictive, Continuous)
    tail, variance = (1 - COVERAGE) / 2, _array(predictive.variance)
    values = {
        "mean": _array(predictive.mean),
        "variance": variance,
        "sd": np.sqrt(variance),
        "epistemic_variance": _array(predictive.epistemic_variance),
        "lower": _array(predictive.quantile(tail)),
        "upper": _array(predictive.quantile(1 - tail)),
    }
    return _by_target(values, names)


def _by_target(values: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a column for each output; with several outputs, a name ends in the output's name."""
    return {f"{k}_{t}" if len(names) > 1 else k: v[:, i] for i, t in enumerate(names) for k, v in values.items()}


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
