"""The method ``dark_knowledge``: a student network that imitates its teacher's posterior predictive.

    w_{t+1} = w_t − ρ_t [(1/M) Σ_{x′ in D′} ∇_w L̂(w, θ | x′) + γ w_t]        (Algorithm 1)

There are two modes with one loss. *offline*: the teacher is a stored posterior, the draws of ``teacher/<run>`` or the
posterior of ``student/<run>`` (a run of any method) without its recalibration. *online*: Algorithm 1, in which chains
move with each step of the student and no draw is stored. With infinitely many draws both modes descend the same
expected loss. Our deviations: the optimiser sets ρ_t and the update rule (γ is its ``weight_decay``), the student has
its own batch size, and in the online mode several chains and an average of weights bring the student to the teacher's
mean. A plain student is stored as a ``NetworkDraws`` of one draw; a student that keeps the dependence between inputs is
a :class:`~bdl_pipe.dark_knowledge.functions.StudentFunctions`. Students of regression predict in standardised units.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from ..artifacts import State, under
from ..config import LATER
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..networks import NetworkConfig, dropout_masks, fastest_order
from ..posterior import Likelihood, NetworkDraws, NetworkSpec, Posterior
from ..predictive import Categorical
from ..progress import Report
from ..registry import posterior_of
from ..seeds import Seed
from ..sgmcmc.method import average
from ..training.loop import Objective, OptimiserConfig, run_steps
from ..training.snapshots import snapshot
from . import functions, teachers
from .inputs import Generator, InputsConfig
from .teachers import FunctionTeacher, OfflineConfig, OnlineConfig, Teacher


@dataclass(frozen=True)
class DarkKnowledgeConfig:
    """The section ``methods.dark_knowledge`` of params.yaml.

    Attributes:
        network: the student's architecture.
        student: the form of the student: one function, or several functions that keep the dependence between inputs.
        mode: the source of the teacher's draws.
        inputs: the student data generator.
        batch: the number of student inputs in a step.
        steps: the number of the student's steps.
        optimiser: the update rule and its schedule, which set ρ_t; γ is its ``weight_decay``.
        start: the student's first weights. ``fresh``: random weights. ``draw``: the weights of one draw of the teacher,
            chosen uniformly; if the draw's head has another size, the student's head is random.
    """

    network: NetworkConfig
    student: functions.StudentConfig
    mode: OfflineConfig | OnlineConfig
    inputs: InputsConfig
    batch: int
    steps: int
    optimiser: OptimiserConfig
    start: Literal["fresh", "draw"] = field(default="fresh", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.steps > 0, "steps", "must be > 0", self.steps)
        fixed = isinstance(self.mode, OfflineConfig) or isinstance(self.student, functions.PlainConfig)
        require(fixed, "student.name", "must be plain in the mode online, which stores no draw", self.student.name)
        stored_draw = self.start == "fresh" or isinstance(self.mode, OfflineConfig)
        require(stored_draw, "start", "must be fresh in the mode online, which stores no draw", self.start)


@final
class PlainStudent:
    """A student that is one function: softmax, or mean and log-variance.

    Attributes:
        network: the network that is trained.
    """

    def __init__(self, data: FitData, network: NetworkConfig, teacher: Teacher, rng: Seed) -> None:
        self._spec = NetworkSpec(network, data.input_shape, data.outputs, _likelihood(data))
        placed = self._spec.build(rng).to(data.device)
        self._teacher, self.network = teacher, placed.to(memory_format=fastest_order(placed))  # type: ignore[call-overload]

    def loss(self, step: int, inputs: Tensor) -> Tensor:
        """Return the loss at a batch of inputs, a scalar."""
        predictive, outputs = self._teacher.predictive(step, inputs), self.network(inputs)
        if isinstance(predictive, Categorical):
            return functions.classification_loss(F.log_softmax(outputs, dim=-1), predictive.mean.to(outputs)).mean()
        mean, log_variance = outputs.chunk(2, dim=-1)
        teacher_mean, teacher_variance = (moment.to(mean) for moment in (predictive.mean, predictive.variance))
        return functions.regression_loss(mean, log_variance, teacher_mean, teacher_variance).mean()

    def posterior(self, weights: dict[str, Tensor]) -> NetworkDraws:
        """Return the posterior that the network has with ``weights``."""
        return NetworkDraws.of(self._spec, [weights])


@final
class FunctionStudent:
    """A student with several functions, heads or a latent's, each of which imitates a draw of the teacher."""

    def __init__(self, data: FitData, teacher: FunctionTeacher, config: DarkKnowledgeConfig, rng: Seed) -> None:
        """Choose the draws that the student imitates, and the coefficients [draw, block] that give their functions.

        Raises:
            ConfigError: the teacher has fewer than two functions.
        """
        rule, student = "must have at least two draws for a student of several functions", config.student
        require(teacher.count > 1, "input", rule, teacher.count)
        latent_draws = None
        if isinstance(student, functions.HeadsConfig):
            heads = min(student.heads, teacher.count)
            index, coefficients = [(i + 1) * teacher.count // heads - 1 for i in range(heads)], torch.eye(heads)
        else:
            assert isinstance(student, functions.LatentConfig)
            index, latent_draws = list(range(teacher.count)), student.draws
            generator = Generator(config.inputs, data)
            draw = generator.draw if student.probe_at == "inputs" else generator.draw_rows
            probe = draw(student.probe, rng.fold("probe"))
            values = functions.function_values(teacher.functions(probe, torch.tensor(index)))
            latents = functions.embed(values, student.dimension, student.share)
            coefficients = torch.cat([torch.ones_like(latents[:, :1]), latents], 1)
        self._spec = functions.FunctionsSpec(
            config.network, data.input_shape, data.outputs, _likelihood(data), coefficients.shape[1], latent_draws
        )
        self._teacher, self._draws, self._rng = teacher, torch.tensor(index), rng.fold("draw")
        self._coefficients = coefficients.float().to(data.device)
        self._per_step = min(student.draws_per_step, len(index))
        network = self._spec.build(rng.fold("start")).to(data.device)
        self.network = network.to(memory_format=fastest_order(network))  # type: ignore[call-overload]

    def loss(self, step: int, inputs: Tensor) -> Tensor:
        """Return the loss at a batch of inputs, a scalar."""
        chosen = torch.randperm(len(self._draws), generator=self._rng.fold(step).generator())[: self._per_step]
        predictive = self._teacher.functions(inputs, self._draws[chosen])
        coefficients = self._coefficients[chosen.to(self._coefficients.device)]
        values, log_variances = self._spec.read(self.network(inputs), coefficients)
        if isinstance(predictive, Categorical):
            probs = predictive.draw_log_probs.exp().to(values)
            return functions.classification_loss(F.log_softmax(values, dim=-1), probs).mean()
        assert log_variances is not None
        mean, variance = predictive.draw_mean.to(values), predictive.draw_variance.to(values)
        return functions.regression_loss(values, log_variances, mean, variance).mean()

    def posterior(self, weights: dict[str, Tensor]) -> functions.StudentFunctions:
        """Return the posterior that the network has with ``weights``."""
        return functions.StudentFunctions(self._spec, weights)


Student = PlainStudent | FunctionStudent


@final
class Distillation(Objective):
    """The training of a student on new inputs at each step, with the average of its last weights."""

    def __init__(
        self, data: FitData, teacher: Teacher, student: Student, config: DarkKnowledgeConfig, rng: Seed
    ) -> None:
        self._teacher, self._student, self._config, self._rng = teacher, student, config, rng
        self._inputs = Generator(config.inputs, data)
        share = config.mode.average if isinstance(config.mode, OnlineConfig) else None
        self._average_from = config.steps if share is None else int((1 - share) * config.steps)
        self._averaged, self._average = 0, dict[str, Tensor]()

    def parameters(self) -> list[Tensor]:
        return list(self._student.network.parameters())

    def loss(self, step: int) -> Tensor:
        inputs = self._inputs.draw(self._config.batch, self._rng.fold("x", step))
        with dropout_masks(self._student.network, self._rng.fold("dropout", step)):
            return self._student.loss(step, inputs)

    def state(self) -> dict[str, Tensor]:
        weights = {f"student.{k}": v.detach() for k, v in self._student.network.state_dict().items()}
        average = {f"average.{k}": v for k, v in self._average.items()} | {"averaged": torch.tensor(self._averaged)}
        return weights | average | {f"teacher.{k}": v for k, v in self._teacher.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._student.network.load_state_dict(under("student.", state))
        now = self._student.network.state_dict()
        self._average = {name: value.to(now[name].device) for name, value in under("average.", state).items()}
        self._averaged = int(state["averaged"])
        self._teacher.restore(under("teacher.", state))

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        if step >= self._average_from:
            self._averaged += 1
            for name, value in self._student.network.state_dict().items():
                if value.is_floating_point():
                    mean = self._average.setdefault(name, torch.zeros_like(value))
                    mean += (value.detach() - mean) / self._averaged
        return {"loss": float(loss)} if step % 50 == 49 else {}

    def posterior(self) -> Posterior:
        """Return the student's posterior, with averaged weights if the config sets ``average``."""
        now = {name: value.detach().clone() for name, value in self._student.network.state_dict().items()}
        return self._student.posterior(now | self._average)


def _likelihood(data: FitData) -> Likelihood:
    return "categorical" if data.task == "classification" else "gaussian_head"


def student(data: FitData, inputs: Inputs, config: DarkKnowledgeConfig, *, rng: Seed, report: Report) -> State:
    """Distil a student from a stored posterior, or from chains that run with it.

    Args:
        inputs: may have, besides the teacher, a trajectory, at whose last snapshot the student's network starts.

    Raises:
        ConfigError: :func:`.teachers.validate_sources` refuses the inputs, the posterior has another task or too few
            draws, or the student cannot start at one of its draws.
    """
    teachers.validate_sources(config.mode, {kind: states for kind, states in inputs.items() if kind != "trajectory"})
    if isinstance(config.mode, OnlineConfig):
        teacher: Teacher = teachers.LivingChains(data, config.mode, rng.fold("teacher"))
        learner: Student = PlainStudent(data, config.network, teacher, rng.fold("start"))
    else:
        chains = inputs.get("teacher")
        state = average(chains, config.mode.max_draws).state() if chains else inputs["student"][0]
        source = teachers.stored(posterior_of(state, data.device), data, rng.fold("teacher"))
        if isinstance(config.student, functions.PlainConfig):
            learner = PlainStudent(data, config.network, source, rng.fold("start"))
        else:
            learner = FunctionStudent(data, source, config, rng)
        if config.start == "draw":
            teachers.start_at_a_draw(source, learner.network, config.network, rng.fold("start", "draw"))
        teacher = source
    for trajectory in inputs.get("trajectory", ()):
        learner.network.load_state_dict(snapshot(trajectory, -1))
    task = Distillation(data, teacher, learner, config, rng)
    run_steps(task, config.optimiser, config.steps, report)
    return task.posterior().state()


def default(size: Size) -> Section:
    """Return hyperparameters of a student that has the teacher's network and imitates it near the training inputs.

    The noise of the inputs is small: in many columns, more noise puts all inputs of the student at a distance from the
    rows, and its variances at the rows are then too large (90 % intervals on mpg hold 99 % with 0.2, and 94 % with
    0.05). For classes the students of small tables are better with 0.1 than with 0.05.
    """
    return {
        "network": size.network,
        "inputs": {"name": "noisy_training", "noise": 0.1 if size.task == "classification" else 0.05},
        "batch": size.batch,
        "steps": size.steps(2_000),
        "optimiser": {"lr": 5.0e-3, "warmup": 0.3, "grad_clip_norm": 1.0},
    }


DARK_KNOWLEDGE = Method(
    name="dark_knowledge",
    family="dark_knowledge",
    bayesian=True,
    config=DarkKnowledgeConfig,
    tasks=("classification", "regression"),
    stages={
        "student": StageSpec(
            student,
            needs={"teacher": "all", "student": "cyclic"},
            input_optional=True,
            validate_sources=lambda config, sources: teachers.validate_sources(config.mode, sources),
        )
    },
    search={
        "optimiser.lr": (1e-4, 1e-2, "log"),
        "optimiser.weight_decay": (1e-7, 1e-2, "log"),
    },
    settings={
        "student": {"name": "plain"},
        "mode": {"name": "offline", "max_draws": None},
        "optimiser": {"name": "adamw", "schedule": "cosine"},
        "start": "draw",
    },
    default=Default(2.0, "sgmcmc", default),
    from_model=FromModel(
        lambda fit: {
            "network": fit.network,
            "student": {"name": "plain"},
            "mode": {"name": "offline", "max_draws": None},
            "inputs": {"name": "noisy_training", "noise": 0.0},  # no noise: inputs may be whole numbers
            "batch": fit.batch,
            "steps": fit.steps,
            "optimiser": fit.training(1e-3, weight_decay=0.0)["optimiser"],
        }
    ),
    imitates=True,
    program=True,
)
