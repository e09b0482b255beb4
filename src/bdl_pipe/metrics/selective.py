"""Selective prediction: how much the loss falls if the least certain answers are refused.

Rows are accepted from the most to the least certain. With losses ℓ_(1) … ℓ_(n) in that order, the first k cost
C_k = Σ_{i ≤ k} ℓ_(i): the risk at coverage k/n is C_k/k, the generalised risk C_k/n.

- AURC: the mean over k of C_k/k (Geifman, Uziel & El-Yaniv 2019).
- AUGRC: the area below the generalised risk, by trapezoids from (0, 0) (Traub et al. 2024). Of wrong answers,
  ℓ ∈ {0, 1}, it is (1 − AUROC)·acc·(1 − acc) + (1 − acc)²/2 for the accuracy acc and the AUROC of detecting them.

Equally certain rows are in random order, and all results are expectations over this order: each of these rows gets the
mean loss of its group, since C_k is linear in the losses.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from ..errors import DataError, require
from .metric import StoredMetric
from .stored import Stored


@dataclass(frozen=True)
class RiskCoverage:
    """The risk at each coverage 1/n, 2/n, … 1.

    Attributes:
        cost: C_k, the expected sum of the losses of the k most certain rows.
    """

    cost: Float[np.ndarray, " row"]

    @property
    def coverage(self) -> Float[np.ndarray, " row"]:
        """Return k/n."""
        return np.arange(1, len(self.cost) + 1) / len(self.cost)

    @property
    def risk(self) -> Float[np.ndarray, " row"]:
        """Return C_k/k, the mean loss of the accepted rows."""
        return self.cost / np.arange(1, len(self.cost) + 1)

    @property
    def aurc(self) -> float:
        """Return the mean risk over all coverages. For the order by chance it is the mean loss."""
        return float(self.risk.mean())

    @property
    def augrc(self) -> float:
        """Return the area below the generalised risk. For the order by chance it is half of the mean loss."""
        return float((self.cost.sum() - self.cost[-1] / 2) / len(self.cost) ** 2)

    def risk_at(self, coverage: float) -> float:
        """Return the risk if at least the share ``coverage`` of the rows is accepted.

        Raises:
            ConfigError: ``coverage`` is not in (0, 1].
        """
        require(0 < coverage <= 1, "coverage", "must be in (0, 1]", coverage)
        return float(self.risk[int(np.ceil(coverage * len(self.cost) - 1e-9)) - 1])

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage at which the risk is at most ``risk``; 0 if there is none."""
        held = np.flatnonzero(self.risk <= risk + 1e-12)  # the sum of .01s is not .01 exactly
        return float(self.coverage[held[-1]]) if len(held) else 0.0


def risk_coverage(losses: np.ndarray, uncertainty: np.ndarray) -> RiskCoverage:
    """Return the curve of accepting the least uncertain rows first.

    Args:
        losses: the loss of each answer [row]: whether it is wrong, or its squared error.
        uncertainty: higher if an answer should be refused [row].

    Raises:
        DataError: there is no row, the lengths differ, or a number is not finite.
    """
    losses, uncertainty = np.asarray(losses, np.float64), np.asarray(uncertainty, np.float64)
    if losses.ndim != 1 or not len(losses) or losses.shape != uncertainty.shape:
        raise DataError(f"losses and uncertainties must be [row], got {losses.shape} and {uncertainty.shape}")
    if not (np.isfinite(losses).all() and np.isfinite(uncertainty).all()):
        raise DataError("losses and uncertainties must be finite")
    _, group, count = np.unique(uncertainty, return_inverse=True, return_counts=True)
    shared = np.bincount(group, losses) / count
    return RiskCoverage(np.repeat(shared, count).cumsum())


def contributions(losses: np.ndarray, uncertainty: np.ndarray) -> Float[np.ndarray, " row"]:
    """Return each row's contribution to the AUGRC: their mean is the AUGRC, their variance over n its error squared.

    With a pair's kernel ℓ_i·(1{u_j > u_i} + ½ 1{u_j = u_i}), the AUGRC is the mean over all pairs (i, j), i = j too. A
    row's contribution is the mean over pairs with the row first plus the mean over pairs with the row second, less the
    AUGRC (Hoeffding 1948), so that the error is right up to a share of 1/n.
    """
    losses, uncertainty = np.asarray(losses, np.float64), np.asarray(uncertainty, np.float64)
    area = risk_coverage(losses, uncertainty).augrc
    _, group, count = np.unique(uncertainty, return_inverse=True, return_counts=True)
    cost = np.bincount(group, losses)
    above, below = len(losses) - count.cumsum() + count / 2, cost.cumsum() - cost / 2
    return (losses * above[group] + below[group]) / len(losses) - area


def oracle(losses: np.ndarray) -> RiskCoverage:
    """Return the curve of the best order, which refuses the largest losses first."""
    return risk_coverage(losses, losses)


def by_chance(losses: np.ndarray) -> RiskCoverage:
    """Return the expected curve of the order by chance: the mean loss at every coverage."""
    return risk_coverage(losses, np.zeros(len(losses)))


def gain(losses: np.ndarray, uncertainty: np.ndarray) -> float | None:
    """Return the reduction of the AUGRC as a share of an oracle's reduction: 1 for the oracle, 0 by chance, or below.

    The gain is None if all losses are equal, since no order then reduces the AUGRC.
    """
    chance, best = by_chance(losses).augrc, oracle(losses).augrc
    if chance - best <= 1e-12 * abs(chance):
        return None
    return (chance - risk_coverage(losses, uncertainty).augrc) / (chance - best)


def gain_contributions(losses: np.ndarray, uncertainty: np.ndarray) -> Float[np.ndarray, " row"] | None:
    """Return each row's contribution to the :func:`gain`, which is their mean; or None. See :func:`contributions`."""
    share = gain(losses, uncertainty)
    if share is None:
        return None
    chance, best = contributions(losses, np.zeros(len(losses))), contributions(losses, losses)
    saved, saving = chance - contributions(losses, uncertainty), chance - best
    return share + (saved - share * saving) / saving.mean()


def _curve(fit: Stored) -> RiskCoverage:
    return risk_coverage(fit.losses, fit.uncertainty)


def _answered(percent: int) -> StoredMetric:
    return StoredMetric(
        f"coverage_at_{percent}",
        f"Coverage at {percent} %",
        f"largest share of rows that can be answered with at most {percent} % wrong",
        +1,
        "classification",
        percent=True,
        question="refuse",
        function=lambda fit: _curve(fit).coverage_at(percent / 100),
    )


_SHOWN: Any = {"unit": "digits", "question": "refuse"}
METRICS: Final = (
    StoredMetric(
        "augrc",
        "AUGRC",
        "area under the generalised risk against coverage; a random order gives half of the mean loss",
        -1,
        **_SHOWN,
        function=lambda fit: _curve(fit).augrc,
        rows=lambda fit: contributions(fit.losses, fit.uncertainty),
    ),
    StoredMetric(
        "refusal_gain",
        "Refusal gain %",
        "reduction of AUGRC by refusal, as a share of an oracle's reduction",
        +1,
        percent=True,
        question="refuse",
        function=lambda fit: gain(fit.losses, fit.uncertainty),
        rows=lambda fit: gain_contributions(fit.losses, fit.uncertainty),
    ),
    StoredMetric(
        "aurc",
        "AURC",
        "mean risk over all coverages, with the least certain rows refused first",
        -1,
        beside="aurc_oracle",
        function=lambda fit: _curve(fit).aurc,
        **_SHOWN,
    ),
    StoredMetric(
        "aurc_oracle",
        "AURC of an oracle",
        "mean risk over all coverages, with the largest losses refused first",
        0,
        unit="digits",
        function=lambda fit: oracle(fit.losses).aurc,
    ),
    _answered(1),
    _answered(5),
    StoredMetric(
        "risk_at_80",
        "Risk at 80 %",
        "mean loss of the 80 % most certain rows",
        -1,
        **_SHOWN,
        function=lambda fit: _curve(fit).risk_at(0.8),
    ),
)
