"""The variational Bayesian last layer for regression.

Model y = Wφ + ε, ε ~ N(0, Σ), q(W) = MN(W̄, I, S): rows are independent and share one S. The bound of a row and the
predictive are in closed form:

    log N(y | W̄φ, Σ) − ½ φᵀSφ tr(Σ⁻¹)                                              (eq. 12, 16)
    p(y | x) = N(W̄φ, φᵀSφ I + Σ)                                                   (eq. 17)

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", theorem 1 and appendix A. Deviations: none
in the model. The published ``vbll`` 0.4.9 divides the prior's variance by in_features, omits the KL's constant −h/2 per
row, has no off-diagonal noise, stores log σ (ours: −log σ) and, for low rank, log σ² (ours: half of it). With several
outputs ``vbll`` has an S for each and averages over outputs, where eq. 16 sums. With one output the losses differ only
by the constant.
"""

import math
from abc import ABC
from collections.abc import Iterable, Sequence
from typing import Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError, require
from ..joint_predictive import GaussianFunctions
from ..linear_regression import RecursiveLayer
from ..networks.covariance import BLOCK, Form
from ..networks.last_layer import Buffers, widen
from ..predictive import Gaussian
from ..seeds import Seed
from .layer import Count, FusedLoss, LastLayer, Options, check_features, full_precision, mean_of


class NoiseMatrix(LastLayer, ABC):
    """The base of last layers of ``out_features`` outputs with dense noise."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        **options: Unpack[Options],
    ) -> None:
        require(out_features > 0, "out_features", "must be > 0", out_features)
        super().__init__(in_features, out_features, matrices=1, noise_size=out_features, **options)
        self.noise_factor = nn.Parameter(torch.zeros(out_features, out_features))  # L below its diagonal

    def _noise_root(self) -> Float[Tensor, "output output"]:
        """Return L of Σ⁻¹ = LLᵀ (eq. 78)."""
        diagonal = self.noise_log_root.exp()
        return self.noise_factor.tril(-1) + (diagonal[:, None] if len(diagonal) == 1 else torch.diag_embed(diagonal))

    def scaled_noise(self, log_factor: float) -> dict[str, Tensor]:
        """Return the noise's parameters by name for Σ times exp c, so for L times exp(−c/2); c is ``log_factor``."""
        return {
            "noise_log_root": self.noise_log_root.detach() - 0.5 * log_factor,
            "noise_factor": self.noise_factor.detach() * math.exp(-0.5 * log_factor),
        }

    def _noise_trace(self) -> Float[Tensor, ""]:
        return self._noise_root().square().sum()  # eq. 80

    @property
    def noise_covariance(self) -> Float[Tensor, "output output"]:
        """Return Σ = L⁻ᵀL⁻¹, in squared target units."""
        root = self._noise_root()
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        return inverse.mT @ inverse

    def _check(self, features: Tensor, targets: Tensor) -> None:
        if not isinstance(targets, Tensor) or targets.is_complex():
            got = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
            raise DataError(f"targets must be a tensor of real numbers, got {got}; pass torch.as_tensor(targets)")
        expected = (len(features), len(self.mean))
        if tuple(targets.shape) != expected:  # [batch] would broadcast to [batch, batch]
            raise DataError(f"targets must have shape {expected}, got {tuple(targets.shape)}")

    def _sums(self, batches: Iterable[tuple[Tensor, ...]]) -> tuple[int, Tensor, Tensor, Tensor]:
        """Return the number of rows, ΦᵀΦ [h, h], ΦᵀY [h, output] and YᵀY [output, output], in float64."""
        gram, cross = widen(self.mean.new_zeros([self.in_features] * 2)), widen(torch.zeros_like(self.mean)).mT
        squares, rows = gram.new_zeros([len(self.mean)] * 2), 0
        for features, targets in batches:
            check_features(features, self.in_features)
            self._check(features, targets)
            features, targets, rows = widen(features), widen(targets), rows + len(features)
            gram, cross = gram + features.mT @ features, cross + features.mT @ targets
            squares = squares + targets.mT @ targets
        if rows == 0:
            raise DataError("batches must have at least one row, got none")
        if not torch.isfinite(gram).all():
            raise DataError("features must be finite")
        return rows, gram, cross, squares


@final
class Regression(NoiseMatrix):
    """A last layer of ``out_features`` outputs with dense Σ; see :class:`LastLayer` for the other arguments.

    Raises:
        ConfigError: an argument is out of range.
    """

    def _loss(
        self, features: Tensor, targets: Tensor, num_train: Count, kl_weight: float, weights: Tensor | None
    ) -> Tensor:
        self._check(features, targets)
        factor = self.covariance.factor
        if self.covariance.kind != "dense" or factor is None or self.in_features > BLOCK or weights is not None:
            return super()._loss(features, targets, num_train, kl_weight, weights)
        loss = DenseLoss(self.prior_variance, self.wishart_dof, self.wishart_scale, int(num_train), kl_weight)
        noise = self._noise_root(), self.noise_log_root
        return loss(features, self.mean, factor, self.covariance.log_scale, *noise, targets.to(features.dtype))

    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form, weights: Tensor | None) -> Tensor:
        self._check(features, targets)
        root = self._noise_root()
        error = targets.to(features.dtype) - features @ self.mean.mT  # [batch, output]
        squared = (error @ root).square().sum(-1)  # eᵀLLᵀe, eq. 79
        spread = form.quadratic(features)[:, 0] * root.square().sum()  # φᵀSφ tr(Σ⁻¹)
        constant = 2 * self.noise_log_root.sum() - error.shape[-1] * math.log(2 * math.pi)
        constant = constant if weights is None else weights.mean() * constant
        return 0.5 * (constant - mean_of(squared + spread, weights))

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over Wφ at the rows of each group; the noise is Σ_ii, as in ``predict``."""
        return self._functions(features, self.noise_covariance.diagonal(), classes=False)

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Gaussian:
        """Return N(W̄φ, φᵀSφ + Σ_ii) for each output (eq. 17), one draw.

        :class:`Gaussian` holds a variance for each output, so its ``log_prob`` omits the correlations of the outputs;
        ``noise_covariance`` has them. As for every closed form, ``epistemic_variance`` is 0 and φᵀSφ is part of
        ``variance``; :meth:`functions` returns it alone. ``rng`` is not used.
        """
        with full_precision(features):
            features = self._cast(features)
            spread = self.covariance().quadratic(features)  # [batch, 1]
            return Gaussian((features @ self.mean.mT)[None], (spread + self.noise_covariance.diagonal())[None])


@final
class DenseLoss(FusedLoss):
    """The loss of regression at S = PPᵀ.

    With o outputs, U the strict part of Pᵀ, R = ΦUᵀ + Φ · e^m, E = Y − ΦW̄ᵀ, A = EL, t = tr(LLᵀ), ρ = log diag L and
    c = ν + o + 1:

        loss      = ½(ΣA²/B + t ΣR²/B + o log 2π) + (λ/2T)(ΣW̄²/s + o(ΣU²/s + Σ e^d − 1 − d)) + M t/2T − (1 + c/T) Σρ
        ∂loss/∂Φ  = (t/B)(RU + R · e^m) − (ALᵀ/B)W̄
        ∂loss/∂W̄ = −(ALᵀ/B)ᵀΦ + λW̄/(sT)
        ∂loss/∂U  = (t/B) triu(RᵀΦ) + λoU/(sT)
        ∂loss/∂m  = (t/B) e^m Σ_b R · Φ + λo(e^d − 1)/T
        ∂loss/∂L  = EᵀA/B + (ΣR²/B + M/T) L
        ∂loss/∂Y  = ALᵀ/B
        ∂loss/∂ρ  = −(1 + c/T)

    The arguments: features [batch, h], W̄ [output, h], the factor [1, h, h], whose part above the diagonal is U,
    m [1, h], L [output, output], ρ [output], whose sum is log det L, and targets [batch, output].
    """

    differentiable = 7

    def _share_of_logs(self, outputs: int) -> float:
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


@final
class ConjugateRegression(Buffers):
    """The exact posterior of W given the features of all training rows and Σ, which predicts in closed form.

    With Σ = U diag(d) Uᵀ the outputs Uᵀy are independent given W, and the rows of UᵀW have the prior of the rows of W.
    With ΦᵀΦ = V diag(λ) Vᵀ:

        (UᵀW)_k | Y ~ N(S_k Φᵀ(YU)_k / d_k, S_k),    S_k⁻¹ = ΦᵀΦ / d_k + I / s = V diag(λ / d_k + 1 / s) Vᵀ

    For one output this is :mod:`~bdl_pipe.linear_regression`. Appendix C.6: after training "we may discard the
    variational posterior and leverage exact conjugacy". For several outputs the posterior is a matrix normal, like the
    layer's q(W), only if Σ is a multiple of I. The exact posterior has no KL weight.

    Attributes:
        mean: E[W | Y].
        basis: V.
        variance: 1 / (λ / d_k + 1 / s), the variances of S_k in the basis V.
        mixing: U², the share of each rotated output in the variance of each output.
        noise_variance: the diagonal of Σ.
    """

    mean: Float[Tensor, "output h"]
    basis: Float[Tensor, "h h"]
    variance: Float[Tensor, "output h"]
    mixing: Float[Tensor, "output output"]
    noise_variance: Float[Tensor, " output"]

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Gaussian:
        """Return N(E[W]φ, Σ_k U_ik² φᵀS_kφ + Σ_ii) of each output i, one draw; ``rng`` is not used.

        As in :meth:`Regression.predict`, the correlations of the outputs are omitted.
        """
        with full_precision(features):
            features = features.to(self.mean.dtype)
            spread = (features @ self.basis).square() @ self.variance.mT @ self.mixing.mT
            return Gaussian((features @ self.mean.mT)[None], (spread + self.noise_variance)[None])

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over Wφ at the rows of each group; its noise is Σ_ii, as in ``predict``.

        It is in float64: variances in the basis V range from the prior's to the noise's, and with rounding errors of
        float32 the covariance of a thousand rows has eigenvalues below 0 that are too large for a jitter.
        """
        with full_precision(features):
            features, mean, basis = (part.double() for part in (features, self.mean, self.basis))
            rotated = (features @ basis)[:, None]  # [group, 1, row, h]
            within = rotated * self.variance.double()[:, None] @ rotated.mT
            covariance = torch.einsum("ik,gkrq->girq", self.mixing.double(), within)
            noise = self.noise_variance.double()[None]
            return GaussianFunctions((features @ mean.mT)[None], covariance[None], noise, classes=False)


@torch.no_grad()
def condition(layer: Regression, batches: Iterable[tuple[Tensor, ...]]) -> ConjugateRegression:
    """Return the exact posterior at the layer's Σ and prior, in one pass; the layer is not changed.

    Args:
        batches: (features [batch, h], targets [batch, output]) of the training rows, from the fixed trunk.

    Raises:
        DataError: there are no rows, features are not finite or not ``in_features`` wide, or targets have another
            shape.
    """
    _, gram, cross, _ = layer._sums(batches)
    noise, rotation = torch.linalg.eigh(widen(layer.noise_covariance))  # d, U
    squares, basis = torch.linalg.eigh(gram)  # λ, V
    variance = 1 / (squares.clamp_min(0) / noise[:, None] + 1 / layer.prior_variance)  # [output, h]
    rotated = variance * (basis.mT @ cross @ rotation).mT / noise[:, None] @ basis.mT  # UᵀE[W]
    like = layer.mean.dtype
    diagonal = layer.noise_covariance.diagonal().clone()
    return ConjugateRegression(
        mean=(rotation @ rotated).to(like),
        basis=basis.to(like),
        variance=variance.to(like),
        mixing=rotation.square().to(like),
        noise_variance=diagonal,
    )


@torch.no_grad()
def recursive_layer(layer: Regression, exact: ConjugateRegression | None) -> RecursiveLayer:
    """Return the Gaussian of one output's weights, in float64: the exact posterior or, with None, the layer's q(w)."""
    if exact is None:
        precision, mean = torch.linalg.inv(layer.covariance().matrix()[0].double()), layer.mean.double()[0]
    else:
        basis, variance, mean = exact.basis.double(), exact.variance.double()[0], exact.mean.double()[0]
        precision = basis / variance @ basis.mT
    return RecursiveLayer((precision + precision.mT) / 2, precision @ mean, layer.noise_covariance.double()[0, 0])


@torch.no_grad()
def after_rows(
    layer: Regression,
    exact: ConjugateRegression | None,
    features: Float[Tensor, "row h"],
    targets: Float[Tensor, "row 1"],
    log_noise: Float[Tensor, "row 1"] | None,
    keep: float,
) -> dict[str, Tensor]:
    """Return the tensors ``exact.…`` of the posterior of one output given further rows, in float64.

    Args:
        exact: the posterior before these rows; None: the layer's q(w).
        log_noise, keep: as in :meth:`~bdl_pipe.linear_regression.RecursiveLayer.learn`.
    """
    recursive, noise = recursive_layer(layer, exact), layer.noise_covariance.double()[0, 0]
    g = None if log_noise is None else log_noise.double()
    recursive.learn(features, targets, g, keep)
    squares, basis = torch.linalg.eigh(recursive.precision)
    mean = basis @ ((basis.mT @ recursive.shift) / squares)
    after = ConjugateRegression(
        mean=mean[None],
        basis=basis,
        variance=1 / squares[None],
        mixing=torch.ones_like(noise)[None, None],
        noise_variance=noise[None],
    )
    return {f"exact.{name}": tensor for name, tensor in after.state_dict().items()}
