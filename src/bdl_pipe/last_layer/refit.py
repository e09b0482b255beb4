"""G-VBLL-MAP: class densities fitted to fixed features after training, for OOD scores.

For each class, with T_y rows, counts, means and scatters are computed in one pass, and

    μ[y] = (Σ_0⁻¹ + T_yΣ⁻¹)⁻¹ Σ⁻¹ Σ_t φ_t             Σ_0 = sI, μ_0 = 0            (eq. 75)
    Σ[y] = (M + Σ_t (φ_t − φ̂)²) / (T_y + ν + N + 1)   φ̂ the empirical mean         (eq. 77)

Source: Harrison, Willes & Snoek 2023, "Variational Bayesian Last Layers", appendix C.7. Eq. 75 (and 76) is printed
without its inverse, which is restored here. Σ[y] is diagonal, so each of its dimensions has its own inverse gamma, eq.
65 with N = 1: eq. 77 is the mode of IG((T_y + ν)/2, (M + scatter)/2). As in the paper, S is omitted, and a class
without rows has its priors' modes: mean 0 and Σ = M/(ν + 2).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError
from .densities import check_features, check_labels, class_numbers, feature_log_prior, log_densities, widen


@dataclass(frozen=True)
class NoisePrior:
    """The priors of the densities.

    The class means' prior is N(0, sI), and the prior of each noise variance is IG(ν/2, M/2).
    """

    mean_variance: float
    dof: float
    scale: float


@final
class Refit(nn.Module):
    """The class densities N(φ | mean[k], diag variance[k]), for OOD scores and not for labels.

    The paper finds that labels predicted with them are far too confident. For scores:
    ``Categorical(layer.predict(φ).draw_log_probs, {"refit_density": refit.log_density(φ)})``.
    """

    mean: Tensor
    variance: Tensor
    class_log_probs: Tensor
    feature_prior_variance: Tensor

    def __init__(
        self,
        mean: Float[Tensor, "class feature"],
        variance: Float[Tensor, "class feature"],
        class_log_probs: Float[Tensor, " class"],
        feature_prior_variance: Float[Tensor, " feature"],
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("variance", variance)
        self.register_buffer("class_log_probs", class_log_probs)
        self.register_buffer("feature_prior_variance", feature_prior_variance)

    @classmethod
    def skeleton(cls, classes: int, features: int) -> "Refit":
        """Return densities to load a ``state_dict`` into."""
        both, each = torch.zeros(classes, features), torch.zeros(features)
        return cls(both, both.clone(), torch.zeros(classes), each)

    def log_density(
        self, features: Float[Tensor, "batch feature"], *, normalised: bool = True
    ) -> Float[Tensor, " batch"]:
        """Return :meth:`Generative.log_density` under the refitted densities and the layer's feature prior."""
        check_features(features, self.mean.shape[-1])
        density = torch.logsumexp(self.class_log_probs + log_densities(features, self.mean, self.variance), dim=-1)
        return density - feature_log_prior(features, self.feature_prior_variance) if normalised else density


@torch.no_grad()
def refit(
    batches: Iterable[tuple[Tensor, Tensor]],
    noise_variance: Float[Tensor, " feature"],
    class_log_probs: Float[Tensor, " class"],
    prior: NoisePrior,
) -> Refit:
    """Refit in one pass over (features, labels) of the training rows; see the module's docstring.

    Args:
        noise_variance: the trained Σ, for eq. 75 and the feature prior N(0, sI + Σ).
        class_log_probs: log p(k) of the densities' mixture.

    Raises:
        DataError: there are no rows, labels are out of range, or features are not finite or have another width than Σ.
    """
    moments = _gather(batches, noise_variance, len(class_log_probs))
    mean, _ = _posterior(moments, noise_variance, prior.mean_variance)
    variance = (prior.scale + moments.scatter) / (moments.count[:, None] + prior.dof + 2)
    like = noise_variance.dtype
    return Refit(mean.to(like), variance.to(like), class_log_probs, prior.mean_variance + noise_variance)


@torch.no_grad()
def class_means(
    batches: Iterable[tuple[Tensor, Tensor]],
    noise_variance: Float[Tensor, " feature"],
    prior_variance: float,
    classes: int,
) -> tuple[Float[Tensor, "class feature"], Float[Tensor, "class feature"]]:
    """Return the mean and the variance of the class means' exact posterior given Σ (appendix C.6), in one pass.

    The rows of class y are N(φ̄[y], Σ) and φ̄[y] ~ N(0, sI), so φ̄[y] | Φ ~ N(μ[y], (I/s + T_yΣ⁻¹)⁻¹) with μ[y] from
    eq. 75. It raises the errors of :func:`refit`.
    """
    moments = _gather(batches, noise_variance, classes)
    mean, variance = _posterior(moments, noise_variance, prior_variance)
    return mean.to(noise_variance.dtype), variance.to(noise_variance.dtype)


def _posterior(moments: "_Moments", noise_variance: Tensor, prior_variance: float) -> tuple[Tensor, Tensor]:
    weight = prior_variance * moments.count[:, None]
    total = noise_variance + weight
    return weight / total * moments.mean, prior_variance * noise_variance / total  # fractions expanded by sΣ


def _gather(batches: Iterable[tuple[Tensor, Tensor]], noise_variance: Tensor, classes: int) -> "_Moments":
    moments = _Moments.zeros(classes, noise_variance)
    for features, labels in batches:
        check_features(features, len(noise_variance))
        labels = class_numbers(labels, len(features))
        check_labels(labels, classes)
        moments = moments.merge(_Moments.of(features, labels, classes))
    if not moments.count.sum() > 0:
        raise DataError("batches must have at least one row, got none")
    if not torch.isfinite(moments.scatter).all():
        raise DataError("features must be finite")
    return moments


@dataclass(frozen=True)
class _Moments:
    """The number of rows, mean and scatter Σ(φ − mean)² of each class, merged without sums of raw squares.

    Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance".
    """

    count: Float[Tensor, " class"]
    mean: Float[Tensor, "class feature"]
    scatter: Float[Tensor, "class feature"]

    @classmethod
    def zeros(cls, classes: int, like: Float[Tensor, " feature"]) -> "_Moments":
        """Return the moments of an empty set of rows."""
        nothing = widen(like.new_zeros(classes, len(like)))
        return cls(nothing[:, 0], nothing, nothing)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> "_Moments":
        """Return the moments of one batch."""
        features = widen(features)
        member = F.one_hot(labels, classes).to(features)  # [batch, class]
        count = member.sum(0)
        mean = member.T @ features / count.clamp_min(1)[:, None]
        return cls(count, mean, member.T @ (features - mean[labels]).square())

    def merge(self, other: "_Moments") -> "_Moments":
        """Return the moments of the union of both sets of rows."""
        count = self.count + other.count
        share = (other.count / count.clamp_min(1))[:, None]
        step = other.mean - self.mean
        scatter = self.scatter + other.scatter + step.square() * share * self.count[:, None]
        return _Moments(count, self.mean + share * step, scatter)
