"""The method ``dark_knowledge``: one network that imitates the teacher's posterior predictive.

    w_{t+1} = w_t − ρ_t [(1/M) Σ_{x′ in D′} ∇_w L̂(w, θ | x′) + γ w_t]        (Algorithm 1)

Two modes, one loss. *offline*: θ is one of the teacher stage's stored draws, chosen uniformly at each
step. *online*: Algorithm 1 itself: θ is the current position of an SGLD chain that moves one step per
student step and stores nothing; ``burn_in`` chain steps come before the first. With infinitely many
draws both descend the same expected loss. Our deviations: ρ_t and the update rule are the optimiser's
(γ is its ``weight_decay``), and the student's batch size is its own.
The student's state is a ``NetworkDraws`` of one draw; regression students answer in standardised units.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from ..artifacts import State, under, unstack
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require
from ..method import Default, Inputs, Method, StageSpec
from ..networks import NetworkConfig, dropout_masks
from ..posterior import Likelihood, NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..sgmcmc.method import TargetConfig, average, network_chains
from ..sgmcmc.sampler import SamplerConfig
from ..training.loop import Objective, OptimiserConfig, run_steps
from . import inputs as student_inputs
from .losses import classification_loss, regression_loss


@dataclass(frozen=True)
class OfflineConfig:
    """The mode that takes θ from stored draws: ``max_draws`` of all chains, evenly spaced; null: all."""

    name: Literal["offline"]
    max_draws: int | None

    def __post_init__(self) -> None:
        require(self.max_draws is None or self.max_draws > 0, "max_draws", "must be > 0 or null", self.max_draws)


@dataclass(frozen=True)
class OnlineConfig:
    """The mode that takes θ from a chain that runs alongside.

    It has the chain's posterior and sampler, and its steps before the student's first.
    """

    name: Literal["online"]
    target: TargetConfig
    sampler: SamplerConfig
    burn_in: int

    def __post_init__(self) -> None:
        require(self.burn_in >= 0, "burn_in", "must be >= 0", self.burn_in)


@dataclass(frozen=True)
class DarkKnowledgeConfig:
    """The section ``methods.dark_knowledge`` of params.yaml.

    Attributes:
        network: the student's architecture.
        mode: where θ comes from.
        inputs: the student data generator.
        batch: student inputs per step.
        steps: student steps.
        optimiser: ρ_t, and γ as ``weight_decay``.
    """

    network: NetworkConfig
    mode: OfflineConfig | OnlineConfig
    inputs: student_inputs.InputsConfig
    batch: int
    steps: int
    optimiser: OptimiserConfig

    def __post_init__(self) -> None:
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.steps > 0, "steps", "must be > 0", self.steps)


class Teacher(ABC):
    """A source of each step's θ."""

    spec: NetworkSpec

    @abstractmethod
    def outputs(self, step: int, inputs: Tensor) -> Tensor:
        """Return f(x | θ) [batch, output] of step ``step``'s θ; called once a step, in order."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what a later step depends on."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what ``state`` returned."""


@final
class StoredDraws(Teacher):
    """The offline teacher: a draw of the stored ones per step."""

    def __init__(self, posterior: NetworkDraws, rng: Seed) -> None:
        self.spec, self._rng = posterior.spec, rng
        self._draws = unstack(posterior.weights)
        self._skeleton = posterior.spec.build(Seed(0)).eval().to(next(iter(posterior.weights.values())).device)

    @torch.no_grad()
    def outputs(self, step: int, inputs: Tensor) -> Tensor:
        chosen = int(torch.randint(len(self._draws), (), generator=self._rng.fold("draw", step).generator()))
        return functional_call(self._skeleton, self._draws[chosen], (inputs,))

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        pass


@final
class LivingChain(Teacher):
    """The online teacher: a chain that moves once a step; its state is the chain's."""

    def __init__(self, data: FitData, config: OnlineConfig, rng: Seed) -> None:
        self._chain = network_chains([data], config.target, config.sampler, [rng], config.burn_in)
        self.spec, self._burn_in = self._chain.target.spec, config.burn_in
        self._state, self._done = self._chain.begin(), 0

    def outputs(self, step: int, inputs: Tensor) -> Tensor:
        for done, state in self._chain.steps(self._state, self._done, self._burn_in + step + 1):
            self._done, self._state = done, state
        return self._chain.target.outputs(self._state["position"][0], inputs)

    def state(self) -> dict[str, Tensor]:
        return self._chain.saved(self._state) | {"done": torch.tensor(self._done)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        saved = dict(state)
        self._done = int(saved.pop("done"))
        self._state = self._chain.restored(saved)


@final
class Distillation(Objective):
    """The descent of the student's loss on fresh inputs against the step's θ."""

    def __init__(self, data: FitData, teacher: Teacher, config: DarkKnowledgeConfig, rng: Seed) -> None:
        self._teacher, self._config, self._rng = teacher, config, rng
        self._training = data.rows("train", data.device)
        self.spec = student_spec(teacher.spec, config.network)
        self._student = self.spec.build(rng.fold("start")).to(data.device)

    def parameters(self) -> list[Tensor]:
        return list(self._student.parameters())

    def loss(self, step: int) -> Tensor:
        inputs = student_inputs.draw(self._config.inputs, self._training, self._config.batch, self._rng.fold("x", step))
        answers = self._teacher.outputs(step, inputs)
        with dropout_masks(self._student, self._rng.fold("dropout", step)):
            outputs = self._student(inputs)
        return distillation_loss(self._teacher.spec, outputs, answers).mean()

    def state(self) -> dict[str, Tensor]:
        weights = {f"student.{k}": v.detach() for k, v in self._student.state_dict().items()}
        return weights | {f"teacher.{k}": v for k, v in self._teacher.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._student.load_state_dict(under("student.", state))
        self._teacher.restore(under("teacher.", state))

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        return {"loss": float(loss)} if step % 50 == 49 else {}

    def posterior(self) -> NetworkDraws:
        """Return the student as it is now."""
        return NetworkDraws.of(self.spec, [{k: v.detach().clone() for k, v in self._student.state_dict().items()}])


def student_spec(teacher: NetworkSpec, network: NetworkConfig) -> NetworkSpec:
    """Return the student of a teacher: softmax for softmax, mean and log-variance for Gaussian noise."""
    likelihood: Likelihood = "categorical" if teacher.likelihood == "categorical" else "gaussian_head"
    return NetworkSpec(network, teacher.input_shape, teacher.outputs, likelihood)


def distillation_loss(teacher: NetworkSpec, student_outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
    """Return eq. 8 or eq. 11 for each input [batch], from the two networks' outputs."""
    if teacher.likelihood == "categorical":
        return classification_loss(F.log_softmax(student_outputs, dim=-1), F.softmax(teacher_outputs, dim=-1))
    mean, log_variance = student_outputs.chunk(2, dim=-1)
    return regression_loss(mean, log_variance, teacher_outputs, 1 / teacher.noise_variance)


def student(data: FitData, inputs: Inputs, config: DarkKnowledgeConfig, *, rng: Seed, report: Report) -> State:
    """Return a student distilled from stored draws of all chains, or from a chain of its own."""
    teacher: Teacher
    if isinstance(config.mode, OfflineConfig):
        stored = average(inputs["teacher"], config.mode.max_draws).state()
        teacher = StoredDraws(NetworkDraws.from_state(stored, data.device), rng.fold("teacher"))
    else:
        teacher = LivingChain(data, config.mode, rng.fold("teacher"))
    task = Distillation(data, teacher, config, rng)
    run_steps(task, config.optimiser, config.steps, report)
    return task.posterior().state()


def default(size: Size) -> Section:
    """Return a student of the teacher's network, fitted near the training inputs."""
    return {
        "network": size.network,
        "inputs": {"name": "noisy_training", "noise": 0.2},
        "batch": size.batch,
        "steps": size.steps(2_000),
        "optimiser": {"lr": 5.0e-3, "warmup": 0.3, "grad_clip_norm": 1.0},
    }


DARK_KNOWLEDGE = Method(
    name="dark_knowledge",
    config=DarkKnowledgeConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(student, needs={"teacher": "all"})},
    search={
        "optimiser.lr": (1e-4, 1e-2, "log"),
        "optimiser.weight_decay": (1e-7, 1e-2, "log"),
    },
    default=Default(2.0, "sgmcmc", default),
)
