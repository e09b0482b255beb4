"""The predictive of networks and last layers whose noise is a Student t."""

from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from .predictive import Draws, Gaussian, require_column

_NODES: Final = 16  # Gaussians that stand for each Student t of a logarithm
_LEAST_DEGREES: Final = 3.0  # of a network's Student t: its standard deviation is at most √3 times its scale
FREE: Final = (-8.0, 10.0)  # bounds of the output that gives degrees of freedom
_LEAST_RATIO: Final = 0.05  # of a quantile of χ² to its degrees of freedom, where the approximation would be below 0


def degrees_of(free: Tensor) -> Tensor:
    """Return a network's degrees of freedom, 3 + 3 exp(output) for outputs in −8 … 10: 6 where the output is 0."""
    return _LEAST_DEGREES + 3 * free.clamp(*FREE).exp()


def free_of(degrees: Tensor) -> Tensor:
    """Return the output that gives these degrees of freedom, the inverse of :func:`degrees_of`."""
    return ((degrees - _LEAST_DEGREES) / 3).log()


@final
class StudentT(Draws):
    """An equally weighted mixture of S Student ts for each output; outputs are independent given a draw.

    Attributes:
        draw_mean: the location, which is the median, and the mean above one degree of freedom.
        squared_scale: the square of the scale.
        degrees: the degrees of freedom ν: one number, or of the shape of the two others. The variance is
            ν/(ν − 2) times ``squared_scale``, and infinite up to ν = 2.
    """

    def __init__(
        self,
        draw_mean: Float[Tensor, "draw batch output"],
        squared_scale: Float[Tensor, "draw batch output"],
        degrees: float | Float[Tensor, "..."],
    ) -> None:
        self.draw_mean, self.squared_scale = draw_mean, squared_scale
        self.degrees = torch.as_tensor(degrees, dtype=None if isinstance(degrees, Tensor) else torch.float64)
        self.draw_variance = torch.where(self.degrees > 2, self.degrees / (self.degrees - 2), torch.inf) * squared_scale

    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]:
        degrees, wide = self.degrees, self.degrees.double()
        squared = (targets - self.draw_mean).square() / (degrees * self.squared_scale)
        # in float64, since both terms are large for many degrees of freedom, and their difference is small
        constant = (torch.lgamma((wide + 1) / 2) - torch.lgamma(wide / 2)).to(degrees)
        each = constant - 0.5 * ((degrees + 1) * squared.log1p() + (degrees * torch.pi * self.squared_scale).log())
        return each.sum(-1)

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        from scipy.special import stdtr  # here, because most predictions need no distribution function

        require_column(values, self.draw_mean.shape[1:])
        z = (values.double() - self.draw_mean.double()) / self.squared_scale.double().sqrt()
        below = stdtr(self.degrees.double().numpy(force=True), z.numpy(force=True))
        return torch.as_tensor(below, device=z.device).mean(0)

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the least and largest quantile of the draws; both are the quantile if there is one draw."""
        from scipy.special import stdtrit

        standard = torch.as_tensor(stdtrit(self.degrees.double().numpy(force=True), level))
        each = self.draw_mean.double() + standard.to(self.draw_mean.device) * self.squared_scale.double().sqrt()
        return each.amin(0), each.amax(0)

    def rescale(self, shift: Tensor, scale: Tensor) -> "StudentT":
        mean, squared = self.draw_mean.double(), self.squared_scale.double()
        shift, scale = shift.to(mean), scale.to(mean)
        return StudentT(shift + scale * mean, scale.square() * squared, self.degrees)

    def widened(self, factor: float | Tensor) -> "StudentT":
        """Return the distribution of μ + s (y − μ), where μ is the mean and s is ``factor``; it is a mixture, too."""
        centre = self.mean
        return StudentT(centre + factor * (self.draw_mean - centre), factor**2 * self.squared_scale, self.degrees)

    def gaussians(self, most: Float[Tensor, " output"]) -> Gaussian:
        """Return a mixture of 16 Gaussians for each draw, with its mean and variance, for targets fitted as logarithms.

        If log y has a Student t, y has no mean, and the CRPS is infinite: E exp(z) diverges. Given a precision λ ~
        χ²_ν/ν, z is N(μ, s²/λ). Here λ has 16 equally probable values, its quantiles at the levels (k + ½)/16, and the
        variances are scaled so that their mean is ν/(ν − 2) s². The divergence from the Student t is .013 nats at ν =
        3.1, .005 at 4 and .001 at 6, where a Gaussian's is .174, .084 and .030. The quantiles are those of Wilson &
        Hilferty 1931, in closed form, so that a program can be exported.

        No Gaussian is wider than a standard deviation of ``most``, or than the Student t itself if that is wider.
        Otherwise the widest sets the mean of exp(z): on one row of ``diamonds`` it was 32,500, and the median 4,400.

        Args:
            most: a standard deviation of 1 of the logarithms, in the units of this distribution.
        """
        degrees = self.degrees.to(self.draw_mean).clamp_min(2.1)  # a variance exists
        levels = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
        normal = torch.special.ndtri(levels).to(self.draw_mean).reshape(-1, *[1] * self.draw_mean.ndim)
        spread = 2 / (9 * degrees)
        ratio = (1 - spread + normal * spread.sqrt()).clamp_min(_LEAST_RATIO ** (1 / 3)) ** 3  # λ
        share = ratio.reciprocal() / ratio.reciprocal().mean(0)
        whole = degrees / (degrees - 2) * self.squared_scale
        variance = torch.minimum(share * whole, torch.maximum(whole, most.to(whole).square()))
        return Gaussian(self.draw_mean.expand(_NODES, *self.draw_mean.shape).flatten(0, 1), variance.flatten(0, 1))
