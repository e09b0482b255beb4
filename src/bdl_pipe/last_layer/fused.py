"""The losses of two layers as one operation each, with an explicit gradient; autograd derives second derivatives.

Both are minus the objective of eq. 61 in nats per training row, with d = 2m − log s, B rows of a batch, T training rows
and the weight λ of the KL; M is the Wishart scale.

Classes with diagonal S: E_bk = w̄_kᵀφ_b + ½(Σ_h φ_bh² e^{2m_kh} + σ_k²), P = softmax(E), Y the labels one-hot, and

    loss      = mean_b(log Σ_k e^{E_bk} − w̄_yᵀφ_b) + (λ/2T) Σ(w̄²/s + e^d − 1 − d) − log p(Σ)/T
    ∂loss/∂w̄ = (P − Y)ᵀΦ/B + λw̄/(sT)
    ∂loss/∂m  = e^{2m} PᵀΦ²/B + λ(e^d − 1)/T
    ∂loss/∂Φ  = ((P − Y)w̄ + Φ · (P e^{2m}))/B
    ∂loss/∂ρ  = −σ² Σ_b P/B − (ν + 2 − M e^{2ρ})/T        ρ = −log σ

This needs six matrix products, twice as many as a linear head, and few other passes: e^{2m}, e^d − 1 and P are kept
from the loss for its gradient.

Regression with dense S and o outputs: U the strict part of Pᵀ, R = ΦUᵀ + Φ · e^m, E = Y − ΦW̄ᵀ, A = EL, t = tr(LLᵀ), and

    loss      = ½(ΣA²/B + t ΣR²/B + o log 2π) + (λ/2T)(ΣW̄²/s + o(ΣU²/s + Σ e^d − 1 − d)) + M t/2T − (1 + c/T) Σρ
    ∂loss/∂Φ  = (t/B)(RU + R · e^m) − (ALᵀ/B)W̄
    ∂loss/∂W̄ = −(ALᵀ/B)ᵀΦ + λW̄/(sT)
    ∂loss/∂U  = (t/B) triu(RᵀΦ) + λoU/(sT)
    ∂loss/∂m  = (t/B) e^m Σ_b R · Φ + λo(e^d − 1)/T
    ∂loss/∂L  = EᵀA/B + (ΣR²/B + M/T) L
    ∂loss/∂Y  = ALᵀ/B
    ∂loss/∂ρ  = −(1 + c/T)                                ρ = log diag L; c = ν + o + 1

A step of a small network is mostly overhead: for 32 rows of 64 features, loss and gradients take half the time.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", eq. 12, 13, 16, 44, 61, 65 and 78–84; the
gradients are our derivation.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor


@dataclass(frozen=True)
class FusedLoss(ABC):
    """A loss of tensors, at the constants s, ν, M, T and λ of :class:`LastLayer`."""

    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    num_train: int
    kl_weight: float
    differentiable: ClassVar[int]  # the first arguments have gradients

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Return the loss."""
        loss: Tensor = _Operation.apply(*tensors, self)[0]
        return loss

    @abstractmethod
    def value(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the loss and the tensors that its gradient needs.

        In-place operations write only to tensors that ``vmap`` has stacked.
        """

    @abstractmethod
    def slopes(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients of the module's formulas, times ``gradient``; None where not needed.

        Args:
            saved: the arguments, then the tensors that :meth:`value` keeps.
        """

    @property
    def _kl(self) -> float:
        """Return λ/T."""
        return self.kl_weight / self.num_train

    @final
    def traced(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients from autograd, which can be differentiated again."""
        inputs, rest = saved[: self.differentiable], saved[self.differentiable : len(needed) - 1]
        pull = torch.func.vjp(lambda *leaves: self.value(*leaves, *rest)[0], *inputs)[1]
        return tuple(slope if want else None for slope, want in zip(pull(gradient), needed, strict=False))


@final
class _Operation(torch.autograd.Function):
    """The function ``loss.value`` of tensors and a :class:`FusedLoss`, with its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        *tensors, loss = inputs
        kept: tuple[Tensor, ...] = loss.value(*tensors)
        return kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.loss = inputs
        kept = output[1:]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        arguments = len(ctx.needs_input_grad)
        if gradient is None:
            return (None,) * arguments
        slopes = ctx.loss.traced if torch.is_grad_enabled() else ctx.loss.slopes
        with torch.autocast(gradient.device.type, enabled=False):
            gradients = slopes(gradient, ctx.needs_input_grad, ctx.saved_tensors)
        return *gradients, *[None] * (arguments - len(gradients))


@final
class DiagonalLoss(FusedLoss):
    """The loss of classes at S = diag(exp 2m).

    Its arguments: features [batch, h], w̄ [class, h], m [class, h], −log σ [class], class numbers [batch, 1].
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


@final
class DenseLoss(FusedLoss):
    """The loss of regression at S = PPᵀ.

    Its arguments: features [batch, h], W̄ [output, h], the factor [1, h, h], whose part above the diagonal is U,
    m [1, h], L [output, output], ρ [output], whose sum is log det L, and targets [batch, output].
    """

    differentiable = 7

    def _share_of_logs(self, outputs: int) -> float:
        """Return 1 + c/T."""
        return 1 + (self.wishart_dof + outputs + 1) / self.num_train

    def value(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        features, mean, factor, log_scale, root, noise_log_root, targets = tensors
        rows, outputs = len(features), len(mean)
        strict, scale = factor[0].triu(1), log_scale[0].exp()
        ratio = 2 * log_scale[0] - math.log(self.prior_variance)  # d
        slope = torch.expm1(ratio)
        error = torch.addmm(targets, features, mean.mT, alpha=-1)
        white = error @ root
        projected = torch.addcmul(features @ strict.mT, features, scale)  # R
        spread, trace = projected.square().sum() / rows, root.square().sum()
        bound = white.square().sum() / rows + spread * trace + outputs * math.log(2 * math.pi)
        of_factor = strict.square().sum() / self.prior_variance + (slope - ratio).sum()
        divergence = mean.square().sum() / self.prior_variance + outputs * of_factor
        prior = trace * (self.wishart_scale / self.num_train)
        logs = noise_log_root.sum() * self._share_of_logs(outputs)
        loss = 0.5 * (bound + self._kl * divergence + prior) - logs
        return loss, strict, scale, slope, error, white, projected, spread, trace

    def slopes(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        features, mean, _, _, root, noise_log_root, _, *kept = saved
        strict, scale, slope, error, white, projected, spread, trace = kept
        mass, outputs = gradient / len(features), len(mean)
        white = white * mass  # A/B
        residual = white @ root.mT  # ALᵀ/B
        pushed = projected * (mass * trace)  # tR/B
        kl = gradient * self._kl
        to_features = to_mean = to_factor = to_scale = to_root = to_logs = None
        if needed[0]:
            to_features = torch.addmm(torch.addcmul(pushed @ strict, pushed, scale), residual, mean, alpha=-1)
        if needed[1]:
            to_mean = mean * (kl / self.prior_variance) - residual.mT @ features
        if needed[2]:
            of_prior = kl * (outputs / self.prior_variance)
            to_factor = torch.addcmul((pushed.mT @ features).triu(1), strict, of_prior)[None]
        if needed[3]:
            to_scale = torch.addcmul(slope * (kl * outputs), scale, (pushed * features).sum(0))[None]
        if needed[4]:
            shrink = gradient * (spread + self.wishart_scale / self.num_train)
            to_root = torch.addcmul(error.mT @ white, root, shrink)
        if needed[5]:
            to_logs = (-self._share_of_logs(outputs) * gradient).expand(noise_log_root.shape)
        return to_features, to_mean, to_factor, to_scale, to_root, to_logs, residual if needed[6] else None
