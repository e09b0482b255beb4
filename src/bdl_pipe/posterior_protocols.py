"""The interfaces of fitted posteriors, and the joint distribution that follows from each of them."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .artifacts import State
from .errors import DataError
from .joint_predictive import DRAWS, Joint, JointCategorical, JointGaussian, at_places
from .joint_regression import JointContinuous
from .networks.last_layer import LastLayer
from .predictive import Categorical, Gaussian, Predictive
from .seeds import Seed

_P = ParamSpec("_P")
_T = TypeVar("_T")


def grad_of_inputs(answer: Callable[Concatenate[Any, Tensor, _P], _T]) -> Callable[Concatenate[Any, Tensor, _P], _T]:
    """Decorate a posterior's answer: it records a graph only if its inputs require a gradient.

    Acquisition functions are maximised by their gradient with respect to the inputs.
    """

    @wraps(answer)
    def call(self: Any, inputs: Tensor, /, *args: _P.args, **more: _P.kwargs) -> _T:
        with torch.set_grad_enabled(torch.is_grad_enabled() and inputs.requires_grad):
            return answer(self, inputs, *args, **more)

    return call


@runtime_checkable
class Posterior(Protocol):
    """The interface of the posteriors that methods fit."""

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive of a batch of transformed inputs; ``rng`` is used if the predictive is sampled."""
        ...

    def state(self) -> State:
        """Return tensors and config; ``config["posterior"]`` is the class's key in ``registry.POSTERIORS``."""
        ...

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Posterior":
        """Rebuild the posterior from its :meth:`state`, on ``device``."""
        ...


@runtime_checkable
class FeaturesPosterior(Protocol):
    """A posterior of networks with a last layer on features, which scores of unfamiliar inputs need."""

    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer | None:
        """Return the features and logits of transformed inputs; ``rng`` draws trunks. None if there are no features."""
        ...


@runtime_checkable
class Functions(Protocol):
    """A Gaussian over the values of functions at the rows of each group, such as ``GaussianFunctions``."""

    def joint(self, places: Int[Tensor, "group place"] | None, *, draws: int, rng: Seed) -> Joint:
        """Return the joint of the observations in ``places``; see :func:`joint` for the arguments."""
        ...


@runtime_checkable
class GaussianPosterior(Protocol):
    """A posterior that holds a Gaussian over functions, or an equal mixture of several."""

    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> Functions:
        """Return the Gaussian over the functions' values at the rows of each group; ``rng`` draws a mixture's parts."""
        ...


@runtime_checkable
class OnlinePosterior(Protocol):
    """A posterior that further rows update in closed form, with the features and the noise of the fit."""

    def learnt(self, inputs: Tensor, targets: Tensor, *, keep: float) -> State:
        """Return the state of the posterior given further rows, as from a fit of the layer to all rows.

        Args:
            inputs: transformed inputs [row, ...], the oldest first.
            targets: transformed targets [row, output], or labels [row].
            keep: what is left of the weight of all earlier rows, and of the prior, after each row, in (0, 1]; 1 forgets
                nothing.

        Raises:
            UserError: a setting of this fit has no closed form.
        """
        ...


@runtime_checkable
class JointPosterior(Protocol):
    """A posterior with its own joint of several inputs, not from a Gaussian and not from its predictive's draws."""

    def joint(
        self,
        inputs: Float[Tensor, "group row ..."],
        *,
        places: Int[Tensor, "group place"] | None,
        draws: int,
        rng: Seed,
    ) -> Joint:
        """Return the joint of each group of transformed inputs; see :func:`joint` for the arguments."""
        ...


def joint(
    posterior: Posterior,
    inputs: Float[Tensor, "group row ..."],
    *,
    rng: Seed,
    draws: int = DRAWS,
    places: Int[Tensor, "group place"] | None = None,
) -> Joint:
    """Return the joint distribution of the targets of each group of transformed inputs, in transformed units.

    A posterior of networks, masks or weights uses its predictive's draws, each of which is one function for all inputs.
    A posterior with a Gaussian over functions is exact in regression; for classes the softmax is averaged over
    ``draws`` functions, drawn jointly at the rows of each group. For a posterior of one draw without such a Gaussian
    the joint is the product of the marginals (``Joint.is_product``), since inputs share no random function.

    Args:
        draws: the number of functions to draw if the posterior has no draws of its own.
        places: the observations of each group, see :func:`~bdl_pipe.joint_predictive.at_places`. None means one
            observation of each input. Several observations of one input cost one prediction if the posterior holds
            functions.

    Raises:
        DataError: a place is not the number of a row of its group.
    """
    if places is not None and len(wrong := places[(places < 0) | (places >= inputs.shape[1])]):
        last = inputs.shape[1] - 1
        raise DataError(f"places must be numbers of rows of a group, 0 … {last}, got {int(wrong[0])}")
    if isinstance(posterior, JointPosterior):
        return posterior.joint(inputs, places=places, draws=draws, rng=rng)
    if isinstance(posterior, GaussianPosterior):
        return posterior.functions(inputs, rng=rng).joint(places, draws=draws, rng=rng)
    observed = at_places(inputs, places)
    predictive, shape = posterior.predict(observed.flatten(0, 1), rng=rng), observed.shape[:2]
    if isinstance(predictive, Categorical):
        return JointCategorical(predictive.draw_log_probs.unflatten(1, shape))
    if isinstance(predictive, Gaussian):
        return JointGaussian(predictive.draw_mean.unflatten(1, shape), predictive.draw_variance.unflatten(1, shape))
    draws = len(predictive.draw_log_prob(predictive.mean))
    return JointContinuous(predictive, (*shape, predictive.mean.shape[-1]), draws)
