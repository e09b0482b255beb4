"""The covariances S of a linear layer's Gaussian weights: dense, diagonal, low rank plus diagonal.

    dense     S = PPᵀ, P = tril(·) + diag(exp m)                                    (eq. 78)
    diagonal  S = diag(exp 2m)
    lowrank   S = FFᵀ + diag(exp 2m)

Training needs only φᵀSφ, tr S and log det S. Each takes at most O(h²) per matrix, and the determinant of the low-rank
form reduces to an r×r matrix (the determinant lemma).

Losses of such weights are evaluated as one operation with their gradients (:class:`Fused`).

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", appendix D. Deviation: the parameter holds
Pᵀ, so that one matrix product multiplies Φ with the factors of all classes, and blocks of rows of Pᵀ skip the zeros
below its diagonal.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Final, Literal, cast, final, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require

Kind = Literal["dense", "diagonal", "lowrank"]
BLOCK: Final = 160  # rows of Pᵀ in a product; at 640 features a third faster than one product of all rows


class Fused(ABC):
    """A scalar function of tensors as one operation with an explicit gradient; autograd derives second derivatives.

    A step of a small network is mostly overhead: for 32 rows of 64 features, the loss of a last layer and its gradients
    take half the time.
    """

    differentiable: ClassVar[int]  # the first arguments have gradients

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Return the value, a scalar."""
        value: Tensor = _Operation.apply(*tensors, self)[0]
        return value

    @abstractmethod
    def value(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's value and the tensors that its gradient needs.

        In-place operations write only to tensors that ``vmap`` has stacked.
        """

    @abstractmethod
    def slopes(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments by their formulas, times ``gradient``; None where not needed.

        Args:
            saved: the arguments, then the tensors that :meth:`value` keeps.
        """

    @final
    def traced(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients from autograd, which can be differentiated again."""
        inputs, rest = saved[: self.differentiable], saved[self.differentiable : len(needed) - 1]
        pull = torch.func.vjp(lambda *leaves: self.value(*leaves, *rest)[0], *inputs)[1]
        return tuple(slope if want else None for slope, want in zip(pull(gradient), needed, strict=False))


@final
class _Operation(torch.autograd.Function):
    """The value of tensors under a :class:`Fused`, the last argument, with its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        *tensors, function = inputs
        value_and_kept: tuple[Tensor, ...] = function.value(*tensors)
        return value_and_kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.function = inputs
        kept = output[1:]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        arguments = len(ctx.needs_input_grad)
        if gradient is None:
            return (None,) * arguments
        slopes = ctx.function.traced if torch.is_grad_enabled() else ctx.function.slopes
        with torch.autocast(gradient.device.type, enabled=False):
            gradients = slopes(gradient, ctx.needs_input_grad, ctx.saved_tensors)
        return *gradients, *[None] * (arguments - len(gradients))


class Form(ABC):
    """The covariance S of each of ``count`` weight vectors, at one value of the parameters."""

    @abstractmethod
    def quadratic(self, features: Float[Tensor, "batch h"]) -> Float[Tensor, "batch count"]:
        """Return φᵀSφ."""

    @abstractmethod
    def covariance(self, features: Float[Tensor, "group row h"]) -> Float[Tensor, "group count row row"]:
        """Return φ_iᵀSφ_j for all pairs of rows of each group, in float64, as a root times its transpose."""

    @abstractmethod
    def divergence(self, prior_variance: float) -> Float[Tensor, ""]:
        """Return Σ over the matrices of tr(S)/s − h + log det(sI) − log det S; >= 0, and 0 at S = sI.

        It is computed as sums of e^d − 1 − d, d = log(variance/s), which lose no digits near the prior.
        """

    @abstractmethod
    def matrix(self) -> Float[Tensor, "count h h"]:
        """Return S, for inspection and prediction; training does not compute it."""


def _products(root: Float[Tensor, "group row count m"]) -> Float[Tensor, "group count row row"]:
    """Return the inner products of all pairs of rows of each group, in float64."""
    by_matrix = root.double().transpose(1, 2)
    return by_matrix @ by_matrix.mT


def _excess(log_scale: Tensor, prior_variance: float) -> Tensor:
    """Return Σ e^d − 1 − d, d = 2m − log s: the divergence of a diagonal S from sI."""
    return _Excess()(2 * log_scale - math.log(prior_variance))


@final
class _Excess(Fused):
    """The function Σ e^d − 1 − d. It keeps its slope e^d − 1 for the gradient, which halves the passes over d."""

    differentiable = 1

    def value(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        slope = torch.expm1(tensors[0])
        return (slope - tensors[0]).sum(), slope

    def slopes(self, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        return (gradient * saved[1],)


@final
@dataclass(frozen=True)
class Dense(Form):
    """The form S = PPᵀ.

    Attributes:
        blocks: rows [start, start + rows) of Pᵀ without its diagonal, from column ``start`` on:
            [count, rows, h − start] each.
        log_scale: m, the log of the diagonal of P.
    """

    blocks: tuple[Tensor, ...]
    log_scale: Float[Tensor, "count h"]

    def quadratic(self, features: Float[Tensor, "batch h"]) -> Float[Tensor, "batch count"]:
        return reduce(torch.add, (root.square().sum(-1) for root in self._roots(features)))

    def covariance(self, features: Float[Tensor, "group row h"]) -> Float[Tensor, "group count row row"]:
        parts = [_products(root.unflatten(0, features.shape[:2])) for root in self._roots(features.flatten(0, 1))]
        return torch.stack(parts).sum(0)

    def _roots(self, features: Float[Tensor, "batch h"]) -> Iterator[Float[Tensor, "batch count rows"]]:
        """Yield Pᵀφ, the rows of one block at a time."""
        start = 0
        for block in self.blocks:
            count, rows, _ = block.shape
            here = slice(start, start + rows)
            strict = F.linear(features[:, start:], block.flatten(0, 1)).unflatten(1, (count, rows))
            yield strict + features[:, None, here] * self.log_scale[:, here].exp()
            start += rows

    def divergence(self, prior_variance: float) -> Float[Tensor, ""]:
        squares = [block.square().sum() for block in self.blocks]
        strict = squares[0] if len(squares) == 1 else torch.stack(squares).sum()
        return strict / prior_variance + _excess(self.log_scale, prior_variance)

    def root(self) -> Float[Tensor, "count h h"]:
        """Return Pᵀ."""
        width = self.log_scale.shape[-1]
        strict = torch.cat([F.pad(block, (width - block.shape[-1], 0)) for block in self.blocks], -2)
        return strict + torch.diag_embed(self.log_scale.exp())

    def matrix(self) -> Float[Tensor, "count h h"]:
        root = self.root()
        return root.mT @ root


@dataclass(frozen=True)
class Diagonal(Form):
    """The form S = diag(exp 2m); no tensor of batch × count × h is formed."""

    log_scale: Float[Tensor, "count h"]

    def quadratic(self, features: Float[Tensor, "batch h"]) -> Float[Tensor, "batch count"]:
        return F.linear(features.square(), (2 * self.log_scale).exp())

    def covariance(self, features: Float[Tensor, "group row h"]) -> Float[Tensor, "group count row row"]:
        return _products(features[:, :, None] * self.log_scale.exp())

    def divergence(self, prior_variance: float) -> Float[Tensor, ""]:
        return _excess(self.log_scale, prior_variance)

    def matrix(self) -> Float[Tensor, "count h h"]:
        return torch.diag_embed((2 * self.log_scale).exp())


@final
@dataclass(frozen=True)
class LowRank(Diagonal):
    """The form S = FFᵀ + diag(exp 2m)."""

    factor: Float[Tensor, "count h r"]

    def quadratic(self, features: Float[Tensor, "batch h"]) -> Float[Tensor, "batch count"]:
        count, _, rank = self.factor.shape
        root = F.linear(features, self.factor.mT.flatten(0, 1)).unflatten(1, (count, rank))  # Fᵀφ
        return super().quadratic(features) + root.square().sum(-1)

    def covariance(self, features: Float[Tensor, "group row h"]) -> Float[Tensor, "group count row row"]:
        root = torch.einsum("grh,chm->grcm", features, self.factor)  # Fᵀφ
        return _products(root) + super().covariance(features)

    def divergence(self, prior_variance: float) -> Float[Tensor, ""]:
        scaled = self.factor * (-self.log_scale).exp()[..., None]  # D^(−1/2) F
        identity = torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device)
        root = torch.linalg.cholesky(identity + scaled.mT @ scaled)  # [count, r, r]
        log_det_ratio = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # log det(I + FᵀD⁻¹F)
        added = self.factor.square().sum() / prior_variance - log_det_ratio.sum()
        return added + super().divergence(prior_variance)

    def matrix(self) -> Float[Tensor, "count h h"]:
        return self.factor @ self.factor.mT + super().matrix()


@final
class Covariance(nn.Module):
    """The parameters of S; a call returns their :class:`Form`.

    Args:
        kind: "dense", "diagonal" or "lowrank".
        count: the number of matrices: one for each class, or 1 for all outputs together.
        in_features: h.
        rank: r of "lowrank", in [1, h]; None for other kinds.
        initial_variance: v, with E[S] = vI at the start. Dense and diagonal start at vI, low rank at (v/2)I + FFᵀ, F ~
            N(0, v/2r), since F = 0 has no gradient.
        generator: the generator of the initial F.

    Raises:
        ConfigError: ``kind`` is unknown, ``rank`` does not fit it, or ``initial_variance`` is not > 0.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        in_features: int,
        *,
        rank: int | None,
        initial_variance: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        require(kind in get_args(Kind), "covariance", f"must be one of {', '.join(get_args(Kind))}", kind)
        if kind == "lowrank":
            require(rank is not None and 1 <= rank <= in_features, "rank", f"must be in [1, {in_features}]", rank)
        else:
            require(rank is None, "rank", f"must be absent for a {kind} covariance", rank)
        require(0 < initial_variance < math.inf, "initial_variance", "must be > 0 and finite", initial_variance)
        self.kind: Final = kind
        share = initial_variance / 2 if kind == "lowrank" else initial_variance
        self.log_scale = nn.Parameter(torch.full((count, in_features), 0.5 * math.log(share)))
        self.factor: nn.Parameter | None = None
        if kind == "dense":
            self.factor = nn.Parameter(torch.zeros(count, in_features, in_features))
        elif kind == "lowrank":
            draws = torch.randn(count, in_features, cast(int, rank), generator=generator)
            self.factor = nn.Parameter(draws * math.sqrt(share / cast(int, rank)))

    def forward(self) -> Form:
        if self.kind == "diagonal":
            return Diagonal(self.log_scale)
        assert self.factor is not None
        if self.kind == "lowrank":
            return LowRank(self.log_scale, self.factor)
        if self.factor.shape[-1] <= BLOCK:
            return Dense((self.factor.triu(1),), self.log_scale)
        starts = range(0, self.factor.shape[-1], BLOCK)
        rows = self.factor.split(BLOCK, -2)  # a single split, so that its gradient is a single concatenation
        blocks = (row.split([start, row.shape[-1] - start], -1)[1] for start, row in zip(starts, rows, strict=True))
        return Dense(tuple(block.triu(1) for block in blocks), self.log_scale)
