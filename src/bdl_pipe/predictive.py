"""Predictive distributions, which every posterior returns and which keep their draws.

p(y | x, D) ≈ (1/S) Σ_s p(y | x, θ_s). A predictive from draws keeps each draw's distribution, which mutual information,
per-draw disagreement and the joint over several inputs need; a closed form has one draw. ``log_probs`` is the log of
the mixture.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .errors import DataError

GAUSS_LEGENDRE: Final = np.polynomial.legendre.leggauss(16)  # nodes and weights of each panel of a table
_ENDS: Final = (-3.0, -1.0, 0.0, 1.0, 3.0)  # ends between the outer ones, in standard deviations from the mean
_OUTSIDE: Final = 1e-6  # probability beyond the outer ends; further out, exponentials of heavy tails have huge moments
_TOLERANCES: Final = {"xrtol": 1e-13, "fatol": 1e-14}  # tolerances of the root finder for quantiles


class Predictive(ABC):
    """A distribution of the target for each of a batch of inputs.

    Attributes:
        scores: the method's own OOD scores, name -> [batch], high where an input resembles the training data. Every
            comparison measures how well each score detects other data.
    """

    scores: Mapping[str, Tensor] = MappingProxyType({})

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Return E[y | x]: class probabilities [batch, class], or the mean [batch, output]."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Return Var[y | x], with the shape of ``mean``; for classes, the variance of each class's indicator."""

    @abstractmethod
    def log_prob(self, targets: Tensor) -> Float[Tensor, " batch"]:
        """Return log p(y | x) of each example, natural log."""

    def draw_log_prob(self, targets: Tensor) -> Float[Tensor, "draw batch"]:
        """Return log p(y | x, draw) of each draw and example; a predictive without draws counts as one draw."""
        return self.log_prob(targets)[None]

    @abstractmethod
    def rescale(self, shift: Tensor, scale: Tensor) -> "Predictive":
        """Return the predictive of shift + scale·y, both [output], in float64; raise TypeError for classes."""


def mixture(log_terms: Tensor) -> Tensor:
    """Compute log (1/S) Σ_s exp(log_terms[s]) over the first dimension."""
    return torch.logsumexp(log_terms, dim=0) - math.log(log_terms.shape[0])


def require_outputs(targets: Tensor, shape: torch.Size) -> None:
    """Raise DataError unless targets are [batch, output]; targets [batch] would be broadcast to each other's rows."""
    if targets.ndim < 2 or targets.shape[-1] != shape[-1]:
        cure = "; pass y[:, None]" if targets.ndim == 1 and shape[-1] == 1 else ""
        raise DataError(f"targets must have the shape {list(shape)}, got {list(targets.shape)}{cure}")


def require_column(values: Tensor, shape: torch.Size) -> None:
    """Raise DataError if values of a distribution function are [batch]; one value for all of them may be []."""
    if values.ndim == 1:
        require_outputs(values, shape)


def mean_field(mean: Tensor, variance: Tensor) -> Tensor:
    """Return log softmax(μ_k / √(1 + π/8 v_k)), an approximation of log E[softmax(z)], z_k ~ N(μ_k, v_k).

    Source: MacKay 1992; Lu et al. 2020.

    Args:
        mean: μ [..., class].
        variance: v [..., class], or [..., 1] if all classes share it.
    """
    return F.log_softmax(mean / (1 + math.pi / 8 * variance).sqrt(), dim=-1)


def gaussian_quantile(mean: Tensor, variance: Tensor, level: float) -> Tensor:
    """Return the quantile of N(mean, variance) at ``level``, in float64."""
    return mean.double() + variance.double().sqrt() * torch.special.ndtri(torch.tensor(level, dtype=torch.float64))


@final
class Categorical(Predictive):
    """The class probabilities from S equally weighted draws, with the method's own OOD scores, if any."""

    def __init__(
        self,
        draw_log_probs: Float[Tensor, "draw batch class"],
        scores: Mapping[str, Float[Tensor, " batch"]] = MappingProxyType({}),
    ) -> None:
        self.draw_log_probs, self.scores = draw_log_probs, scores
        self.log_probs: Float[Tensor, "batch class"] = mixture(draw_log_probs)

    @property
    def mean(self) -> Float[Tensor, "batch class"]:
        return self.log_probs.exp()

    @property
    def variance(self) -> Float[Tensor, "batch class"]:
        return self.mean * (1 - self.mean)

    def log_prob(self, targets: Tensor) -> Float[Tensor, " batch"]:
        """Return each row's log probability of its label.

        Raises:
            DataError: labels are not [row], not whole numbers or, on a CPU, not classes.
        """
        labels, classes = targets.long(), self.log_probs.shape[-1]
        if targets.ndim != 1:
            raise DataError(f"labels must have shape [row], got {list(targets.shape)}")
        if targets.is_floating_point() and bool((targets != labels).any()):
            raise DataError(f"labels must be whole numbers, got {float(targets[targets != labels][0]):g}")
        try:
            return self.log_probs.gather(-1, labels[:, None])[:, 0]
        except (IndexError, RuntimeError):
            wrong = labels[(labels < 0) | (labels >= classes)]
            if len(wrong):
                raise DataError(f"labels must be in 0 … {classes - 1}, got {int(wrong[0])}") from None
            raise

    def draw_log_prob(self, targets: Int[Tensor, " batch"]) -> Float[Tensor, "draw batch"]:
        index = targets.long().expand(len(self.draw_log_probs), -1)[..., None]
        return self.draw_log_probs.gather(-1, index)[..., 0]

    def rescale(self, shift: Tensor, scale: Tensor) -> "Predictive":
        raise TypeError("classes have no scale")

    def entropy(self) -> Float[Tensor, " batch"]:
        """Return H[y | x] of the mixture, in nats."""
        return -torch.special.xlogy(self.mean, self.mean).sum(-1)

    def mutual_information(self) -> Float[Tensor, " batch"]:
        """Return I[y; θ | x] = H[mixture] − mean of the draws' entropies, in nats; 0 for one draw."""
        probs = self.draw_log_probs.exp()
        inner = -torch.special.xlogy(probs, probs).sum(-1).mean(0)  # [batch]
        return (self.entropy() - inner).clamp_min(0)


class Continuous(Predictive):
    """A distribution of real targets, with a distribution function for each output."""

    @property
    @abstractmethod
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        """Return the variance of the draws' means; 0 for one draw.

        A closed form over weights or functions counts as one draw: ``variance`` then includes the function's variance
        and the noise, and this is 0 although the model is uncertain. The posterior's ``functions`` gives the function's
        variance without the noise.
        """

    @abstractmethod
    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        """Return P(y ≤ value | x) for each output separately, in float64."""

    @abstractmethod
    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        """Return a lower and an upper bound [batch, output] of the quantile at ``level``, in float64."""

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        """Return the ends [batch, output] of the support of the method's own likelihood; ±∞ unless it is bounded."""
        everywhere = torch.full_like(self.mean, torch.inf)
        return -everywhere, everywhere

    @property
    def jumps(self) -> Float[Tensor, "jump batch output"] | None:
        """Return the values at which the density jumps, between which integrals are taken; None if it is smooth."""
        return None

    @abstractmethod
    def rescale(self, shift: Tensor, scale: Tensor) -> "Continuous":
        """Return the predictive of shift + scale·y, both [output], in float64."""

    @cached_property
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ends [end, batch, output], nodes z and F(z) [panel, node, batch, output], in float64.

        The nodes are Gauss-Legendre nodes of the panels between two ends.
        """
        low, high = self.bracket(_OUTSIDE)[0], self.bracket(1 - _OUTSIDE)[1]
        mean, sd = self.mean.double(), self.variance.double().sqrt()
        ends = torch.stack([low, *((mean + t * sd).clamp(low, high) for t in _ENDS), high])
        if self.jumps is not None:
            ends = torch.cat([ends, self.jumps]).sort(0).values
        nodes = torch.tensor(GAUSS_LEGENDRE[0], device=low.device)[:, None, None]
        z = ends[:-1, None] + (1 + nodes) / 2 * ends.diff(dim=0)[:, None]
        return ends, z, torch.stack([torch.stack([self.cdf(value) for value in panel]) for panel in z])

    @property
    def survival(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a [batch, output], nodes z_j and weights w_j [node, batch, output] of expectations, in float64.

        E f(Z) = f(a) + ∫_a^b f'(z) (1 − F(z)) dz ≈ f(a) + Σ_j w_j f'(z_j), for a smooth f and the first and last end.
        """
        ends, z, below = self.table
        weights = torch.tensor(GAUSS_LEGENDRE[1], device=z.device)[:, None, None] / 2 * ends.diff(dim=0)[:, None]
        return ends[0], z.flatten(0, 1), (weights * (1 - below)).flatten(0, 1)

    @property
    def quick(self) -> "Continuous":
        """Return this predictive, or one that is about equal if its own distribution function is slow."""
        return self

    @final
    def quantile(self, level: float) -> Float[Tensor, "batch output"]:
        """Solve P(Y ≤ y | x) = ``level`` for y, for each output, in float64 (SciPy's method of Chandrupatla 1997)."""
        from scipy.optimize.elementwise import find_root  # imported here, because the import takes half a second

        ends = self.bracket(level)
        shape, device = ends[0].shape, ends[0].device  # the mean has the same ones, but may cost an integral
        low, high = (end.cpu().numpy().ravel() for end in ends)
        values = torch.tensor((low + high) / 2)

        def excess(above: np.ndarray, which: np.ndarray) -> np.ndarray:
            values[which] = torch.tensor(low[which] + above)
            below = self.cdf(values.reshape(shape).to(device)).cpu().numpy().ravel()
            return below[which] - level

        # Solve for the distance from the low end, so that the relative tolerance applies to the bracket's width.
        rows, zero = np.arange(len(low)), np.zeros_like(low)
        root = find_root(excess, (zero, high - low), args=(rows,), tolerances=_TOLERANCES)
        # find_root fails if both ends are equal or an end is the root
        ended = np.where(root.success, low + root.x, np.where(excess(zero, rows) >= 0, low, high))
        return torch.tensor(ended, device=device).reshape(shape)


class Draws(Continuous):
    """An equally weighted mixture of S distributions for each output; outputs are independent given a draw.

    Attributes:
        draw_mean, draw_variance: the mean and the variance of each draw.
    """

    draw_mean: Float[Tensor, "draw batch output"]
    draw_variance: Float[Tensor, "draw batch output"]

    @abstractmethod
    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]: ...

    @property
    def mean(self) -> Float[Tensor, "batch output"]:
        return self.draw_mean.mean(0)

    @property
    def variance(self) -> Float[Tensor, "batch output"]:
        """Return E[Var] + Var[E], the mixture's variance (the population form over draws)."""
        return self.draw_variance.mean(0) + self.epistemic_variance

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        return self.draw_mean.var(0, correction=0)

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        require_outputs(targets, self.draw_mean.shape[1:])
        return mixture(self.draw_log_prob(targets))


@final
class Gaussian(Draws):
    """An equally weighted mixture of S Gaussians for each output; outputs are independent given a draw."""

    def __init__(
        self, draw_mean: Float[Tensor, "draw batch output"], draw_variance: Float[Tensor, "draw batch output"]
    ) -> None:
        self.draw_mean, self.draw_variance = torch.broadcast_tensors(draw_mean, draw_variance)

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        require_column(values, self.draw_mean.shape[1:])
        mean, sd = self.draw_mean.double(), self.draw_variance.double().sqrt()
        return torch.special.ndtr((values - mean) / sd).mean(0)

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        each = gaussian_quantile(self.draw_mean, self.draw_variance, level)  # the mixture's quantile lies between these
        return each.amin(0), each.amax(0)

    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]:
        squared = (targets - self.draw_mean) ** 2 / self.draw_variance
        each = -0.5 * (squared + self.draw_variance.log() + math.log(2 * math.pi))  # [draw, batch, output]
        return each.sum(-1)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Gaussian":
        # float32 has seven digits: a mean of 1.7e9 would be a multiple of 128
        mean, variance = self.draw_mean.double(), self.draw_variance.double()
        shift, scale = shift.to(mean), scale.to(mean)
        return Gaussian(shift + scale * mean, scale**2 * variance)
