"""The base of the last layers: the weights' posterior, its KL and the training loss.

    loss = −[(1/B) Σ_t bound_t + (log p(Σ) − λ KL(q(W) ‖ p(W))) / T]                (eq. 61, 67)

with q(W) = Π_k N(w̄_k, S_k), p(W) = N(0, sI) and a point estimate of the noise Σ under an inverse
Wishart prior. The prior of the trunk's weights is the optimiser's weight decay.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", appendix C and D. Deviation: the KL
includes its constants, so that it is 0 at the prior and never negative.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, TypedDict, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError, require
from ..joint_predictive import GaussianFunctions
from ..networks.covariance import Covariance, Form, Fused
from ..seeds import Seed

Count = int | Tensor  # of rows; a tensor is the sum of the rows' weights


class Options(TypedDict, total=False):
    """The arguments that all last layers pass to :class:`LastLayer`, which has their defaults."""

    covariance: str
    rank: int | None
    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    initial_variance: float | None
    rng: Seed


class LastLayer(nn.Module, ABC):
    """A last layer with weights N(w̄_k, S_k) and noise of precision Σ⁻¹.

    Args:
        in_features: h, the width of the features.
        outputs: the number of rows of W.
        matrices: the number of matrices S: ``outputs``, or 1 for all rows together.
        noise_size: N of eq. 65, the size of each noise matrix.
        columns: the size of each S: h, or outputs·h for one matrix of all weights. None: h.
        covariance: the form of S.
        rank: the rank of the low-rank part of S; only for "lowrank".
        prior_variance: s of the prior N(0, sI), not scaled by the width.
        wishart_dof: ν > 0. Up to ν = N − 1 the prior is improper; its mode and the loss exist.
        wishart_scale: m > 0 in M = mI.
        initial_variance: v, with E[S] = vI at the start. None: 1/in_features.
        rng: the seed address of the initial w̄ ~ N(0, 1/in_features) (LeCun et al. 1998).

    The noise starts at the mode of its prior, m/(ν + N + 1).

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        in_features: int,
        outputs: int,
        *,
        matrices: int,
        noise_size: int,
        columns: int | None = None,
        covariance: str = "dense",
        rank: int | None = None,
        prior_variance: float = 1.0,
        wishart_dof: float = 1.0,
        wishart_scale: float = 1.0,
        initial_variance: float | None = None,
        rng: Seed = Seed(0),
    ) -> None:
        super().__init__()
        require(in_features > 0, "in_features", "must be > 0", in_features)
        positive = {"prior_variance": prior_variance, "wishart_dof": wishart_dof, "wishart_scale": wishart_scale}
        for name, value in positive.items():
            require(0 < value < math.inf, name, "must be > 0 and finite", value)
        self.in_features: Final = in_features
        self.prior_variance: Final = prior_variance
        self.wishart_dof: Final = wishart_dof
        self.wishart_scale: Final = wishart_scale
        self._degrees: Final = wishart_dof + noise_size + 1
        width = columns or in_features
        self._copies: Final = outputs * in_features // (matrices * width)
        spread = 1 / in_features if initial_variance is None else initial_variance
        shape, generator = (covariance, matrices, width), rng.fold("covariance").generator()
        self.covariance = Covariance(*shape, rank=rank, initial_variance=spread, generator=generator)
        mean = torch.randn(outputs, in_features, generator=rng.fold("mean").generator())
        self.mean = nn.Parameter(mean / math.sqrt(in_features))
        mode = wishart_scale / self._degrees
        self.noise_log_root = nn.Parameter(torch.full((outputs,), -0.5 * math.log(mode)))  # log diag L

    @abstractmethod
    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form, weights: Tensor | None) -> Tensor:
        """Return the theorem's data term at S = ``form``, averaged over the batch as :func:`mean_of` does."""

    def _noise_trace(self) -> Float[Tensor, ""]:
        """Return tr(Σ⁻¹); a layer whose Σ is not diagonal has another."""
        return (2 * self.noise_log_root).exp().sum()

    @abstractmethod
    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over Wφ at the rows of each group, which share W, and the noise of an observation."""

    @final
    def _functions(self, features: Tensor, noise: Tensor, classes: bool) -> GaussianFunctions:
        with full_precision(features):
            features = self._cast(features)
            covariance = self.covariance().covariance(features)
            return GaussianFunctions((features @ self.mean.mT)[None], covariance[None], noise[None], classes)

    @final
    def bound(self, features: Float[Tensor, "batch h"], targets: Tensor) -> Float[Tensor, ""]:
        """Return the lower bound on E_q[log p(y | x, W)], averaged over the batch, in nats per row."""
        check_rows(features)
        with full_precision(features):
            return self._mean_bound(self._cast(features), targets, self.covariance(), None)

    @final
    def kl(self) -> Float[Tensor, ""]:
        """Return KL[q ‖ p] of all that has a posterior, in nats; 0 at the prior."""
        return self._kl(self.covariance())

    def _kl(self, form: Form) -> Float[Tensor, ""]:
        """Return KL[q(W) ‖ p(W)] at S = ``form``; a layer with other posteriors adds their KL."""
        return gaussian_kl(self.mean, form, self.prior_variance, copies=self._copies)

    def log_noise_prior(self) -> Float[Tensor, ""]:
        """Return log p(Σ) + constant, (ν + N + 1)/2 log det Σ⁻¹ − m/2 tr Σ⁻¹ (eq. 65)."""
        return self._degrees * self.noise_log_root.sum() - 0.5 * self.wishart_scale * self._noise_trace()

    @final
    def loss(
        self,
        features: Float[Tensor, "batch h"],
        targets: Tensor,
        *,
        num_train: Count,
        kl_weight: float = 1.0,
        weights: Float[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return minus the objective of eq. 61, in nats per training row.

        Args:
            features: φ of a batch.
            targets: numbers [batch, output], or class numbers [batch].
            num_train: T, the number of rows of the whole training set.
            kl_weight: λ, the weight of the KL; 1 gives the bound.
            weights: of the rows' bounds, 1 in the mean of all rows, whose weights then sum to T. None: all are 1.

        Raises:
            ConfigError: ``num_train`` <= 0 or ``kl_weight`` < 0.
            DataError: targets have another shape, features have another width or no row, or labels are not whole
                numbers or, on a CPU, out of range.
        """
        check_rows(features)
        require(isinstance(num_train, Tensor) or num_train > 0, "num_train", "must be > 0", num_train)
        require(kl_weight >= 0, "kl_weight", "must be >= 0", kl_weight)
        with full_precision(features):
            return self._loss(self._cast(features), targets, num_train, kl_weight, weights)

    def _loss(
        self, features: Tensor, targets: Tensor, num_train: Count, kl_weight: float, weights: Tensor | None
    ) -> Tensor:
        form = self.covariance()  # shared by bound and KL
        bound = self._mean_bound(features, targets, form, weights)
        return -(bound + (self.log_noise_prior() - kl_weight * self._kl(form)) / num_train)

    def _cast(self, features: Tensor) -> Tensor:
        """Return features, which autocast may have in half precision, in the parameters' precision."""
        check_features(features, self.in_features)
        return features.to(self.mean.dtype)


def mean_of(values: Float[Tensor, " batch"], weights: Float[Tensor, " batch"] | None) -> Float[Tensor, ""]:
    """Return the mean of w_i v_i over a batch; None: the mean of the values."""
    return values.mean() if weights is None else (weights * values).mean()


def gaussian_kl(
    mean: Float[Tensor, "output h"], form: Form, prior_variance: float, *, copies: int
) -> Float[Tensor, ""]:
    """Return KL[Π N(w̄_k, S_k) ‖ Π N(0, sI)] in nats, including constants (eq. 81–84).

    Args:
        mean: w̄, one row for each output.
        form: the S_k, each for ``copies`` rows.
        prior_variance: s.
        copies: the number of rows that share each matrix of ``form``.
    """
    return 0.5 * (mean.square().sum() / prior_variance + copies * form.divergence(prior_variance))


@dataclass(frozen=True)
class FusedLoss(Fused):
    """A loss of tensors as one operation with its gradients, at the constants s, ν, M, T and λ of :class:`LastLayer`.

    The formulas of its subclasses are in nats per training row, with d = 2m − log s, B rows of a batch and the weight λ
    of the KL. The gradients are our derivation.
    """

    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    num_train: int
    kl_weight: float

    @property
    def _kl(self) -> float:
        """Return λ/T."""
        return self.kl_weight / self.num_train


def full_precision(features: Tensor) -> torch.autocast:
    """Return a context without autocast: sums of squares over h features need more than eight bits."""
    device = features.device.type if isinstance(features, Tensor) else "cpu"  # others are refused inside
    return torch.autocast(device, enabled=False)


def check_features(features: Tensor, width: int) -> None:
    """Raise DataError if the features are not ``width`` wide."""
    if not isinstance(features, Tensor):
        raise DataError(f"features must be a tensor, got {type(features).__name__}; pass torch.as_tensor(features)")
    if features.is_complex() or features.dtype == torch.bool or features.layout is not torch.strided:
        got = features.dtype if features.layout is torch.strided else features.layout
        raise DataError(f"features must be a dense tensor of real numbers, got {got}")
    if features.shape[-1] != width:
        raise DataError(f"features must have {width} columns, got {features.shape[-1]}")


def check_rows(features: Tensor) -> None:
    """Raise DataError unless features are [row, feature], with a row: the mean of no rows would be NaN."""
    shape = tuple(features.shape)
    if len(shape) != 2:
        raise DataError(f"features must have shape [row, feature], got {list(shape)}; flatten other dimensions")
    if not len(features):
        raise DataError("features must have at least one row, got none")
