"""The base of the last layers: the weights' posterior, its KL and the training loss.

    loss = −[(1/B) Σ_t bound_t + (log p(Σ) − λ KL(q(W) ‖ p(W))) / T]                (eq. 61, 67)

with q(W) = Π_k N(w̄_k, S_k), p(W) = N(0, sI) and a point estimate of the noise Σ under an inverse
Wishart prior. The prior of the trunk's weights is the optimiser's weight decay.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", appendix C and D. Deviation: the KL
includes its constants, so that it is 0 at the prior and never negative.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import LATER
from ..errors import DataError, require, require_positive
from ..joint_predictive import GaussianFunctions
from ..seeds import Seed
from ..training.likelihood import NoiseOf
from .covariance import Covariance, Form, Kind, gaussian_kl

Rule = Literal["sampled", "mean_field", "laplace_bridge", "quadrature"]
PosteriorForm = Literal["variational", "exact"]


@dataclass(frozen=True)
class GaussianLayer:
    """The settings of a last layer with Gaussian weights, for regression or discriminative classification.

    Attributes:
        covariance: the form of S, the covariance of the weights' posterior.
        rank: the rank of the low-rank part; only for ``lowrank``.
        prior_variance: s, the variance of the weights' prior N(0, sI).
        wishart_dof: ν of the noise covariance's inverse-Wishart prior.
        wishart_scale: m of the noise covariance's inverse-Wishart prior.
        kl_weight: the weight of the layer's KL; 1 gives the bound.
        predictive: how E[softmax] is approximated (classification).
        draws: the number of draws in a prediction by the rule "sampled".
        posterior: the posterior of the weights in predictions. With "exact" (regression only), the exact posterior
            given the features of all training rows replaces the variational posterior after training (appendix C.6).
        noise: of regression: ``one`` covariance Σ, or Σ e^g(x) for ``each input`` (ours); g is linear in the features.
    """

    covariance: Kind
    rank: int | None
    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    kl_weight: float
    predictive: Rule = "mean_field"
    draws: int = 20
    posterior: PosteriorForm = "variational"
    name: Literal["gaussian"] = "gaussian"
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "prior_variance", "wishart_dof", "wishart_scale", "draws")
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)
        if self.covariance == "lowrank":
            require(self.rank is not None and self.rank > 0, "rank", "must be > 0 for lowrank", self.rank)
        else:
            require(self.rank is None, "rank", f"must be null for {self.covariance}", self.rank)


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
        self._noise_size: Final = noise_size
        self._copies: Final = outputs // matrices
        self.covariance = Covariance(
            covariance,
            matrices,
            in_features,
            rank=rank,
            initial_variance=1 / in_features if initial_variance is None else initial_variance,
            generator=rng.fold("covariance").generator(),
        )
        mean = torch.randn(outputs, in_features, generator=rng.fold("mean").generator())
        self.mean = nn.Parameter(mean / math.sqrt(in_features))
        mode = wishart_scale / (wishart_dof + noise_size + 1)
        self.noise_log_root = nn.Parameter(torch.full((outputs,), -0.5 * math.log(mode)))  # log diag L

    @abstractmethod
    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form) -> Tensor:
        """Return the theorem's data term at S = ``form``, averaged over the batch."""

    @abstractmethod
    def _noise_trace(self) -> Float[Tensor, ""]:
        """Return tr(Σ⁻¹)."""

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
            return self._mean_bound(self._cast(features), targets, self.covariance())

    @final
    def kl(self) -> Float[Tensor, ""]:
        """Return KL[q(W) ‖ p(W)] in nats; 0 at the prior."""
        return gaussian_kl(self.mean, self.covariance(), self.prior_variance, copies=self._copies)

    @final
    def log_noise_prior(self) -> Float[Tensor, ""]:
        """Return log p(Σ) + constant, (ν + N + 1)/2 log det Σ⁻¹ − m/2 tr Σ⁻¹ (eq. 65)."""
        degrees = 0.5 * (self.wishart_dof + self._noise_size + 1)
        return degrees * 2 * self.noise_log_root.sum() - 0.5 * self.wishart_scale * self._noise_trace()

    @final
    def loss(
        self, features: Float[Tensor, "batch h"], targets: Tensor, *, num_train: int, kl_weight: float = 1.0
    ) -> Float[Tensor, ""]:
        """Return minus the objective of eq. 61, in nats per training row.

        Args:
            features: φ of a batch.
            targets: numbers [batch, output], or class numbers [batch].
            num_train: T, the number of rows of the whole training set.
            kl_weight: λ, the weight of the KL; 1 gives the bound.

        Raises:
            ConfigError: ``num_train`` <= 0 or ``kl_weight`` < 0.
            DataError: targets have another shape, features have another width or no row, or labels are not whole
                numbers or, on a CPU, out of range.
        """
        check_rows(features)
        require(num_train > 0, "num_train", "must be > 0", num_train)
        require(kl_weight >= 0, "kl_weight", "must be >= 0", kl_weight)
        with full_precision(features):
            return self._loss(self._cast(features), targets, num_train, kl_weight)

    def _loss(self, features: Tensor, targets: Tensor, num_train: int, kl_weight: float) -> Tensor:
        """Return :meth:`loss` for arguments that are checked and cast."""
        form = self.covariance()  # shared by bound and KL
        bound = self._mean_bound(features, targets, form)
        kl = gaussian_kl(self.mean, form, self.prior_variance, copies=self._copies)
        return -(bound + (self.log_noise_prior() - kl_weight * kl) / num_train)

    def _cast(self, features: Tensor) -> Tensor:
        """Return features, which autocast may have in half precision, in the parameters' precision."""
        check_features(features, self.in_features)
        return features.to(self.mean.dtype)


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


def class_numbers(targets: Tensor, rows: int) -> Int[Tensor, " batch"]:
    """Return labels as int64.

    Raises:
        DataError: the number of labels is not the number of rows, or a label is not a whole number.
    """
    if not isinstance(targets, Tensor):
        raise DataError(f"labels must be a tensor, got {type(targets).__name__}; pass torch.as_tensor(labels)")
    if tuple(targets.shape) != (rows,):
        cure = "" if targets.ndim != 2 else "; pass y[:, 0]" if targets.shape[1] == 1 else "; pass y.argmax(1)"
        raise DataError(f"targets must be {rows} class numbers, got shape {tuple(targets.shape)}{cure}")
    if targets.is_complex():
        raise DataError(f"labels must be whole numbers, got {targets.dtype}")
    labels = targets.long()
    if targets.is_floating_point():
        broken = targets[targets != labels]
        if len(broken):
            raise DataError(f"labels must be whole numbers, got {float(broken[0]):g}")
    return labels


@contextlib.contextmanager
def labels_as_index(labels: Int[Tensor, " batch"], classes: int) -> Iterator[None]:
    """Inside the block, report an index error as a label out of range.

    Valid labels then need no extra check, because a CPU checks indices. An accelerator fails asynchronously with its
    own index error.

    Raises:
        DataError: a label is not in 0 … ``classes`` − 1.
    """
    try:
        yield
    except (IndexError, RuntimeError):
        check_labels(labels, classes)
        raise


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise DataError if a label is not in 0 … ``classes`` − 1."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(f"labels must be in 0 … {classes - 1}, got {int(wrong[0])}")
