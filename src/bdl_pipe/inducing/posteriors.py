"""The distribution q(U) of a layer's whitened inducing weights, prior N(0, I).

:class:`Factorised` (FFG-U) and :class:`FullCovariance` (FCG-U) are Gaussians with standard deviations of at most
``sd_max``. With ``sd_max`` 0 only the mean is left, and :meth:`kl` is ½‖mean‖², minus the log prior up to a constant,
so that U is a MAP estimate (Ritter et al. 2021, J.2). :class:`Members` (Ensemble-U) is a mixture of K points without a
KL.
"""

import math
from abc import ABC, abstractmethod
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..errors import require

Noise = dict[str, Tensor]


class InducingPosterior(nn.Module, ABC):
    """The posterior q(U) of U [rows, cols]."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a draw's standard normal numbers, by name."""

    @abstractmethod
    def spread(self) -> Tensor | None:
        """Return the standard deviations or the covariance's factor, which all draws share; None for points."""

    @abstractmethod
    def forward(self, noise: Noise, spread: Tensor | None) -> Float[Tensor, "rows cols"]:
        """Return a draw of U, given the result of :meth:`spread`.

        :class:`Members` uses ``noise["member"]``, a one-hot vector [member].
        """

    @abstractmethod
    def centre(self) -> Float[Tensor, "rows cols"]:
        """Return E[U]."""

    @abstractmethod
    def kl(self) -> Float[Tensor, ""]:
        """Return KL[q(U) ‖ N(0, I)] in nats."""


@final
class Factorised(InducingPosterior):
    """A posterior of independent Gaussians; initial means are N(0, 1)."""

    def __init__(
        self, shape: tuple[int, int], sd_init: float, sd_max: float | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(shape, generator=generator))
        self._cap = sd_max
        self.free_sd = None if sd_max == 0 else nn.Parameter(torch.full(shape, free(sd_init, sd_max)))

    @property
    def sd(self) -> Float[Tensor, "rows cols"]:
        """Return the bounded standard deviations; 0 if the bound is 0."""
        return torch.zeros_like(self.mean) if self.free_sd is None else capped(self.free_sd, self._cap)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {} if self.free_sd is None else {"inducing": tuple(self.mean.shape)}

    def spread(self) -> Tensor | None:
        return None if self.free_sd is None else self.sd

    def forward(self, noise: Noise, spread: Tensor | None) -> Float[Tensor, "rows cols"]:
        return self.mean if spread is None else self.mean + spread * noise["inducing"]

    def centre(self) -> Float[Tensor, "rows cols"]:
        return self.mean

    def kl(self) -> Float[Tensor, ""]:
        if self.free_sd is None:
            return 0.5 * self.mean.square().sum()
        return gaussian_kl(self.mean, self.sd, log_capped(self.free_sd, self._cap), 1.0)


@final
class FullCovariance(InducingPosterior):
    """A Gaussian posterior with a full covariance over the concatenated rows of U.

    The lower triangle of the covariance's factor is stored. ``sd_max`` bounds marginal standard deviations: a longer
    row of the factor is shortened to ``sd_max``.
    """

    def __init__(
        self, shape: tuple[int, int], sd_init: float, sd_max: float | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        require(sd_max is None or sd_max > 0, "sd_max", "must be > 0 for a full covariance (0 is ffg_u's)", sd_max)
        self._shape, size = shape, shape[0] * shape[1]
        self.mean = nn.Parameter(torch.randn(size, generator=generator))
        self.covariance = Triangle(size, sd_init, sd_max)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"inducing": (len(self.mean),)}

    def spread(self) -> Tensor | None:
        return self.covariance()

    def forward(self, noise: Noise, spread: Tensor | None) -> Float[Tensor, "rows cols"]:
        assert spread is not None
        return (self.mean + spread @ noise["inducing"]).unflatten(-1, self._shape)

    def centre(self) -> Float[Tensor, "rows cols"]:
        return self.mean.unflatten(-1, self._shape)

    def kl(self) -> Float[Tensor, ""]:
        return full_kl(self.mean, self.covariance(), 1.0)


@final
class Members(InducingPosterior):
    """A posterior of K equally weighted points.

    Initially each point is one shared N(0, 1) draw plus ``spread`` times each member's own noise.
    """

    def __init__(self, shape: tuple[int, int], members: int, spread: float, generator: torch.Generator) -> None:
        super().__init__()
        shared, different = torch.randn(shape, generator=generator), torch.randn(members, *shape, generator=generator)
        self.members = nn.Parameter(shared + spread * different)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def spread(self) -> Tensor | None:
        return None

    def forward(self, noise: Noise, spread: Tensor | None) -> Float[Tensor, "rows cols"]:
        return torch.einsum("k,kij->ij", noise["member"].to(self.members.dtype), self.members)

    def centre(self) -> Float[Tensor, "rows cols"]:
        return self.members.mean(0)

    def kl(self) -> Float[Tensor, ""]:
        return self.members.new_zeros(())


@final
class Triangle(nn.Module):
    """A lower-triangular factor of a covariance, with a positive diagonal; a call returns the matrix.

    Attributes:
        below: the entries below the diagonal, row by row.
        log_diagonal: the logs of the diagonal entries.
    """

    def __init__(self, size: int, sd_init: float, sd_max: float | None) -> None:
        super().__init__()
        self._size, self._cap = size, sd_max
        self.below = nn.Parameter(torch.zeros(size * (size - 1) // 2))
        self.log_diagonal = nn.Parameter(torch.full((size,), free(sd_init, None)))
        self.register_buffer("_places", torch.tril_indices(size, size, -1), persistent=False)

    def forward(self) -> Float[Tensor, "size size"]:
        rows, columns = cast(Tensor, self._places)
        factor = torch.diag_embed(self.log_diagonal.exp()).index_put((rows, columns), self.below)
        if self._cap is None:
            return factor
        length = factor.square().sum(-1, keepdim=True).sqrt()  # marginal standard deviations [size, 1]
        return factor * (self._cap / length).clamp(max=1.0)


def gaussian_kl(mean: Tensor, sd: Tensor, log_sd: Tensor, prior_sd: float) -> Float[Tensor, ""]:
    """Return KL[Π N(m, s²) ‖ N(0, p²I)] in nats; ``prior_sd`` is p."""
    squares = 0.5 * (sd.square() + mean.square()) / prior_sd**2
    return (squares - 0.5 - log_sd + math.log(prior_sd)).sum()


def full_kl(mean: Float[Tensor, " size"], factor: Float[Tensor, "size size"], prior_sd: float) -> Float[Tensor, ""]:
    """Return KL[N(m, LLᵀ) ‖ N(0, p²I)] in nats."""
    scaled = factor / prior_sd
    log_det = scaled.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (scaled.square().sum() + (mean / prior_sd).square().sum() - len(mean)) - log_det


def capped(free: Tensor, cap: float | None) -> Tensor:
    """Return a positive number from an unconstrained one: cap·sigmoid(r), or exp(r) without a cap.

    The result is always below the cap and has a gradient everywhere, unlike a clipped exponential.
    """
    return free.exp() if cap is None else cap * torch.sigmoid(free)


def log_capped(free: Tensor, cap: float | None) -> Tensor:
    """Return the logarithm of :func:`capped`, without cancellation."""
    return free if cap is None else math.log(cap) + logsigmoid(free)


def free(value: float, cap: float | None) -> float:
    """Return the unconstrained number of a positive number below the cap: the inverse of :func:`capped`."""
    assert value > 0 and (cap is None or value < cap)
    return math.log(value) if cap is None else math.log(value / (cap - value))
