"""The teachers of a student: stored draws of networks, any stored posterior, or chains that run beside the student.

At each step of the student a teacher gives a predictive for a batch of inputs, in transformed units. The predictive may
change from step to step, since the student finds its mean over steps: the student's fixed point is E p(y | x).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Int
from torch import Tensor
from torch.func import functional_call

from ..artifacts import under, unstack
from ..data.fitdata import FitData
from ..errors import ConfigError, require
from ..networks import Network, NetworkConfig
from ..networks.flat import FlatNetwork
from ..posterior import NetworkDraws, Posterior
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed
from ..sgmcmc.sampler import NetworkChains, SamplerConfig
from ..sgmcmc.target import TargetConfig
from ..student_t import StudentT


@dataclass(frozen=True)
class OfflineConfig:
    """The mode in which the student imitates a stored posterior, ``teacher/<run>`` or ``student/<run>``.

    Attributes:
        max_draws: the largest number of draws that the student imitates, evenly spaced among the draws of all chains of
            ``teacher/<run>``. null: all draws.
    """

    name: Literal["offline"]
    max_draws: int | None

    def __post_init__(self) -> None:
        require(self.max_draws is None or self.max_draws > 0, "max_draws", "must be > 0 or null", self.max_draws)


@dataclass(frozen=True)
class OnlineConfig:
    """The mode in which the student imitates chains that run beside it, without storing their draws.

    A chain moves slowly, so that a student of one chain ends at the chain's last place and not at the posterior's mean.
    Two averages bring the student there: each step's loss is a mean over several chains, and the student's weights are
    averaged over its last steps.

    Attributes:
        target: the posterior that the chains sample.
        sampler: the chains' kernel, step size and batch.
        burn_in: the number of steps that each chain takes before the student's first step.
        chains: C, the number of chains. Each step of the student sees all of them, so that a student that follows the
            chains finds (1 − 1/C) of the posterior's variance; with one chain it finds no variance.
        chain_steps: the number of steps that each chain takes for one step of the student.
        average: the share of the student's steps, at the end, over which weights are averaged. null: the student keeps
            its last weights. This share spans average × steps × chain_steps steps of a chain, which should be many
            autocorrelation times of the chain.
    """

    name: Literal["online"]
    target: TargetConfig
    sampler: SamplerConfig
    burn_in: int
    chains: int
    chain_steps: int
    average: float | None

    def __post_init__(self) -> None:
        require(self.burn_in >= 0, "burn_in", "must be >= 0", self.burn_in)
        rule, batch_norm = "must be refused: online chains start without a trajectory", self.target.batch_norm
        require(batch_norm == "refused", "target.batch_norm", rule, batch_norm)
        require(self.chains > 0, "chains", "must be > 0", self.chains)
        require(self.chain_steps > 0, "chain_steps", "must be > 0", self.chain_steps)
        share = self.average is None or 0 < self.average <= 1
        require(share, "average", "must be in (0, 1] or null", self.average)


def validate_sources(mode: OfflineConfig | OnlineConfig, sources: Mapping[Any, Any]) -> None:
    """Check that an offline student has one stored posterior as its input, and an online student the data alone.

    Raises:
        ConfigError: a student has another input.
    """
    kinds = [kind for kind in sources if sources[kind]]
    if isinstance(mode, OnlineConfig):
        rule = "must be prepare/<data set> for the mode online, which runs its own chains"
        require(not kinds, "input", rule, ", ".join(kinds))
    else:
        rule = "must be teacher/<run> or student/<run> for the mode offline"
        require(len(kinds) == 1, "input", rule, " and ".join(kinds) or "the data alone")


class Teacher(ABC):
    """A source of predictives, one for each step of a student."""

    @abstractmethod
    def predictive(self, step: int, inputs: Tensor) -> Predictive:
        """Return the predictive that the student imitates in step ``step``; call it once for each step, in order."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a later step needs; a stored posterior has none."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of :meth:`state`."""
        assert not state


class FunctionTeacher(Teacher):
    """A teacher that holds several functions and can evaluate each of them at any inputs.

    Attributes:
        count: the number of functions.
    """

    count: int

    @abstractmethod
    def functions(self, inputs: Tensor, index: Int[Tensor, " draw"]) -> Categorical | Gaussian:
        """Return a predictive that has the functions ``index`` as draws; every call uses the same functions."""


def _imitable(predictive: Predictive) -> Categorical | Gaussian:
    """Return the draws as a student imitates them; a Student t as the Gaussian of its mean and variance."""
    if isinstance(predictive, StudentT):
        return Gaussian(predictive.draw_mean, predictive.draw_variance)
    assert isinstance(predictive, Categorical | Gaussian), "a teacher of several functions"
    return predictive


@final
class StoredDraws(FunctionTeacher):
    """A teacher that is a set of networks; each step imitates one of them, chosen uniformly.

    Attributes:
        spec: the description of the networks.
        draws: the weights of each network, as a ``state_dict``.
    """

    def __init__(self, posterior: NetworkDraws, rng: Seed) -> None:
        self.spec, self._rng = posterior.spec, rng
        self.draws = unstack(posterior.weights)
        self._skeleton = posterior.spec.build(Seed(0)).eval().to(next(iter(posterior.weights.values())).device)
        self._flat = FlatNetwork(self._skeleton)
        vectors = [self._flat.flat(draw) for draw in self.draws] if self._flat.is_perceptron else None
        self._vectors = None if vectors is None else torch.stack(vectors)  # perceptrons are computed together
        self.count = len(self.draws)

    def predictive(self, step: int, inputs: Tensor) -> Predictive:
        generator = self._rng.fold("draw", step).generator()
        return self.functions(inputs, torch.randint(self.count, (1,), generator=generator))

    @torch.no_grad()
    def functions(self, inputs: Tensor, index: Int[Tensor, " draw"]) -> Categorical | Gaussian:
        if self._vectors is not None:
            outputs = self._flat.each(self._vectors[index], inputs.expand(len(index), *inputs.shape))
        else:
            outputs = torch.stack([functional_call(self._skeleton, self.draws[i], (inputs,)) for i in index.tolist()])
        return _imitable(self.spec.predictive(outputs))


@final
class StoredPosterior(FunctionTeacher):
    """A teacher that is any posterior; each step imitates its whole predictive.

    If a prediction samples weights or masks, each step samples new ones. So the student's fixed point is the predictive
    of infinitely many draws, and not the mixture of one prediction's few draws. The functions are the draws of one
    prediction.
    """

    def __init__(self, posterior: Posterior, data: FitData, rng: Seed) -> None:
        self._posterior, self._rng = posterior, rng
        inputs, _ = data.rows("train", data.device).slice(0, 1)
        predictive = self._one_prediction(inputs)
        self.count = 1
        if isinstance(predictive, Categorical):
            self.count = len(predictive.draw_log_probs)
        elif isinstance(predictive, Gaussian | StudentT):
            self.count = len(predictive.draw_mean)

    @torch.no_grad()
    def predictive(self, step: int, inputs: Tensor) -> Predictive:
        return self._posterior.predict(inputs, rng=self._rng.fold("predict", step))

    def functions(self, inputs: Tensor, index: Int[Tensor, " draw"]) -> Categorical | Gaussian:
        predictive, index = _imitable(self._one_prediction(inputs)), index.to(inputs.device)
        if isinstance(predictive, Categorical):
            return Categorical(predictive.draw_log_probs[index])
        return Gaussian(predictive.draw_mean[index], predictive.draw_variance[index])

    @torch.no_grad()
    def _one_prediction(self, inputs: Tensor) -> Predictive:
        return self._posterior.predict(inputs, rng=self._rng.fold("functions"))


@final
class LivingChains(Teacher):
    """The teacher of Algorithm 1: chains that move with the student; its state is the state of the chains."""

    def __init__(self, data: FitData, config: OnlineConfig, rng: Seed) -> None:
        rngs = [rng.fold("chain", c) for c in range(config.chains)]
        self._chains = NetworkChains([data] * config.chains, config.target, config.sampler, rngs, config.burn_in)
        self._burn_in, self._every = config.burn_in, config.chain_steps
        self._state, self._done = self._chains.begin(), 0

    @torch.no_grad()
    def predictive(self, step: int, inputs: Tensor) -> Predictive:
        for done, state in self._chains.steps(self._state, self._done, self._burn_in + (step + 1) * self._every):
            self._done, self._state = done, state
        target = self._chains.target
        return target.spec.predictive(target.network.outputs(self._state["position"], inputs))

    def state(self) -> dict[str, Tensor]:
        return {**self._state, "done": torch.tensor(self._done)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        device = self._chains.target.device
        self._state = {name: value.to(device) for name, value in state.items() if name != "done"}
        self._done = int(state["done"])


def stored(posterior: Posterior, data: FitData, rng: Seed) -> FunctionTeacher:
    """Return a stored posterior as a teacher of a student on ``data``.

    Raises:
        ConfigError: the posterior has another task, or other inputs or outputs, than ``data``.
    """
    if isinstance(posterior, NetworkDraws):
        shape = posterior.spec.input_shape
        require(shape == data.input_shape, "input", f"must be of inputs {data.input_shape}", shape)
        teacher: FunctionTeacher = StoredDraws(posterior, rng)
    else:
        teacher = StoredPosterior(posterior, data, rng)
    inputs, _ = data.rows("train", data.device).slice(0, 1)
    predictive = teacher.predictive(0, inputs)
    task = "classification" if isinstance(predictive, Categorical) else "regression"
    outputs = predictive.mean.shape[-1]
    if (task, outputs) != (data.task, data.outputs):
        rule = f"must be a posterior of {data.task} with {data.outputs} outputs"
        raise ConfigError("input", rule, f"{task} with {outputs}")
    return teacher


def start_at_a_draw(teacher: FunctionTeacher, network: Network, architecture: NetworkConfig, rng: Seed) -> None:
    """Load a draw of the teacher, chosen uniformly, into ``network``, the network of a student of ``architecture``.

    A head of another size than the draw's keeps its own weights.

    Raises:
        ConfigError: the teacher is not a set of networks of that architecture.
    """
    if not isinstance(teacher, StoredDraws) or teacher.spec.network != architecture:
        rule = "must be fresh unless the teacher is a set of networks of the student's architecture"
        raise ConfigError("start", rule, "draw")
    fresh, draw = network.state_dict(), teacher.draws[rng.integer() % teacher.count]
    same_head = all(fresh[f"head.{name}"].shape == value.shape for name, value in under("head.", draw).items())
    network.load_state_dict(fresh | {k: v for k, v in draw.items() if same_head or not k.startswith("head.")})
