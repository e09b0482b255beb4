"""Compute at each row the distance of a predictive of one target from a reference predictive, by quadrature.

    KL = ∫ p log(p/q) dy,   TV = ½ ∫ |p − q| dy,   p the reference's density, a mixture of Gaussians of one variance σ²

The trapezoidal rule has nodes σ/8 apart, from 7σ below the lowest to 7σ above the highest component. For a
smooth log q the KL is exact to 1e-8 (the rule converges exponentially for a Gaussian's integrals); where q has kinks,
and for TV, to about 3e-4. KL is infinite where q is 0 within that range.
"""

from dataclasses import dataclass, field
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from ..predictive import Continuous, Gaussian, Predictive
from .gathered import Scores
from .references import Reference

_REACH: Final = 7.0  # in σ; 1e-12 of a component lies beyond on each side
_NODES_A_SD: Final = 8


def distances(reference: Gaussian, other: Continuous) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return KL(reference ‖ other) and the total variation between them at each row, in float64.

    Args:
        reference: a predictive of one output, with one variance for all draws and rows.
    """
    step = float(reference.draw_variance.flatten()[0]) ** 0.5 / _NODES_A_SD
    low = reference.draw_mean.amin(0).double() - _REACH * _NODES_A_SD * step  # [row, 1]
    last = ((reference.draw_mean.amax(0).double() - low) / step + _REACH * _NODES_A_SD).ceil()  # the row's last node
    divergence = variation = torch.zeros(len(low), dtype=torch.float64)
    for node in range(int(last.max()) + 1):
        values, within = low + step * node, (node <= last)[:, 0]
        log_p, log_q = reference.log_prob(values), other.log_prob(values.to(other.mean.device)).to(values)
        p, q = log_p.exp(), log_q.exp()
        divergence = divergence + torch.where(within, p * (log_p - log_q), 0.0)
        variation = variation + torch.where(within, (p - q).abs(), 0.0)
    device = other.mean.device
    beyond = other.cdf(low.to(device)) + 1 - other.cdf((low + step * last).to(device))
    return step * divergence, (step * variation + beyond[:, 0].to(low)) / 2


@dataclass
class Distances:
    """The distances of a run's predictive to the reference of its test rows, gathered over batches.

    Attributes:
        reference: the reference of the test rows; None means that there are no scores.
    """

    reference: Reference | None
    divergences: list[Tensor] = field(default_factory=list)
    variations: list[Tensor] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)

    def add(self, rows: slice, predictive: Predictive) -> None:
        """Add a batch of test rows, predicted in transformed units."""
        if self.reference is None:
            return
        assert isinstance(predictive, Continuous)
        divergence, variation = distances(self.reference.predictive(rows), predictive)
        self.divergences.append(divergence)
        self.variations.append(variation)
        own = predictive.epistemic_variance[:, 0].double().sqrt().cpu()
        self.ratios.append(own / self.reference.draws[:, rows].std(0, correction=0))

    def scores(self) -> Scores:
        """Return ``reference_kl`` and ``reference_tv``, means over rows, and ``reference_sd_ratio``, their median.

        A predictive has no ratio if its variance does not split into noise and uncertainty of f.
        """
        if self.reference is None:
            return {}
        divergence, variation, ratio = (torch.cat(each) for each in (self.divergences, self.variations, self.ratios))
        scores = {"reference_kl": (float(divergence.mean()), len(ratio))}
        scores["reference_tv"] = (float(variation.mean()), len(ratio))
        if bool(ratio.any()):
            scores["reference_sd_ratio"] = (float(ratio.quantile(0.5)), len(ratio))
        return scores
