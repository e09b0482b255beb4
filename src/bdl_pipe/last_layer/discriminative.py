"""The variational Bayesian last layer for discriminative classification.

Model y ~ softmax(Wφ + ε), ε ~ N(0, diag σ²), q(W) = Π_k N(w̄_k, S_k). A row's bound is

    w̄_yᵀφ − log Σ_k exp(w̄_kᵀφ + ½(φᵀS_kφ + σ_k²))                                 (eq. 13, 44)

or w̄_yᵀφ less another upper bound of the expected log-sum-exp (:mod:`.bounds`).

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", theorem 2. The prior of σ² is a product of
inverse gammas, each given by eq. 65 with N = 1 (appendix C.1). Deviations: none in the model. The published ``vbll``
0.4.9 multiplies the prior's variance by 2/in_features, omits the KL's constant −h/2 per class, uses N = classes in eq.
65 for every diagonal entry (equal to ours at ν + classes − 1), stores log σ (ours: −log σ) and, for low rank, log σ² of
S (ours: half of it).

The predictive is E[softmax(z)] of independent Gaussian logits z_k ~ N(μ_k, v_k): sampled, or by one of three
deterministic rules. Every rule takes mean and variance [batch, class] and returns log probabilities [draw, batch,
class].
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Unpack, final, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .. import gumbel_maximum, predictive
from ..errors import require
from ..joint_predictive import GaussianFunctions
from ..networks.covariance import Form
from ..networks.last_layer import class_numbers, labels_as_index
from ..predictive import Categorical
from ..seeds import Seed
from .bounds import BOUNDS, Bound, jensen
from .layer import Count, FusedLoss, LastLayer, Options, full_precision, mean_of
from .settings import Rule

_GRID: Final = 128  # points along the maximum
_NODES: Final = 32  # Gauss–Hermite nodes of each logit
_TERMS: Final = 1280 * _GRID  # logits times grid points at a time: they fit in a processor's cache


@final
class Discriminative(LastLayer):
    """A last layer for ``num_classes`` classes; see :class:`LastLayer` for the other arguments.

    Args:
        predictive: how E[softmax] is approximated: "mean_field" (as cheap as one softmax),
            "quadrature" (accurate, 4,096 exponentials per logit) or "sampled".
        draws: the number of logits that "sampled" draws for each row.
        bound: the bound of E log Σ exp in the loss: "jensen" (the paper's), "tilted" (tighter) or "bouchard".

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        predictive: str = "mean_field",
        draws: int = 20,
        bound: str = "jensen",
        **options: Unpack[Options],
    ) -> None:
        require(num_classes > 1, "num_classes", "must be > 1", num_classes)
        require(predictive in get_args(Rule), "predictive", f"must be one of {', '.join(get_args(Rule))}", predictive)
        require(draws > 0, "draws", "must be > 0", draws)
        require(bound in get_args(Bound), "bound", f"must be one of {', '.join(get_args(Bound))}", bound)
        super().__init__(in_features, num_classes, matrices=num_classes, noise_size=1, **options)
        self.predictive: Final = predictive
        self.draws: Final = draws
        self.bound_of_sum: Final = BOUNDS[bound]

    @property
    def noise_variance(self) -> Float[Tensor, " class"]:
        """Return σ_k²."""
        return (-2 * self.noise_log_root).exp()

    def _moments(self, features: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Return w̄_kᵀφ and φᵀS_kφ + σ_k², [batch, class] each."""
        return features @ self.mean.mT, form.quadratic(features) + self.noise_variance

    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form, weights: Tensor | None) -> Tensor:
        labels = class_numbers(targets, len(features))
        mean, variance = self._moments(features, form)
        with labels_as_index(labels, len(self.mean)):
            chosen = mean.gather(-1, labels[:, None])[:, 0]
        return mean_of(chosen - self.bound_of_sum(mean, variance), weights)

    def _loss(
        self, features: Tensor, targets: Tensor, num_train: Count, kl_weight: float, weights: Tensor | None
    ) -> Tensor:
        if self.covariance.kind != "diagonal" or self.bound_of_sum is not jensen or weights is not None:
            return super()._loss(features, targets, num_train, kl_weight, weights)
        loss = DiagonalLoss(self.prior_variance, self.wishart_dof, self.wishart_scale, int(num_train), kl_weight)
        labels = class_numbers(targets, len(features))
        with labels_as_index(labels, len(self.mean)):
            return loss(features, self.mean, self.covariance.log_scale, self.noise_log_root, labels[:, None])

    def logit_moments(
        self, features: Float[Tensor, "batch h"]
    ) -> tuple[Float[Tensor, "batch class"], Float[Tensor, "batch class"]]:
        """Return the mean and variance of each class's logit, including noise; logits of classes are independent."""
        with full_precision(features):
            return self._moments(self._cast(features), self.covariance())

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over the logits Wφ at the rows of each group; each observation's noise ε has σ_k²."""
        return self._functions(features, self.noise_variance, classes=True)

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Categorical:
        """Return E[softmax(Wφ + ε)] by the configured rule; only "sampled" uses ``rng`` and keeps draws."""
        mean, variance = self.logit_moments(features)
        if self.predictive == "sampled":
            return Categorical(sampled(mean, variance, self.draws, rng))
        return Categorical(CLOSED[self.predictive](mean, variance))


@final
class DiagonalLoss(FusedLoss):
    """The loss of classes at S = diag(exp 2m), in six matrix products, twice as many as a linear head's.

    With E_bk = w̄_kᵀφ_b + ½(Σ_h φ_bh² e^{2m_kh} + σ_k²), P = softmax(E), Y the labels one-hot, and ρ = −log σ:

        loss      = mean_b(log Σ_k e^{E_bk} − w̄_yᵀφ_b) + (λ/2T) Σ(w̄²/s + e^d − 1 − d) − log p(Σ)/T
        ∂loss/∂w̄ = (P − Y)ᵀΦ/B + λw̄/(sT)
        ∂loss/∂m  = e^{2m} PᵀΦ²/B + λ(e^d − 1)/T
        ∂loss/∂Φ  = ((P − Y)w̄ + Φ · (P e^{2m}))/B
        ∂loss/∂ρ  = −σ² Σ_b P/B − (ν + 2 − M e^{2ρ})/T

    e^{2m}, e^d − 1 and P are kept from the loss for its gradient.
    The arguments: features [batch, h], w̄ [class, h], m [class, h], −log σ [class], class numbers [batch, 1].
    """

    differentiable = 4

    def value(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        features, mean, log_scale, noise_log_root, label = tensors
        ratio = 2 * log_scale  # [class, h]
        variance = ratio.exp()
        ratio.sub_(math.log(self.prior_variance))  # d
        slope = torch.expm1(ratio)
        divergence = mean.square().sum() / self.prior_variance + (slope - ratio).sum()
        logits = features @ mean.mT  # [batch, class]
        noise = (-2 * noise_log_root).exp()
        half = torch.addmm(noise, features.square(), variance.mT, beta=0.5, alpha=0.5)  # ½(φᵀSφ + σ²)
        log_probs = (logits + half).log_softmax(-1)
        surprise = (half - log_probs).gather(-1, label).mean()  # log Σ e^E = E_y − log P_y
        of_noise = (self.wishart_dof + 2) * noise_log_root - 0.5 * self.wishart_scale * (2 * noise_log_root).exp()
        noise_prior = of_noise.sum() / self.num_train  # log p(Σ)/T + constant
        return surprise + 0.5 * self._kl * divergence - noise_prior, variance, slope, log_probs.exp()

    def slopes(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        features, mean, _, noise_log_root, label, variance, slope, probs = saved
        mass = gradient / len(features)
        weighted = probs * mass  # P/B [batch, class]
        excess = weighted.scatter_add(-1, label, -mass.expand(label.shape))  # (P − Y)/B
        kl = gradient * self._kl
        to_features = to_mean = to_scale = to_noise = None
        if needed[0]:
            to_features = torch.addcmul(excess @ mean, features, weighted @ variance)
        if needed[1]:
            to_mean = torch.addcmul(excess.mT @ features, mean, kl / self.prior_variance)
        if needed[2]:
            to_scale = torch.addcmul(slope * kl, variance, weighted.mT @ features.square())
        if needed[3]:
            shrink = (-2 * noise_log_root).exp() * weighted.sum(0)
            of_prior = (self.wishart_dof + 2) - self.wishart_scale * (2 * noise_log_root).exp()
            to_noise = -shrink - of_prior * (gradient / self.num_train)
        return to_features, to_mean, to_scale, to_noise


def sampled(
    mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"], draws: int, rng: Seed
) -> Float[Tensor, "draw batch class"]:
    """Return log softmax of ``draws`` logits of each row; drawn on the CPU, so equal on every device.

    All rows use the same normal numbers, so that a row's predictive does not depend on its batch. A row's mixture and
    mutual information are correct, but a joint over several rows is not: use ``functions`` for joints.
    """
    noise = torch.randn(draws, 1, mean.shape[-1], generator=rng.generator(), dtype=mean.dtype)
    return F.log_softmax(mean + variance.sqrt() * noise.to(mean.device), dim=-1)


def mean_field(
    mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"]
) -> Float[Tensor, "1 batch class"]:
    """Return the approximation of :func:`bdl_pipe.predictive.mean_field`."""
    return predictive.mean_field(mean, variance)[None]


def quadrature(
    mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"]
) -> Float[Tensor, "1 batch class"]:
    """Return E[softmax(z)] by one-dimensional integrals, with 4,096 exponentials per logit.

    It uses the identity of :mod:`bdl_pipe.gumbel_maximum`, with a trapezoid sum for the integral. F and f are
    Gauss–Hermite means over z_l, for which the sum converges exponentially. With two classes the error of a probability
    is below 1e-9 if the logits' standard deviation is at most 1, 1e-5 at 3, 3e-4 at 5 and 3e-3 at 8 (in float32: 1e-7
    more).
    """
    rows = max(1, _TERMS // (_GRID * mean.shape[-1]))
    parts = zip(mean.split(rows), variance.split(rows), strict=True)
    return F.log_softmax(torch.cat([_log_shares(m, v.sqrt()) for m, v in parts]), dim=-1)[None]


def _log_shares(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the log of the integral for each class, up to a constant of the row."""
    lowest = (mean - 6 * deviation).amax(-1, keepdim=True) - 4  # a lower bound of the largest perturbed logit
    highest = (mean + 6 * deviation).amax(-1, keepdim=True) + math.log(mean.shape[-1]) + 16
    steps = torch.linspace(0, 1, _GRID, dtype=mean.dtype, device=mean.device)
    grid = (lowest + (highest - lowest) * steps)[:, None]  # [batch, 1, grid]
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    # a node at −6 or less has F > e^{−e⁴} > 1e-24 at the lowest point of the grid, so that F does not underflow
    points = (
        (node * deviation[..., None], share)
        for node, share in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True)
    )
    logs = gumbel_maximum.mixture(grid - mean[..., None], points, float(nodes[-1]) * deviation[..., None])
    return torch.logsumexp(gumbel_maximum.log_terms(*logs), -1)


CLOSED: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "mean_field": mean_field,
    "quadrature": quadrature,
}
