"""The protocol of a fitted posterior, and the posterior that is a set of networks.

A posterior's state is named tensors plus a JSON-able config; it is read back on any device, with no
training data at hand. Regression posteriors answer in *standardised* units: ``Predictor`` undoes that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, Protocol, final, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from . import networks
from .artifacts import State, stack, under, unstack
from .config import LATER, read, to_mapping
from .data.transform import Transform
from .errors import Diverged
from .predictive import Categorical, Continuous, Exponential, Gaussian, Predictive
from .recalibration import Recalibration
from .seeds import Seed

Likelihood = Literal["categorical", "gaussian", "gaussian_head"]
_BATCH: Final = 1000  # rows in one forward pass


@runtime_checkable
class Posterior(Protocol):
    """The posterior that every method fits."""

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive of a batch of transformed inputs; ``rng`` is used where it is sampled."""
        ...

    def state(self) -> State:
        """Return tensors and config; ``config["posterior"]`` is the class's key in ``registry.POSTERIORS``."""
        ...

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Posterior":
        """Rebuild the posterior from what :meth:`state` returned, on ``device``."""
        ...


@dataclass(frozen=True)
class NetworkSpec:
    """The description of a network whose weights are drawn: how it is built, and how its outputs are read.

    Attributes:
        network: the architecture.
        input_shape, outputs: the network's interface (outputs counts classes or target columns).
        likelihood: ``categorical``: softmax; ``gaussian``: outputs are means, of fixed
            ``noise_variance``; ``gaussian_head``: twice the outputs, means then log-variances, or, with a
            ``variance_floor``, what the softplus of is the variance above it.
        noise_variance: in standardised units, for ``gaussian``.
        variance_floor: in standardised units, for ``gaussian_head``: the variance is floor + log(1 + exp(output)),
            bounded below and growing linearly (Lakshminarayanan et al. 2017, section 2.2.1); null: exp(output).
    """

    network: networks.NetworkConfig
    input_shape: tuple[int, ...]
    outputs: int
    likelihood: Likelihood
    noise_variance: float = 1.0
    variance_floor: float | None = field(default=None, metadata=LATER)

    def build(self, rng: Seed) -> networks.Network:
        """Build the network, with the fresh weights of ``rng``."""
        width = 2 * self.outputs if self.likelihood == "gaussian_head" else self.outputs
        return networks.build(self.network, self.input_shape, width, rng=rng)

    def predictive(self, outputs: Tensor) -> Predictive:
        """Read network outputs [draw, batch, output] as a predictive."""
        if self.likelihood == "categorical":
            return Categorical(F.log_softmax(outputs, dim=-1))
        if self.likelihood == "gaussian":
            return Gaussian(outputs, torch.full_like(outputs, self.noise_variance))
        mean, free = outputs.chunk(2, dim=-1)
        if self.variance_floor is None:
            return Gaussian(mean, free.exp())
        return Gaussian(mean, self.variance_floor + F.softplus(free))


@final
class NetworkDraws:
    """A posterior of S networks, equally weighted: a point estimate (S = 1), an ensemble, a Markov chain's draws.

    Attributes:
        weights: every entry of the network's ``state_dict``, stacked [draw, ...], filters in the memory order that the
            network computes fastest in.
    """

    key = "network_draws"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor]) -> None:
        """Take every entry of the network's ``state_dict`` as ``weights``, stacked [draw, ...]."""
        self._skeleton = spec.build(Seed(0)).eval().to(next(iter(weights.values())).device)
        self.spec, self.weights = spec, networks.in_order(weights, networks.fastest_order(self._skeleton))
        trunks = under("trunk.", self.weights).values()
        self._one_trunk = all(bool((stacked == stacked[:1]).all()) for stacked in trunks)

    @classmethod
    def of(cls, spec: NetworkSpec, draws: list[dict[str, Tensor]]) -> "NetworkDraws":
        """Stack draws, each a ``state_dict`` of the network."""
        return cls(spec, stack(draws))

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Mix the draws; ``rng`` is not used. A trunk that all draws have in common is computed once."""
        draws = unstack(self.weights)
        if self._one_trunk:
            features = functional_call(self._skeleton.trunk, under("trunk.", draws[0]), (inputs,))
            outputs = [functional_call(self._skeleton.head, under("head.", draw), (features,)) for draw in draws]
        else:
            outputs = [functional_call(self._skeleton, draw, (inputs,)) for draw in draws]
        return self.spec.predictive(torch.stack(outputs))

    def state(self) -> State:
        stored = {name: value.contiguous() for name, value in self.weights.items()}
        return State(stored, {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "NetworkDraws":
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, {k: v.to(device) for k, v in state.tensors.items()})


@final
class Predictor:
    """A posterior with the transform of its data: raw inputs in, original units out.

    Attributes:
        recalibration: what was learnt from rows that the fit did not see; None where there were none.
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

    def predict(self, raw: Any, *, rng: Seed, device: torch.device | str = "cpu") -> Predictive:
        """Predict raw rows; regression is rescaled to the targets' own units."""
        return self.own_units(self.transformed(raw, rng=rng, device=device))

    def transformed(self, raw: Any, *, rng: Seed, device: torch.device | str = "cpu") -> Predictive:
        """Predict raw rows in the units of the transformed targets, before any recalibration."""
        return self.posterior.predict(self.transform.inputs(raw, device), rng=rng)

    def own_units(self, predictive: Predictive) -> Predictive:
        """Bring a predictive of transformed targets to their own units."""
        if self.transform.shift is None or self.transform.scale is None:
            return predictive
        rescaled = predictive.rescale(self.transform.shift, self.transform.scale)
        if not self.transform.log:
            return rescaled
        assert isinstance(rescaled, Continuous)
        return Exponential(rescaled)

    def batches(
        self, raw: np.ndarray, batch: int = _BATCH, *, rng: Seed, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of raw rows in the targets' own units, as :meth:`transformed_batches`."""
        for rows, predictive in self.transformed_batches(raw, batch, rng=rng, device=device):
            yield rows, self.own_units(predictive)

    def transformed_batches(
        self, raw: np.ndarray, batch: int = _BATCH, *, rng: Seed, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of raw rows, in order, with the rows that it is of.

        Sizes are at most ``batch`` and differ by at most one, so that a posterior that looks at its batch answers the
        same every time. Every batch has the same address, so that draw s is the same network in all of them.

        Raises:
            Diverged: a prediction is not finite.
        """
        count = max(1, -(-len(raw) // batch))
        for start, stop in pairwise(np.linspace(0, len(raw), count + 1).astype(int)):
            rows = slice(int(start), int(stop))
            predictive = self.transformed(raw[rows], rng=rng.fold("predict"), device=device)
            if not bool(torch.isfinite(predictive.mean).all()):
                raise Diverged("the posterior's predictions must be finite: its fit diverged, make it again")
            yield rows, predictive


def prediction_address(seed: int, run: str, split: int, member: int) -> Seed:
    """Return the address of a posterior's draws: one for its scores, new rows, searches and the served model."""
    return Seed(seed).fold("evaluate", run, split, member)
