"""The loss of the regression layer with dense S as one operation with an explicit gradient, for narrow features.

With U the strict part of Pᵀ, R = ΦUᵀ + Φ · e^m, E = Y − ΦW̄ᵀ, A = EL, t = tr(LLᵀ), d = 2m − log s, o outputs and B rows,

    loss      = ½(ΣA²/B + t ΣR²/B + o log 2π) + (λ/2T)(ΣW̄²/s + o(ΣU²/s + Σ e^d − 1 − d)) + m_w t/2T − (1 + c/T) Σρ
    ∂loss/∂Φ  = (t/B)(RU + R · e^m) − (ALᵀ/B)W̄
    ∂loss/∂W̄ = −(ALᵀ/B)ᵀΦ + λW̄/(sT)
    ∂loss/∂U  = (t/B) triu(RᵀΦ) + λoU/(sT)
    ∂loss/∂m  = (t/B) e^m Σ_b R · Φ + λo(e^d − 1)/T
    ∂loss/∂L  = EᵀA/B + (ΣR²/B + m_w/T) L
    ∂loss/∂Y  = ALᵀ/B
    ∂loss/∂ρ  = −(1 + c/T)                          ρ = log diag L; c = ν + o + 1; m_w is the Wishart scale

A step of a small network is mostly overhead: for 32 rows of 64 features, loss and gradients take half the time of
:func:`composed`, the same loss as ordinary operations. Second derivatives use :func:`composed`.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", eq. 12, 16, 61, 65 and 78–84; gradients
are our derivation.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from .covariance import Dense, gaussian_kl
from .fused import Weights

_DIFFERENTIABLE: Final = 7  # the first arguments have gradients; the constants follow


def dense_loss(
    features: Float[Tensor, "batch h"],
    mean: Float[Tensor, "output h"],
    factor: Float[Tensor, "1 h h"],
    log_scale: Float[Tensor, "1 h"],
    root: Float[Tensor, "output output"],
    noise_log_root: Float[Tensor, " output"],
    targets: Float[Tensor, "batch output"],
    weights: Weights,
) -> Float[Tensor, ""]:
    """Return minus the objective of eq. 61 at S = PPᵀ, in nats per training row.

    Args:
        mean: W̄.
        factor: its part above the diagonal is U.
        log_scale: m.
        root: L.
        noise_log_root: ρ; its sum is log det L.
    """
    loss: Tensor = _Loss.apply(features, mean, factor, log_scale, root, noise_log_root, targets, weights)[0]
    return loss


def composed(
    features: Tensor,
    mean: Tensor,
    factor: Tensor,
    log_scale: Tensor,
    root: Tensor,
    noise_log_root: Tensor,
    targets: Tensor,
    weights: Weights,
) -> Tensor:
    """Return :func:`dense_loss`, computed with the operations that other forms of S use."""
    form, outputs = Dense((factor.triu(1),), log_scale), len(mean)
    squared = ((targets - features @ mean.mT) @ root).square().sum(-1)
    trace, logs = root.square().sum(), noise_log_root.sum()
    surprise = (
        0.5 * ((squared + form.quadratic(features)[:, 0] * trace).mean() + outputs * math.log(2 * math.pi)) - logs
    )
    noise_prior = (weights.wishart_dof + outputs + 1) * logs - 0.5 * weights.wishart_scale * trace
    kl = gaussian_kl(mean, form, weights.prior_variance, copies=outputs)
    return surprise + weights.kl * kl - noise_prior / weights.num_train


@final
class _Loss(torch.autograd.Function):
    """The function :func:`composed`, computed by the module's formulas."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        features: Tensor,
        mean: Tensor,
        factor: Tensor,
        log_scale: Tensor,
        root: Tensor,
        noise_log_root: Tensor,
        targets: Tensor,
        weights: Weights,
    ) -> tuple[Tensor, ...]:
        rows, outputs = len(features), len(mean)
        strict, scale = factor[0].triu(1), log_scale[0].exp()
        ratio = 2 * log_scale[0] - math.log(weights.prior_variance)  # d
        slope = torch.expm1(ratio)
        error = torch.addmm(targets, features, mean.mT, alpha=-1)
        white = error @ root
        projected = torch.addcmul(features @ strict.mT, features, scale)  # R
        spread, trace = projected.square().sum() / rows, root.square().sum()
        bound = white.square().sum() / rows + spread * trace + outputs * math.log(2 * math.pi)
        of_factor = strict.square().sum() / weights.prior_variance + (slope - ratio).sum()
        divergence = mean.square().sum() / weights.prior_variance + outputs * of_factor
        prior = trace * (weights.wishart_scale / weights.num_train)
        logs = noise_log_root.sum() * _share_of_logs(outputs, weights)
        loss = 0.5 * (bound + weights.kl * divergence + prior) - logs
        return loss, strict, scale, slope, error, white, projected, spread, trace

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
            return *slopes(gradient, needed, ctx.saved_tensors, ctx.weights), None


def _share_of_logs(outputs: int, weights: Weights) -> float:
    """Return 1 + c/T."""
    return 1 + (weights.wishart_dof + outputs + 1) / weights.num_train


def _written_out(
    gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor], weights: Weights
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the module's formulas, times ``gradient``; None where not needed."""
    features, mean, _, _, root, noise_log_root, _, strict, scale, slope, error, white, projected, spread, trace = saved
    mass, outputs = gradient / len(features), len(mean)
    white = white * mass  # A/B
    residual = white @ root.mT  # ALᵀ/B
    pushed = projected * (mass * trace)  # tR/B
    kl = gradient * weights.kl
    to_features = to_mean = to_factor = to_scale = to_root = to_logs = to_targets = None
    if needed[0]:
        to_features = torch.addmm(torch.addcmul(pushed @ strict, pushed, scale), residual, mean, alpha=-1)
    if needed[1]:
        to_mean = mean * (kl / weights.prior_variance) - residual.mT @ features
    if needed[2]:
        to_factor = torch.addcmul((pushed.mT @ features).triu(1), strict, kl * (outputs / weights.prior_variance))[None]
    if needed[3]:
        to_scale = torch.addcmul(slope * (kl * outputs), scale, (pushed * features).sum(0))[None]
    if needed[4]:
        shrink = gradient * (spread + weights.wishart_scale / weights.num_train)
        to_root = torch.addcmul(error.mT @ white, root, shrink)
    if needed[5]:
        to_logs = (-_share_of_logs(outputs, weights) * gradient).expand(noise_log_root.shape)
    if needed[6]:
        to_targets = residual
    return to_features, to_mean, to_factor, to_scale, to_root, to_logs, to_targets


def _traced(
    gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor], weights: Weights
) -> tuple[Tensor | None, ...]:
    """Return the gradients from :func:`composed`, which can be differentiated again."""

    def again(*inputs: Tensor) -> Tensor:
        return composed(*inputs, weights)  # type: ignore[call-arg, arg-type]

    pull = torch.func.vjp(again, *saved[:_DIFFERENTIABLE])[1]
    return tuple(slope if want else None for slope, want in zip(pull(gradient), needed, strict=True))
