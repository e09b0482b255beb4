"""A posterior that is a set of networks, and a predictor: a posterior with the transform of its data.

A posterior's state is named tensors plus a JSON-able config; it can be loaded on any device, without the training data.
Regression posteriors predict in *standardised* units; ``Predictor`` converts to the targets' own units.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from torch.func import functional_call

from . import networks
from .artifacts import State, stack, under, unstack
from .config import LATER, read, to_mapping
from .data.examples import Task
from .data.transform import Transform
from .derived_predictive import Exponential, Mixture, for_logarithms
from .errors import Diverged, require
from .joint_predictive import DRAWS, Joint
from .joint_regression import JointInOwnUnits
from .networks.base import Replicas
from .networks.last_layer import LastLayer, of_networks
from .posterior_protocols import FeaturesPosterior as FeaturesPosterior
from .posterior_protocols import GaussianPosterior as GaussianPosterior
from .posterior_protocols import JointPosterior as JointPosterior
from .posterior_protocols import Posterior as Posterior
from .posterior_protocols import grad_of_inputs as grad_of_inputs
from .posterior_protocols import joint as joint
from .predictive import Categorical, Continuous, Gaussian, Predictive
from .recalibration import Recalibration
from .seeds import Seed
from .student_t import StudentT, degrees_of

Likelihood = Literal["categorical", "gaussian", "gaussian_head", "student_head"]
Tails = Literal["gaussian", "student"]
_BATCH: Final = 1000  # rows in one forward pass


def head_of(task: Task, tails: Tails = "gaussian") -> Likelihood:
    """Return the likelihood of a network that predicts its own noise.

    Raises:
        ConfigError: ``tails`` is ``student`` for classes.
    """
    require(task == "regression" or tails == "gaussian", "tails", "must be gaussian: classes have no noise", tails)
    if task == "classification":
        return "categorical"
    return "student_head" if tails == "student" else "gaussian_head"


@dataclass(frozen=True)
class NetworkSpec:
    """The description of a network whose weights are drawn: its architecture and its likelihood.

    Attributes:
        network: the architecture.
        input_shape: the shape of one input.
        outputs: the number of classes or target columns.
        likelihood: ``categorical``: softmax of the outputs; ``gaussian``: the outputs are means, with the fixed
            ``noise_variance``; ``gaussian_head``: the network has twice as many outputs, means and then one output for
            each variance (see ``variance_floor``); ``student_head``: it has three times as many, means, outputs for
            squared scales, as variances, and outputs for degrees of freedom (:func:`degrees_of`).
        noise_variance: the variance of ``gaussian``, in standardised units: one, or one for each target column; of
            ``gaussian_head`` without a floor, the variance where the output is 0.
        variance_floor: the least variance of ``gaussian_head``, in standardised units. The variance is floor + log(1 +
            exp(output)), bounded below and growing linearly (Lakshminarayanan et al. 2017, section 2.2.1). With null
            the variance is noise_variance·exp(output).
    """

    network: networks.NetworkConfig
    input_shape: tuple[int, ...]
    outputs: int
    likelihood: Likelihood
    noise_variance: float | tuple[float, ...] = 1.0
    variance_floor: float | None = field(default=None, metadata=LATER)

    def build(self, rng: Seed) -> networks.Network:
        """Build the network, with weights initialised from ``rng``."""
        return networks.build(self.network, self.input_shape, self.width, rng=rng)

    @property
    def width(self) -> int:
        """Return the number of the network's outputs."""
        return self.outputs * {"gaussian_head": 2, "student_head": 3}.get(self.likelihood, 1)

    @property
    def one_noise(self) -> float:
        """Return the one variance of ``gaussian`` for all target columns, as chains have it."""
        assert not isinstance(self.noise_variance, tuple)
        return self.noise_variance

    def require_gaussian(self, why: str) -> None:
        """Raise ConfigError if the noise is a Student t; ``why`` is the reason, after "must be gaussian"."""
        require(self.likelihood != "student_head", "tails", f"must be gaussian in the input: {why}", "student")

    def noise_of(self, means: Tensor) -> Tensor:
        """Return the variance of ``gaussian`` for each of ``means`` [..., output]."""
        return torch.as_tensor(self.noise_variance, dtype=torch.float64).to(means).expand_as(means).contiguous()

    def predictive(self, outputs: Tensor) -> Predictive:
        """Return the predictive of network outputs [draw, batch, output]."""
        if self.likelihood == "categorical":
            return Categorical(F.log_softmax(outputs, dim=-1))
        if self.likelihood == "gaussian":
            return Gaussian(outputs, self.noise_of(outputs))
        mean, free, *tails = outputs.split(self.outputs, dim=-1)
        if self.variance_floor is None:
            variance = free.exp() if self.noise_variance == 1 else self.one_noise * free.exp()
        else:
            variance = self.variance_floor + F.softplus(free)
        return StudentT(mean, variance, degrees_of(tails[0])) if tails else Gaussian(mean, variance)


@final
class NetworkDraws:
    """A posterior of S networks, equally weighted: a point estimate (S = 1), an ensemble, a Markov chain's draws.

    Attributes:
        weights: every entry of the network's ``state_dict``, stacked [draw, ...]; filters are in the network's fastest
            memory order, from the first prediction on.
    """

    key = "network_draws"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor], network: networks.Network | None = None) -> None:
        """Create the posterior of ``weights``, the entries of the network's ``state_dict`` stacked [draw, ...].

        Args:
            network: a network of ``spec`` on the device of ``weights``; its own weights are not used. None builds
                a new network.
        """
        device = next(iter(weights.values())).device
        skeleton = (spec.build(Seed(0)).to(device) if network is None else network).eval()
        self.spec, self._weights, self._ordered = spec, weights, False
        self._networks = Replicas(skeleton)
        trunks = under("trunk.", weights).values()
        self._one_trunk = all(stacked.stride(0) == 0 or bool((stacked == stacked[:1]).all()) for stacked in trunks)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the weights. They are ordered here, and not in a fit, which stores them in their plain order."""
        if not self._ordered:
            self._weights = networks.in_order(self._weights, networks.fastest_order(self._networks.module))
            self._ordered = True
        return self._weights

    @classmethod
    def of(cls, spec: NetworkSpec, draws: list[dict[str, Tensor]]) -> "NetworkDraws":
        """Stack draws, each a ``state_dict`` of the network."""
        return cls(spec, stack(draws))

    @grad_of_inputs
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the mixture of the draws; ``rng`` is not used. A trunk that all draws share is computed once."""
        draws = unstack(self.weights)
        with self._networks.one() as network:
            if self._one_trunk:
                features = functional_call(network.trunk, under("trunk.", draws[0]), (inputs,))
                outputs = [functional_call(network.head, under("head.", draw), (features,)) for draw in draws]
            else:
                outputs = [functional_call(network, draw, (inputs,)) for draw in draws]
        return self.spec.predictive(torch.stack(outputs))

    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer | None:
        """Return the mean last layer of the draws at transformed inputs; None if the heads are not linear."""
        return of_networks(self._networks, self.weights, inputs)

    def state(self) -> State:
        stored = {name: value.contiguous() for name, value in self._weights.items()}
        return State(stored, {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "NetworkDraws":
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, {k: v.to(device) for k, v in state.tensors.items()})


@final
class Predictor:
    """A posterior with the transform of its data. It predicts raw inputs in the targets' original units.

    Attributes:
        recalibration: the recalibration on rows that the fit did not use; None if there were no such rows.
    """

    def __init__(
        self,
        posterior: Posterior,
        transform: Transform,
        classes: tuple[str, ...] = (),
        recalibration: Recalibration | None = None,
    ) -> None:
        self.posterior, self.transform, self.classes = posterior, transform, classes
        self.recalibration = recalibration

    def predict(self, raw: np.ndarray | Tensor, *, rng: Seed, device: torch.device | str = "cpu") -> Predictive:
        """Predict raw rows; for regression, see :meth:`final`."""
        return self.final(self.transformed(raw, rng=rng, device=device))

    def transformed(self, raw: np.ndarray | Tensor, *, rng: Seed, device: torch.device | str = "cpu") -> Predictive:
        """Predict raw rows in the units of the transformed targets, before any recalibration."""
        return self.posterior.predict(self.transform.inputs(raw, device), rng=rng)

    def joint(
        self,
        raw: np.ndarray,
        *,
        rng: Seed,
        device: torch.device | str = "cpu",
        draws: int = DRAWS,
        places: Int[Tensor, "group place"] | None = None,
    ) -> Joint:
        """Return the joint of each group of raw rows [group, row, ...], for targets in their own units.

        See :func:`joint` for the arguments. A posterior's own draws equal the draws of :meth:`batches`.
        """
        inputs = self.transform.inputs(raw.reshape(-1, *raw.shape[2:]), device).unflatten(0, raw.shape[:2])
        return self.joint_in_own_units(
            joint(self.posterior, inputs, rng=rng.fold("predict"), draws=draws, places=places)
        )

    def joint_in_own_units(self, transformed: Joint) -> Joint:
        """Convert a joint of transformed targets to the targets' own units."""
        if self.transform.shift is None or self.transform.scale is None:
            return transformed
        return JointInOwnUnits(transformed, self.transform.shift, self.transform.scale, self.transform.log)

    def final(self, transformed: Predictive) -> Predictive:
        """Recalibrate a predictive of regression, if there is a recalibration, and convert it to the own units.

        The probabilities of classes stay as they are: a temperature applies to the mixture of draws, so that the draws'
        disagreement would be lost.
        """
        rescaled = self._rescaled(transformed)
        if self.recalibration is None or not isinstance(rescaled, Continuous):
            return self._exponential(rescaled)
        # after rescaling, all widths share one base
        return self._exponential(self.recalibration.apply(rescaled, logs=self.transform.log))

    def own_units(self, predictive: Predictive) -> Predictive:
        """Convert a predictive of transformed targets to the targets' own units."""
        return self._exponential(self._rescaled(predictive))

    def _rescaled(self, predictive: Predictive) -> Predictive:
        """Convert a predictive of transformed targets to the targets' own units, or to their logarithms.

        A Student t of logarithms becomes a mixture of Gaussians, whose exponential has moments.
        """
        if self.transform.shift is None or self.transform.scale is None:
            return predictive
        if self.transform.log:
            predictive = for_logarithms(predictive, self.transform.scale)
        return predictive.rescale(self.transform.shift, self.transform.scale)

    def _exponential(self, predictive: Predictive) -> Predictive:
        """Convert a predictive of logarithms, if the transform takes logarithms."""
        if self.transform.shift is None or not self.transform.log:
            return predictive
        assert isinstance(predictive, Continuous)
        if isinstance(predictive, Mixture):  # each part has closed moments, or shares the integrals of its base
            return Mixture([Exponential(part) for part in predictive.parts], predictive.shares)
        return Exponential(predictive)

    def batches(
        self, raw: np.ndarray, batch: int = _BATCH, *, rng: Seed, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[slice, Predictive]]:
        """Yield the :meth:`final` predictive of each batch of raw rows; see :meth:`transformed_batches`."""
        for rows, predictive in self.transformed_batches(raw, batch, rng=rng, device=device):
            yield rows, self.final(predictive)

    def transformed_batches(
        self, raw: np.ndarray, batch: int = _BATCH, *, rng: Seed, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[slice, Predictive]]:
        """Yield the slice of the rows and the predictive of each batch of raw rows, in order.

        Sizes are at most ``batch`` and differ by at most one, so that predictions that depend on the batch are
        reproducible. Every batch has the same address, so that draw s is the same network in all batches.

        Raises:
            Diverged: a prediction is not finite.
        """
        count = max(1, -(-len(raw) // batch))
        for start, stop in pairwise(np.linspace(0, len(raw), count + 1).astype(int)):
            rows = slice(int(start), int(stop))
            predictive = self.transformed(raw[rows], rng=rng.fold("predict"), device=device)
            if not bool(torch.isfinite(predictive.mean).all()):
                raise Diverged("the posterior's predictions must be finite: its fit diverged, lower its learning rate")
            yield rows, predictive


def prediction_address(seed: int, run: str, split: int, member: int) -> Seed:
    """Return the address of a posterior's draws, the same for scores, new rows, searches and the served model."""
    return Seed(seed).fold("evaluate", run, split, member)
