"""The loss of the discriminative layer with diagonal S as one operation with an explicit gradient.

With d = 2m − log s, E_bk = w̄_kᵀφ_b + ½(Σ_h φ_bh² e^{2m_kh} + σ_k²), P = softmax(E) and Y the labels one-hot,

    loss      = mean_b(log Σ_k e^{E_bk} − w̄_yᵀφ_b) + (λ/2T) Σ(w̄²/s + e^d − 1 − d) − log p(Σ)/T
    ∂loss/∂w̄ = (P − Y)ᵀΦ/B + λw̄/(sT)
    ∂loss/∂m  = e^{2m} PᵀΦ²/B + λ(e^d − 1)/T
    ∂loss/∂Φ  = ((P − Y)w̄ + Φ · (P e^{2m}))/B
    ∂loss/∂ρ  = −σ² Σ_b P/B − (ν + 2 − m e^{2ρ})/T        ρ = −log σ; here m is the Wishart scale

This needs six matrix products, twice as many as a linear head, and few other passes: e^{2m}, e^d − 1 and P are kept
from the loss for its gradient. :func:`composed` is the same loss as ordinary operations; second derivatives use it.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", eq. 13, 44, 61, 65 and 81; gradients
are our derivation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .covariance import Diagonal, gaussian_kl

_DIFFERENTIABLE: Final = 4  # the first arguments have gradients: features, mean, log_scale, noise_log_root


@dataclass(frozen=True)
class Weights:
    """The constants of a loss: s, ν, m, T and λ of :class:`LastLayer`."""

    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    num_train: int
    kl_weight: float

    @property
    def kl(self) -> float:
        """Return λ/T."""
        return self.kl_weight / self.num_train

    def noise_prior(self, noise_log_root: Tensor) -> Tensor:
        """Return log p(Σ) + constant for each class's noise."""
        return (self.wishart_dof + 2) * noise_log_root - 0.5 * self.wishart_scale * (2 * noise_log_root).exp()

    def noise_prior_slope(self, noise_log_root: Tensor) -> Tensor:
        """Return the derivative of :meth:`noise_prior`."""
        return (self.wishart_dof + 2) - self.wishart_scale * (2 * noise_log_root).exp()


def diagonal_loss(
    features: Float[Tensor, "batch h"],
    mean: Float[Tensor, "class h"],
    log_scale: Float[Tensor, "class h"],
    noise_log_root: Float[Tensor, " class"],
    targets: Int[Tensor, " batch"],
    weights: Weights,
) -> Float[Tensor, ""]:
    """Return minus the objective of eq. 61 at S = diag(exp 2m), in nats per training row.

    Args:
        mean: w̄.
        log_scale: m.
        noise_log_root: −log σ.
        targets: class numbers.
    """
    loss: Tensor = _Loss.apply(features, mean, log_scale, noise_log_root, targets[:, None], weights)[0]
    return loss


def composed(
    features: Tensor, mean: Tensor, log_scale: Tensor, noise_log_root: Tensor, label: Tensor, weights: Weights
) -> Tensor:
    """Return :func:`diagonal_loss`, computed with the operations that other forms of S use; labels [batch, 1]."""
    form = Diagonal(log_scale)
    logits = features @ mean.mT
    variance = form.quadratic(features) + (-2 * noise_log_root).exp()
    surprise = (torch.logsumexp(logits + 0.5 * variance, -1) - logits.gather(-1, label)[:, 0]).mean()
    kl = gaussian_kl(mean, form, weights.prior_variance, copies=1)
    return surprise + weights.kl * kl - weights.noise_prior(noise_log_root).sum() / weights.num_train


@final
class _Loss(torch.autograd.Function):
    """The function :func:`composed`, computed by the module's formulas.

    In-place operations write only to tensors that ``vmap`` has stacked.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        features: Tensor, mean: Tensor, log_scale: Tensor, noise_log_root: Tensor, label: Tensor, weights: Weights
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ratio = 2 * log_scale  # [class, h]
        variance = ratio.exp()
        ratio.sub_(math.log(weights.prior_variance))  # d
        slope = torch.expm1(ratio)
        divergence = mean.square().sum() / weights.prior_variance + (slope - ratio).sum()
        logits = features @ mean.mT  # [batch, class]
        noise = (-2 * noise_log_root).exp()
        half = torch.addmm(noise, features.square(), variance.mT, beta=0.5, alpha=0.5)  # ½(φᵀSφ + σ²)
        log_probs = (logits + half).log_softmax(-1)
        surprise = (half - log_probs).gather(-1, label).mean()  # log Σ e^E = E_y − log P_y
        noise_prior = weights.noise_prior(noise_log_root).sum() / weights.num_train
        return surprise + 0.5 * weights.kl * divergence - noise_prior, variance, slope, log_probs.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.weights = inputs
        kept = output[1:]  # the gradient needs these tensors
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        needed = ctx.needs_input_grad[:_DIFFERENTIABLE]
        slopes = _traced if torch.is_grad_enabled() else _written_out
        with torch.autocast(gradient.device.type, enabled=False):
            return *slopes(gradient, needed, ctx.saved_tensors, ctx.weights), None, None


def _written_out(
    gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor], weights: Weights
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the module's formulas, times ``gradient``; None where not needed."""
    features, mean, _, noise_log_root, label, variance, slope, probs = saved
    mass = gradient / len(features)
    weighted = probs * mass  # P/B [batch, class]
    excess = weighted.scatter_add(-1, label, -mass.expand(label.shape))  # (P − Y)/B
    kl = gradient * weights.kl
    to_features = to_mean = to_scale = to_noise = None
    if needed[0]:
        to_features = torch.addcmul(excess @ mean, features, weighted @ variance)
    if needed[1]:
        to_mean = torch.addcmul(excess.mT @ features, mean, kl / weights.prior_variance)
    if needed[2]:
        to_scale = torch.addcmul(slope * kl, variance, weighted.mT @ features.square())
    if needed[3]:
        shrink = (-2 * noise_log_root).exp() * weighted.sum(0)
        to_noise = -shrink - weights.noise_prior_slope(noise_log_root) * (gradient / weights.num_train)
    return to_features, to_mean, to_scale, to_noise


def _traced(
    gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor], weights: Weights
) -> tuple[Tensor | None, ...]:
    """Return the gradients from :func:`composed`, which can be differentiated again."""
    inputs, label = saved[:_DIFFERENTIABLE], saved[_DIFFERENTIABLE]

    def again(features: Tensor, mean: Tensor, log_scale: Tensor, noise_log_root: Tensor) -> Tensor:
        return composed(features, mean, log_scale, noise_log_root, label, weights)

    pull = torch.func.vjp(again, *inputs)[1]
    return tuple(slope if want else None for slope, want in zip(pull(gradient), needed, strict=True))
