"""Diagnostics of chains by their predictions: rank-normalised split R-hat, bulk and tail effective sample size (ESS).

The weights of a network are not identified, since its hidden units permute. The diagnostics therefore use functions of
the predictive, one number for each draw: the log-likelihood of a few rows, and at each of these rows p(true class | x,
θ) or the mean E[y | x, θ]. The estimators are ArviZ's (Vehtari et al. 2021).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.fitdata import FitData
from ..errors import require, require_positive, without_warnings
from ..method import Summary
from ..posterior import NetworkDraws
from ..predictive import Categorical, Gaussian

FEWEST_CHAINS, FEWEST_DRAWS = 2, 4  # below these the estimators are not defined
_TRACED: Final = 3  # rows with a trace of the predictions


@dataclass(frozen=True)
class DiagnosticsConfig:
    """The settings of the diagnostics: the rows to predict, and the bounds for warnings.

    Attributes:
        rows: the number of rows to predict: the first validation rows or, if there are none, the first training rows.
        max_rhat: the largest R-hat without a warning.
        min_ess: the smallest effective sample size, of all chains together, without a warning.
    """

    rows: int
    max_rhat: float
    min_ess: float

    def __post_init__(self) -> None:
        require_positive(self, "rows", "min_ess")
        require(self.max_rhat > 1, "max_rhat", "must be > 1", self.max_rhat)


def functionals(
    draws: NetworkDraws, inputs: Tensor, targets: Tensor
) -> tuple[Float[Tensor, " draw"], Float[Tensor, "draw row"]]:
    """Return the log-likelihood of the rows for each draw, and a prediction at each row for each draw.

    The prediction is the probability of the true class, or the mean of the first output.
    """
    predictive = draws.predict(inputs)
    if isinstance(predictive, Categorical):
        chosen = targets[None, :, None].expand(len(predictive.draw_log_probs), -1, 1)
        each = predictive.draw_log_probs.gather(-1, chosen)[..., 0]  # [draw, row]
        return each.sum(1), each.exp()
    assert isinstance(predictive, Gaussian)
    single = (Gaussian(m[None], v[None]) for m, v in zip(predictive.draw_mean, predictive.draw_variance, strict=True))
    return torch.stack([p.log_prob(targets).sum() for p in single]), predictive.draw_mean[..., 0]


def of_split(chains: Sequence[NetworkDraws], data: FitData, config: DiagnosticsConfig) -> Summary:
    """Return metrics and traces of all chains of one split together; :func:`over_splits` judges them.

    The metrics are ``rhat_log_likelihood`` and ``ess_log_likelihood``, and the worst over the rows' predictions:
    ``rhat_prediction``, ``ess_prediction`` and ``ess_tail_prediction``. A warning replaces metrics that cannot be
    computed. The traces are the log-likelihood of the rows and the predictions of the first three rows.
    """
    part = "validation" if len(data.validation) else "train"
    inputs, targets = data.rows(part).slice(0, config.rows)  # type: ignore[arg-type]
    per_chain = [functionals(chain, inputs, targets) for chain in chains]
    total = torch.stack([c[0] for c in per_chain]).double().numpy()  # [chain, draw]
    each = torch.stack([c[1] for c in per_chain]).double().numpy()  # [chain, draw, row]
    kept, traces = total.shape[1], {"log-likelihood": _short(total)}
    traces |= {f"prediction of row {row}": _short(each[..., row]) for row in range(min(_TRACED, each.shape[-1]))}
    if len(chains) < FEWEST_CHAINS or kept < FEWEST_DRAWS:
        need = f"{FEWEST_CHAINS} chains of {FEWEST_DRAWS} draws"
        return Summary({}, [f"R-hat and ESS need {need}; there are {len(chains)} of {kept}"], traces)
    try:
        with without_warnings(FutureWarning):  # ArviZ announces a refactoring
            import arviz as library
    except ImportError:
        return Summary({}, ["R-hat and ESS were not computed: arviz is not installed"], traces)
    columns = [each[..., i] for i in range(each.shape[-1]) if np.ptp(each[..., i]) > 0]  # a constant has no R-hat
    if not columns:
        return Summary({}, ["R-hat and ESS were not computed: the draws' predictions are all equal"], traces)
    metrics = {
        "rhat_log_likelihood": float(library.rhat(total)),
        "ess_log_likelihood": float(library.ess(total)),
        "rhat_prediction": _worst(max, [float(library.rhat(c)) for c in columns]),
        "ess_prediction": _worst(min, [float(library.ess(c)) for c in columns]),
        "ess_tail_prediction": _worst(min, [float(library.ess(c, method="tail")) for c in columns]),
    }
    return Summary(metrics, [], traces)


def over_splits(splits: Sequence[Summary], config: DiagnosticsConfig) -> Summary:
    """Return each metric's worst value over the splits, the warnings for them, and the first split's traces.

    The worst effective sample size is the smallest; the worst value of any other metric is the largest.
    """
    values: dict[str, list[float]] = {}
    for summary in splits:
        for name, value in summary.metrics.items():
            values.setdefault(name, []).append(value)
    metrics = {name: _worst(min if name.startswith("ess") else max, each) for name, each in values.items()}
    texts, count = Counter(text for summary in splits for text in summary.warnings), len(splits)
    warnings = [text if count == 1 else f"{text} (in {times} of {count} splits)" for text, times in texts.items()]
    return Summary(metrics, [*warnings, *judge(metrics, config, count)], splits[0].traces)


def judge(metrics: Mapping[str, float], config: DiagnosticsConfig, splits: int = 1) -> list[str]:
    """Return a warning if R-hat or an effective sample size is beyond its bound or not finite."""
    if "rhat_prediction" not in metrics:
        return []
    rhat = _worst(max, [metrics["rhat_log_likelihood"], metrics["rhat_prediction"]])
    bulk = _worst(min, [metrics["ess_log_likelihood"], metrics["ess_prediction"]])
    tail = metrics["ess_tail_prediction"]
    draws = f"{bulk:.3g} effective draws in the bulk and {tail:.3g} in the tails (at least {config.min_ess:g})"
    figures = f"R-hat {rhat:.3f} (limit {config.max_rhat:g}), {draws}"
    figures += f", each of the worst of {splits} splits" if splits > 1 else ""
    if not all(map(math.isfinite, (rhat, bulk, tail))):
        return [f"chains are constant or not finite: {figures}"]
    faults = ["disagree"] if rhat > config.max_rhat else []
    faults += ["have few effective draws"] if min(bulk, tail) < config.min_ess else []
    return [f"chains {' and '.join(faults)}: {figures}: run them longer"] if faults else []


def _short(values: np.ndarray) -> list[list[float]]:
    """Return values as lists of numbers with five digits, for a figure on a page."""
    return [[float(f"{value:.5g}") for value in chain] for chain in values]


def _worst(choose: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    """Return the extreme value, or NaN if any value is NaN."""
    return math.nan if any(map(math.isnan, values)) else choose(values)
