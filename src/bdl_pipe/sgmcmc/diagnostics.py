"""Diagnose chains by what they predict: rank-normalised split R-hat, bulk and tail effective sample size (ESS).

The weights of a network are not identified, since its hidden units permute. The diagnostics are therefore of functions
of the predictive, one number for each draw: the log-likelihood of a few rows, and at each of these rows
p(true class | x, θ) or the mean E[y | x, θ]. The estimators are ArviZ's (Vehtari et al. 2021).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.fitdata import FitData
from ..errors import require
from ..method import Summary
from ..posterior import NetworkDraws
from ..predictive import Categorical, Gaussian

FEWEST_CHAINS, FEWEST_DRAWS = 2, 4  # below these the estimators are not defined
_TRACED: Final = 3  # rows whose predictions are shown draw by draw


@dataclass(frozen=True)
class DiagnosticsConfig:
    """The settings of the diagnostics: which rows are predicted, and which figures are a warning.

    Attributes:
        rows: how many validation rows, from the first; training rows where there are no validation rows.
        max_rhat: a larger R-hat is a warning.
        min_ess: a smaller effective sample size of all chains together is a warning.
    """

    rows: int
    max_rhat: float
    min_ess: float

    def __post_init__(self) -> None:
        require(self.rows > 0, "rows", "must be > 0", self.rows)
        require(self.max_rhat > 1, "max_rhat", "must be > 1", self.max_rhat)
        require(self.min_ess > 0, "min_ess", "must be > 0", self.min_ess)


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


def summarise(chains: list[NetworkDraws], data: FitData, config: DiagnosticsConfig) -> Summary:
    """Return metrics, warnings and traces of all chains together.

    The metrics are ``rhat_log_likelihood`` and ``ess_log_likelihood``, and the worst over the rows' predictions:
    ``rhat_prediction``, ``ess_prediction`` and ``ess_tail_prediction``. A warning stands for metrics that cannot be
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
    library = _arviz()
    if library is None:
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
    return Summary(metrics, judge(metrics, config), traces)


def judge(metrics: dict[str, float], config: DiagnosticsConfig) -> list[str]:
    """Return a warning for each of ``metrics`` beyond its bound, and for each that is not finite."""
    found = []
    for name, value in metrics.items():
        if not math.isfinite(value):
            found.append(f"{name} is {value}: the chains are constant or not finite")
        elif name.startswith("rhat") and value > config.max_rhat:
            found.append(f"{name} = {value:.3f} > {config.max_rhat:g}: the chains disagree; run them longer")
        elif name.startswith("ess") and value < config.min_ess:
            found.append(f"{name} = {value:.1f} < {config.min_ess:g}: few effective draws; run longer or thin less")
    return found


def _short(values: np.ndarray) -> list[list[float]]:
    """Return values as lists of numbers with five digits, for a figure on a page."""
    return [[float(f"{value:.5g}") for value in chain] for chain in values]


def _worst(choose: Callable[[list[float]], float], values: list[float]) -> float:
    """Return the extreme value, or NaN where any value is NaN."""
    return math.nan if any(np.isnan(values)) else choose(values)


def _arviz() -> ModuleType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its notice of a refactoring
            import arviz
    except ImportError:
        return None
    return arviz
