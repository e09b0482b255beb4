"""A distribution from quantiles at fixed levels: linear in normal scores between them, with exponential tails.

With levels Φ(z_1) < … < Φ(z_K), z_K = −z_1, and their quantiles q_1 < … < q_K, the distribution function between q_k
and q_{k+1} is

    F(y) = Φ(z_k + (y − q_k)/b_k),   b_k = (q_{k+1} − q_k)/(z_{k+1} − z_k),

a piece of a Gaussian with standard deviation b_k. Beyond q_K the tail has the share p = 1 − Φ(z_K) and decays
exponentially,

    1 − F(y) = p exp(−(y − q_K)/s),   s = h p/φ(z_K),   h = (q_K − median)/z_K;

so the tail's density at q_K equals the density there of a Gaussian with standard deviation h. The tail below q_1 is the
mirror image. The density is positive everywhere and jumps at quantiles where the slopes b_k differ. Moments are sums of
moments of truncated Gaussians and exponential distributions.
"""

import math
from functools import cached_property
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..predictive import Continuous, require_outputs

SCORES: Final = (-1.5, -1.0, 0.0, 1.0, 1.5)  # z_k; the middle one is the median
_MIDDLE: Final = SCORES.index(0.0)
_BEYOND: Final = 0.5 * math.erfc(SCORES[-1] / math.sqrt(2))  # p
_TAIL: Final = _BEYOND * math.sqrt(2 * math.pi) * math.exp(SCORES[-1] ** 2 / 2) / SCORES[-1]  # s/(q_K − median)
_LEVELLED: Final = 0.2  # the least slope between two quantiles, relative to the slope of the whole row


def levels() -> list[float]:
    """Return Φ(z_k), from 0.067 to 0.933."""
    return [0.5 * math.erfc(-score / math.sqrt(2)) for score in SCORES]


@final
class Quantiles(Continuous):
    """A distribution of each output, given by its quantiles at :func:`levels`; outputs are independent."""

    def __init__(self, values: Float[Tensor, "batch output score"]) -> None:
        """Create the distribution from quantiles that ascend strictly in the last dimension."""
        self.values = values.double()
        self._scores = torch.tensor(SCORES, dtype=torch.float64, device=values.device)
        self._slopes = self.values.diff() / self._scores.diff()
        median = self.values[..., _MIDDLE]
        self._low, self._high = self.values[..., 0], self.values[..., -1]
        self._below, self._above = _TAIL * (median - self._low), _TAIL * (self._high - median)

    @classmethod
    def of(cls, raw: Float[Tensor, "batch output score"], least: Float[Tensor, " output"]) -> "Quantiles":
        """Make quantiles from estimates that may cross.

        They are sorted (Chernozhukov, Fernández-Val & Galichon 2010), then moved away from the median until every slope
        is at least a fifth of the whole row's slope and at least ``least``, a standard deviation.
        """
        ordered = raw.double().sort().values
        steps = torch.tensor(SCORES, dtype=torch.float64, device=raw.device).diff()
        whole = (ordered[..., -1] - ordered[..., 0]) / float(steps.sum())
        floor = torch.maximum(_LEVELLED * whole, least.double())[..., None]
        ends = F.pad(torch.maximum(ordered.diff(), floor * steps).cumsum(-1), (1, 0))
        return cls(ordered[..., _MIDDLE, None] + ends - ends[..., _MIDDLE, None])

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance. In a piece y = c + b z, z is a truncated standard normal."""
        z = self._scores
        density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
        share, first = torch.special.ndtr(z).diff(), -density.diff()  # ∫ φ and ∫ z φ over the piece
        second = share - (z * density).diff()  # ∫ z² φ
        centre = self.values[..., _MIDDLE, None]
        at_zero = self.values[..., :-1] - self._slopes * z[:-1] - centre  # c
        ends = torch.stack([self._low - self._below, self._high + self._above], -1) - centre  # the tails' means
        mean = (at_zero * share + self._slopes * first).sum(-1) + _BEYOND * ends.sum(-1)
        at_zero, ends = at_zero - mean[..., None], ends - mean[..., None]
        squares = at_zero.square() * share + 2 * at_zero * self._slopes * first + self._slopes.square() * second
        tails = ends.square().sum(-1) + self._below.square() + self._above.square()
        return centre[..., 0] + mean, squares.sum(-1) + _BEYOND * tails

    @property
    def mean(self) -> Float[Tensor, "batch output"]:
        return self._moments[0]

    @property
    def variance(self) -> Float[Tensor, "batch output"]:
        return self._moments[1]

    @property
    def jumps(self) -> Float[Tensor, "jump batch output"]:
        return self.values.movedim(-1, 0)

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        return torch.zeros_like(self.mean)

    def _inside(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return z(y) and the slope of y's piece, [batch, output] each, for values between the outer quantiles."""
        places = values.double()[..., None].contiguous()
        piece = torch.searchsorted(self.values[..., 1:-1].contiguous(), places)
        start, slope = self.values.gather(-1, piece), self._slopes.gather(-1, piece)
        return (self._scores[piece] + (places - start) / slope)[..., 0], slope[..., 0]

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        below, above = self._low - values, values - self._high
        inside = torch.special.ndtr(self._inside(values)[0])
        inside = torch.where(below > 0, _BEYOND * (-below / self._below).exp(), inside)
        return torch.where(above > 0, 1 - _BEYOND * (-above / self._above).exp(), inside)

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        require_outputs(targets, self._low.shape)
        below, above = self._low - targets, targets - self._high
        score, slope = self._inside(targets)
        each = -score.square() / 2 - slope.log() - math.log(2 * math.pi) / 2
        each = torch.where(below > 0, math.log(_BEYOND) - self._below.log() - below / self._below, each)
        return torch.where(above > 0, math.log(_BEYOND) - self._above.log() - above / self._above, each).sum(-1)

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the quantile as both bounds, since it is in closed form."""
        if min(level, 1 - level) < _BEYOND:
            low = level < _BEYOND
            over = math.log(_BEYOND / (level if low else 1 - level))
            exact = self._low - over * self._below if low else self._high + over * self._above
        else:
            score = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
            piece = int((torch.tensor(SCORES[1:-1], dtype=torch.float64) < score).sum())
            exact = self.values[..., piece] + self._slopes[..., piece] * (score - SCORES[piece])
        return exact, exact

    def rescale(self, shift: Tensor, scale: Tensor) -> "Quantiles":
        shift, scale = shift.to(self.values), scale.to(self.values)
        return Quantiles(shift[..., None] + scale[..., None] * self.values)
