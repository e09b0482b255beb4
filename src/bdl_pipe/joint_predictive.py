"""The joint distribution of the targets of several inputs. The inputs share a function, so their targets are dependent.

    p(y_1 … y_n | x_1 … x_n, D) = E_f[Π_i p(y_i | f(x_i))],    f from the posterior, one function for all inputs

Inputs come in groups, and each group has its own joint. The product of the marginals Π_i p(y_i | x_i, D) has the same
marginals, but it ignores that the inputs share a function. The *gap* of a group is log joint − log product, in nats. A
posterior keeps its functions as draws of networks, masks or weights (:class:`JointCategorical`, and for regression
:mod:`.joint_regression`), or as a Gaussian over the functions' values at any inputs (:class:`GaussianFunctions`). All
log probabilities are natural logarithms in float64.

Source: Osband et al. 2022, "Evaluating high-order predictive distributions in deep learning"; Korattikara et al. 2015,
discussion notes, equations 12 to 14.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .errors import DataError
from .predictive import mixture
from .seeds import Seed

DRAWS: Final = 500  # number of drawn functions if no closed form exists; a mean over D draws errs by about 1/√D
# The covariance of a repeated input is singular. Its Cholesky factor exists with a share of the mean variance added to
# its diagonal: the first of these with which it does. A smooth process at a thousand inputs needs more than the first.
_JITTERS: Final = (1e-9, 1e-7, 1e-5)
_LOG_2PI: Final = math.log(2 * math.pi)


class Joint(ABC):
    """The joint distribution of the targets of each group of inputs. It is a mixture over equally weighted draws.

    Attributes:
        draws: the number of draws.
        is_product: whether the joint is the product of the marginals. It is if the posterior has one draw and no
            Gaussian over functions, since its inputs share no random function.
        target_shape: the shape of targets: [group, row] for classes, [group, row, output] for regression.
    """

    draws: int
    is_product: bool
    target_shape: tuple[int, ...]

    @abstractmethod
    def _row_terms(self, targets: Tensor) -> Float[Tensor, "draw group row"]:
        """Return log p(y_i | x_i, draw)."""

    def _chain_terms(self, targets: Tensor) -> Float[Tensor, "draw group row"]:
        """Return log p(y_1 … y_i | x_1 … x_i, draw). A subclass overrides it if rows are dependent given a draw."""
        return self._row_terms(targets).cumsum(-1)

    @final
    def log_prob(self, targets: Tensor) -> Float[Tensor, " group"]:
        """Return log p(y_1 … y_n | x_1 … x_n, D).

        Raises:
            DataError: the shape of the targets differs from ``target_shape``.
        """
        return self.chain_log_prob(targets)[:, -1]

    @final
    def chain_log_prob(self, targets: Tensor, *, at_once: int | None = None) -> Float[Tensor, "group row"]:
        """Return log p(y_1 … y_i | x_1 … x_i, D) for i = 1 … n. It raises the errors of ``log_prob``.

        Args:
            at_once: as in :func:`mean_mixture`.
        """
        return mean_mixture(self._chain_terms(self._checked(targets)), at_once)

    @final
    def draw_log_prob(self, targets: Tensor) -> Float[Tensor, "draw group row"]:
        """Return log p(y_i | x_i, draw) under each draw. It raises the errors of ``log_prob``."""
        return self._row_terms(self._checked(targets))

    @final
    def row_log_prob(self, targets: Tensor, *, at_once: int | None = None) -> Float[Tensor, "group row"]:
        """Return the marginals log p(y_i | x_i, D), as :meth:`chain_log_prob`."""
        return mean_mixture(self._row_terms(self._checked(targets)), at_once)

    @final
    def marginal_log_prob(self, targets: Tensor) -> Float[Tensor, " group"]:
        """Return the log of the product of the marginals, Σ_i log p(y_i | x_i, D)."""
        return self.row_log_prob(targets).sum(-1)

    @final
    def gap(self, targets: Tensor) -> Float[Tensor, " group"]:
        """Return log joint − log product of the marginals, in nats. The gap of one input is 0."""
        return self.log_prob(targets) - self.marginal_log_prob(targets)

    def _checked(self, targets: Tensor) -> Tensor:
        if tuple(targets.shape) != self.target_shape:
            raise DataError(f"targets must have shape {self.target_shape}, got {tuple(targets.shape)}")
        return targets


@final
class JointCategorical(Joint):
    """The joint of classes, from S equally weighted draws of functions. Given a draw, observations are independent.

    Args:
        draw_log_probs: log p(class | row, draw).
        places: the number of the row that is observed in each place of a group, as in :func:`at_places`. None
            means that each row is observed once.
    """

    def __init__(
        self, draw_log_probs: Float[Tensor, "draw group row class"], places: Int[Tensor, "group place"] | None = None
    ) -> None:
        self.draw_log_probs = draw_log_probs
        groups, rows = draw_log_probs.shape[1:3]
        if places is None:
            places = torch.arange(rows, device=draw_log_probs.device).expand(groups, rows)
        self.places, self.draws, self.target_shape = places, len(draw_log_probs), tuple(places.shape)
        self.is_product = self.draws == 1

    def _row_terms(self, targets: Int[Tensor, "group place"]) -> Float[Tensor, "draw group place"]:
        each = torch.arange(len(targets), device=targets.device)[:, None]
        return self.draw_log_probs[:, each, self.places, targets.long()].double()

    def same_class(self) -> Float[Tensor, " group"]:
        """Return P(Y_1 = … = Y_n), the probability that all observations of a group have one class."""
        return self._product(self.draw_log_probs).mean(0).sum(-1)

    def marginal_same_class(self) -> Float[Tensor, " group"]:
        """Return P(Y_1 = … = Y_n) under the product of the marginals."""
        return self._product(mixture(self.draw_log_probs.double())[None])[0].sum(-1)

    def _product(self, log_probs: Float[Tensor, "draw group row class"]) -> Float[Tensor, "draw group class"]:
        """Return Π_i p(class | row of observation i), each row to the power of its observations."""
        observed = F.one_hot(self.places, log_probs.shape[2]).sum(1).double()  # [group, row]
        return torch.einsum("dgrc,gr->dgc", log_probs.double(), observed).exp()

    def at(self, places: Int[Tensor, "group place"] | None) -> "JointCategorical":
        """Return the joint of some of the observations, in a new order.

        Args:
            places: the old place of the observation that stands in each new place. None means all, in their order.
        """
        return self if places is None else JointCategorical(self.draw_log_probs, self.places.gather(1, places))


@final
class JointGaussian(Joint):
    """The joint of regression. It is an equal mixture of Gaussians, one for each draw, with independent outputs.

    Given a draw, output k of a group has the mean ``mean[…, k]`` and the covariance ``covariance[k]`` +
    diag(``variance[…, k]``).

    Args:
        mean: the mean of each target.
        variance: the variance of each target's independent noise.
        covariance: the covariance of the functions' values over the rows, for each output or one for all outputs. None:
            rows are independent given a draw.
    """

    def __init__(
        self,
        mean: Float[Tensor, "draw group row output"],
        variance: Float[Tensor, "draw group row output"],
        covariance: Float[Tensor, "draw group #output row row"] | None = None,
    ) -> None:
        self.mean, self.variance = torch.broadcast_tensors(mean.double(), variance.double())
        self.covariance = None if covariance is None else covariance.double()
        self.draws, self.target_shape = len(mean), tuple(mean.shape[1:])
        self.is_product = self.draws == 1 and covariance is None

    def _row_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        variance = self.variance
        if self.covariance is not None:
            variance = variance + self.covariance.diagonal(dim1=-2, dim2=-1).mT
        squared = (targets.double() - self.mean).square() / variance
        return -0.5 * (squared + variance.log() + _LOG_2PI).sum(-1)

    def _chain_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        if self.covariance is None:
            return super()._chain_terms(targets)
        covariance = self.covariance + torch.diag_embed(self.variance.mT)
        return normal_log_prob(covariance, (targets.double() - self.mean).mT).sum(2).cumsum(-1)


@final
@dataclass(frozen=True)
class GaussianFunctions:
    """A Gaussian over the values of functions at the rows of each group, or an equal mixture of such Gaussians.

    Outputs are independent of each other. Each observation has independent noise, which is added to the target in
    regression, and to the logits before the softmax for classes.

    Attributes:
        mean: the functions' mean.
        covariance: the functions' covariance over the rows of a group, for each output or one for all outputs.
        noise: the variance of each observation's noise: one of each output, or in regression also one of each row.
        classes: whether the functions are logits. Otherwise they are means of targets.
    """

    mean: Float[Tensor, "draw group row output"]
    covariance: Float[Tensor, "draw group #output row row"]
    noise: Float[Tensor, "draw output"] | Float[Tensor, "draw group row output"]
    classes: bool

    @classmethod
    def mixed(cls, parts: "list[GaussianFunctions]") -> "GaussianFunctions":
        """Return the equal mixture of several Gaussians over functions at the same rows."""
        mean, covariance, noise = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "covariance", "noise")
        )
        return cls(mean, covariance, noise, parts[0].classes)

    def sample(self, draws: int, rng: Seed) -> Float[Tensor, "draw group row output"]:
        """Draw at least ``draws`` functions, each at all rows of its group together.

        Each part of a mixture has the same number of draws. Normal numbers are drawn on the CPU, so that all devices
        use the same numbers, and in float32, which is three times as fast.
        """
        root = jittered_root(self.covariance.double())
        each = -(-draws // len(self.mean))
        normal = torch.randn(each, *self.mean.mT.shape, generator=rng.generator()).to(root)
        values = self.mean.double() + (root @ normal[..., None])[..., 0].mT
        return values.flatten(0, 1)

    def joint(self, places: Int[Tensor, "group place"] | None, *, draws: int, rng: Seed) -> Joint:
        """Return the joint of the observations in ``places``, as in :func:`at_places`. None means each row once.

        The joint of regression is a Gaussian in closed form. For classes the softmax is averaged over ``draws``
        functions. Observations of one row share the value of the function, and each has its own noise. Logits are
        kept in float32.
        """
        if not self.classes:
            mean, covariance, noise = self.mean, self.covariance, self.noise
            if noise.ndim == 2:
                noise = noise[:, None, None].expand_as(mean)
            if places is not None:
                noise = torch.take_along_dim(noise, places[None, :, :, None], 2)
                mean = torch.take_along_dim(mean, places[None, :, :, None], 2)
                covariance = torch.take_along_dim(covariance, places[None, :, None, :, None], 3)
                covariance = torch.take_along_dim(covariance, places[None, :, None, None, :], 4)
            return JointGaussian(mean, noise, covariance)
        logits = self.sample(draws, rng.fold("functions")).float().mT  # [draw, group, class, row]
        if not bool((self.noise > 0).any()):
            return JointCategorical(F.log_softmax(logits, dim=-2).mT, places)
        if places is not None:
            logits = logits.gather(3, places[None, :, None].expand(*logits.shape[:3], -1))
        scale = self.noise.float().sqrt().repeat(len(logits) // len(self.noise), 1)[:, None, :, None]
        noise = torch.randn(logits.shape, generator=rng.fold("noise").generator()).to(logits)
        return JointCategorical(
            F.log_softmax(noise.mul_(scale).add_(logits), dim=-2).mT
        )  # In place, since the logits are large.


def mean_mixture(log_terms: Float[Tensor, "draw ..."], at_once: int | None) -> Tensor:
    """Return the log of the mean over draws or, with ``at_once``, the mean of such logs over blocks of draws.

    The log of a mean over S draws is too low on average, by an amount that depends on S. Blocks of ``at_once`` draws
    have the error of ``at_once`` draws, however many draws there are. Draws that fill no block are not used. Fewer
    draws are one block.
    """
    if at_once is None or len(log_terms) < 2 * at_once:
        return mixture(log_terms if at_once is None else log_terms[:at_once])
    whole = log_terms[: len(log_terms) // at_once * at_once].unflatten(0, (-1, at_once))
    return mixture(whole.transpose(0, 1)).mean(0)


def normal_log_prob(covariance: Float[Tensor, "*many n n"], error: Float[Tensor, "*many n"]) -> Tensor:
    """Return log N(e_i; 0, covariance) of each entry of the error given the entries before it [..., n].

    Entry i of L⁻¹e is the deviation of e_i given the entries before it, in standard deviations.
    """
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, error[..., None], upper=False)[..., 0]
    return -0.5 * (white.square() + _LOG_2PI) - root.diagonal(dim1=-2, dim2=-1).log()


def jittered_root(covariance: Float[Tensor, "*many n n"]) -> Float[Tensor, "*many n n"]:
    """Return the Cholesky factor of float64 covariances, which may be singular, with a small jitter on the diagonal.

    Raises:
        LinAlgError: a covariance has a negative eigenvalue that is no rounding error.
    """
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-30)
    identity = torch.eye(covariance.shape[-1], dtype=torch.float64, device=covariance.device)
    for jitter in _JITTERS[:-1]:
        root, failed = torch.linalg.cholesky_ex(covariance + jitter * scale[..., None, None] * identity)
        if not bool(failed.any()):
            return root
    return torch.linalg.cholesky(covariance + _JITTERS[-1] * scale[..., None, None] * identity)


def at_places(inputs: Float[Tensor, "group row ..."], places: Int[Tensor, "group place"] | None) -> Tensor:
    """Return the inputs that stand in each place of a group [group, place, ...].

    Args:
        inputs: the different inputs of each group.
        places: the number, within its group, of the input that stands in each place. An input may stand in several
            places. None means each input once, in order.
    """
    if places is None:
        return inputs
    return inputs[torch.arange(len(inputs), device=inputs.device)[:, None], places]
