"""Class densities of features: diagonal Gaussians, the densities of G-VBLL-MAP, and the moments of each class's rows.

G-VBLL-MAP's densities are fitted to fixed features after training, for OOD scores. For each class, with T_y rows,

    μ[y] = (Σ_0⁻¹ + T_yΣ⁻¹)⁻¹ Σ⁻¹ Σ_t φ_t             Σ_0 = sI, μ_0 = 0            (eq. 75)
    Σ[y] = (M + Σ_t (φ_t − φ̂)²) / (T_y + ν + N + 1)   φ̂ the empirical mean         (eq. 77)

Source: Harrison, Willes & Snoek 2023, "Variational Bayesian Last Layers", appendix C.7. Eq. 75 (and 76) is printed
without its inverse, which is restored here. Σ[y] is diagonal, so each of its dimensions has its own inverse gamma, eq.
65 with N = 1: eq. 77 is the mode of IG((T_y + ν)/2, (M + scatter)/2). As in the paper, S is omitted, and a class
without rows has its priors' modes: mean 0 and Σ = M/(ν + 2).
"""

import math
from collections.abc import Iterable
from typing import Final, Self, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError
from .layer import check_features, check_labels, class_numbers

LOG_2PI: Final = math.log(2 * math.pi)


def log_densities(
    features: Float[Tensor, "batch feature"],
    mean: Float[Tensor, "class feature"],
    variance: Float[Tensor, "class feature"],
) -> Float[Tensor, "batch class"]:
    """Return log N(φ | mean[k], diag variance[k]) of every pair, without a tensor of size [batch, class, feature].

    (φ − μ)²/C = φ²/C − 2φμ/C + μ²/C, where the first two terms are matrix products. The rounding error is about machine
    epsilon times the squared Mahalanobis distance between classes. Values are therefore centred on the mean of the
    class means, and the products are in float64 if the device has it, which also avoids TF32 and autocast.
    """
    centre = mean.detach().mean(0)  # the result does not depend on it, so neither does its gradient
    z, offset, precision = widen(features - centre), widen(mean - centre), widen(variance.reciprocal())
    scaled = precision * offset
    constant = (scaled * offset).sum(-1) + variance.log().sum(-1) + mean.shape[-1] * LOG_2PI  # [class]
    exponent = z @ scaled.T - 0.5 * (z.square() @ precision.T + constant)
    return exponent.to(torch.promote_types(features.dtype, mean.dtype))


def feature_density(
    joint: Float[Tensor, "batch class"],
    features: Float[Tensor, "batch feature"],
    prior_variance: Float[Tensor, " feature"] | None,
) -> Float[Tensor, " batch"]:
    """Return log Σ_k exp joint[k], and if there is a prior variance, less log N(φ | 0, diag prior_variance)."""
    density = torch.logsumexp(joint, dim=-1)
    if prior_variance is None:
        return density
    prior = -0.5 * (widen(features).square() / prior_variance + prior_variance.log() + LOG_2PI).sum(-1)
    return density - prior.to(torch.promote_types(features.dtype, prior_variance.dtype))


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, or in float32 if the device does not have float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


class Buffers(nn.Module):
    """Named tensors without gradients: the state of a posterior that is computed after training."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def skeleton(cls, **sizes: tuple[int, ...]) -> Self:
        """Return tensors of zeros, to load a ``state_dict`` into."""
        return cls(**{name: torch.zeros(size) for name, size in sizes.items()})


@final
class Refit(Buffers):
    """The class densities N(φ | mean[k], diag variance[k]), for OOD scores and not for labels.

    The paper finds that labels predicted with them are far too confident. For scores:
    ``Categorical(layer.predict(φ).draw_log_probs, {"refit_density": refit.log_density(φ)})``.
    """

    mean: Float[Tensor, "class feature"]
    variance: Float[Tensor, "class feature"]
    class_log_probs: Float[Tensor, " class"]
    feature_prior_variance: Float[Tensor, " feature"]

    def log_density(
        self, features: Float[Tensor, "batch feature"], *, normalised: bool = True
    ) -> Float[Tensor, " batch"]:
        """Return :meth:`Generative.log_density` under the refitted densities and the layer's feature prior."""
        check_features(features, self.mean.shape[-1])
        joint = self.class_log_probs + log_densities(features, self.mean, self.variance)
        return feature_density(joint, features, self.feature_prior_variance if normalised else None)


def class_moments(
    batches: Iterable[tuple[Tensor, Tensor]], classes: int, like: Float[Tensor, " feature"]
) -> tuple[Float[Tensor, " class"], Float[Tensor, "class feature"], Float[Tensor, "class feature"]]:
    """Return the number of rows, mean and scatter Σ(φ − mean)² of each class, on the device of ``like``.

    Batches (features, labels) are merged without sums of raw squares: Chan, Golub & LeVeque 1983, "Algorithms for
    computing the sample variance".

    Raises:
        DataError: there are no rows, labels are out of range, or features are not finite or have another width than
            ``like``.
    """
    mean = scatter = widen(like.new_zeros(classes, len(like)))
    count = mean[:, 0]
    for features, labels in batches:
        check_features(features, len(like))
        labels = class_numbers(labels, len(features))
        check_labels(labels, classes)
        features = widen(features)
        member = F.one_hot(labels, classes).to(features)  # [batch, class]
        new = member.sum(0)
        mean_of_new = member.T @ features / new.clamp_min(1)[:, None]
        scatter_of_new = member.T @ (features - mean_of_new[labels]).square()
        total = count + new
        share, step = (new / total.clamp_min(1))[:, None], mean_of_new - mean
        scatter = scatter + scatter_of_new + step.square() * share * count[:, None]
        mean, count = mean + share * step, total
    if not count.sum() > 0:
        raise DataError("batches must have at least one row, got none")
    if not torch.isfinite(scatter).all():
        raise DataError("features must be finite")
    return count, mean, scatter
