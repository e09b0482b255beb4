"""One loop for everything that descends a gradient: schedule, progress, checkpoint, exact resume.

What is descended is a :class:`Objective`: it owns its parameters, draws its own batches from the
seed address of the step, and says what else a checkpoint must hold. The loop owns the optimiser,
the learning-rate schedule and the checkpoints. A resumed run continues with the same bits: the
optimiser's tensors are stored whole and no generator has a state to lose.

In a process group (``parallel``) the ranks' gradients and losses are averaged at every step, and rank 0
alone reports and saves; all go on from its checkpoint.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, final

import torch
from torch import Tensor

from .. import distributed
from ..artifacts import State
from ..errors import Diverged, UserError, require
from ..progress import Report
from .adam import Adam

Optimiser = Adam | torch.optim.Optimizer

_LOOK_EVERY: Final = 100  # steps, on a device that works ahead of its driver


@dataclass(frozen=True)
class OptimiserConfig:
    """The settings of an optimiser and its learning-rate schedule.

    Attributes:
        name: the update rule, torch's, or ``lamb`` (You et al. 2020, with φ(z) = z): Adam's step, its length in each
            tensor that of the tensor; by pytorch_optimizer.
        lr: the peak learning rate.
        schedule: ``constant``; ``cosine`` to zero; ``one_cycle``: up over ``warmup``, then cosine to zero; ``step``:
            times ``factor`` from each of ``milestones`` on; ``linear``: constant up to the first of two ``milestones``,
            on a straight line to ``factor`` times the rate at the second, constant then (Maddox et al. 2019).
        warmup: the share of steps that rise linearly from rate/25 to rate (one_cycle only).
        weight_decay: γ, enters the gradient as γw (decoupled for adamw).
        momentum: for sgd.
        grad_clip_norm: the largest gradient norm, or null.
        milestones: shares of all steps, for step each rounded to a whole one (step and linear only).
        factor: of the rate at each milestone (step), or at the last one (linear).
    """

    name: Literal["adam", "adamw", "sgd", "lamb"]
    lr: float
    schedule: Literal["constant", "cosine", "one_cycle", "step", "linear"] = "constant"
    warmup: float = 0.3
    weight_decay: float = 0.0
    momentum: float = 0.0
    grad_clip_norm: float | None = None
    milestones: tuple[float, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", "must be > 0", self.lr)
        require(0 < self.warmup < 1, "warmup", "must be in (0, 1)", self.warmup)
        require(self.weight_decay >= 0, "weight_decay", "must be >= 0", self.weight_decay)
        require(0 <= self.momentum < 1, "momentum", "must be in [0, 1)", self.momentum)
        positive = self.grad_clip_norm is None or self.grad_clip_norm > 0
        require(positive, "grad_clip_norm", "must be > 0 or null", self.grad_clip_norm)
        given, edges = list(self.milestones), (0.0, *self.milestones, 1.0)
        rising = all(before < after for before, after in pairwise(edges))
        require(rising, "milestones", "must rise, each in (0, 1)", given)
        require(self.schedule != "step" or given != [], "milestones", "must be given for the schedule step", given)
        two = self.schedule != "linear" or len(given) == 2
        require(two, "milestones", "must be two for the schedule linear", given)
        require(self.factor > 0, "factor", "must be > 0", self.factor)


class Objective(ABC):
    """A task whose loss can be descended."""

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """Return the leaf tensors that the optimiser moves, in a fixed order."""

    @abstractmethod
    def loss(self, step: int) -> Tensor:
        """Return the scalar loss of step ``step``, with its graph. Its randomness is addressed by ``step``."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return all tensors that a later step depends on, but the optimiser's."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what ``state`` returned."""

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        """Do what follows the update of step ``step``; what is returned is reported."""
        return {}

    def undecayed(self) -> list[Tensor]:
        """Return those of ``parameters()`` that weight decay leaves alone."""
        return []

    def optimiser(self, config: OptimiserConfig) -> Optimiser:
        """Return the optimiser of ``parameters()``."""
        return make_optimiser(self.parameters(), config, self.undecayed())

    def clip(self, largest: float) -> None:
        """Scale the gradients down to the norm ``largest``, where it is above."""
        torch.nn.utils.clip_grad_norm_(self.parameters(), largest)

    def finished(self) -> bool:
        """Say whether the steps that are left would change nothing of what is wanted."""
        return False


def run_steps(task: Objective, config: OptimiserConfig, steps: int, report: Report) -> None:
    """Run ``steps`` updates of ``task``, from the last checkpoint where there is one.

    Raises:
        Diverged: the loss or a parameter became NaN or infinite, or a matrix behind the loss has no factor.
    """
    optimiser = task.optimiser(config)
    start, first = resume(task, optimiser, report), distributed.world()[0] == 0
    watch = _Watch(ahead=any(parameter.device.type != "cpu" for parameter in task.parameters()))
    try:
        for step in range(start, steps):
            if task.finished():
                break
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(config, step, steps)
            optimiser.zero_grad()
            loss = task.loss(step)
            mean = distributed.mean(loss.detach())  # of all ranks, so that all stop together
            watch.see(step, mean)
            loss.backward(inputs=task.parameters())  # other leaves of the graph need no gradient
            distributed.average_gradients(task.parameters())
            if config.grad_clip_norm is not None:
                task.clip(config.grad_clip_norm)
            optimiser.step()
            metrics = task.after(step, mean)
            if first:
                report(step + 1, steps, metrics)
            if first and report.due():
                watch.look()
                report.save(checkpoint(task, optimiser, step + 1))
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged(f"a matrix became singular, NaN or infinite at step {step}: lower the learning rate") from error
    watch.look()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in task.parameters()):
        raise Diverged("a parameter became NaN or infinite in the last step: lower the learning rate")


@final
class _Watch:
    """Losses that must be finite.

    To look at one waits for the device. On a CPU each is looked at; on a device that works ahead of its driver the
    first that is not finite is remembered, and looked for every 100 steps and before anything is kept.
    """

    def __init__(self, *, ahead: bool) -> None:
        self._ahead = ahead
        self._found: Tensor | None = None  # (step, loss) of the first that is not finite, or of the last

    def see(self, step: int, loss: Tensor) -> None:
        if not self._ahead:
            if not math.isfinite(value := loss.item()):
                raise _diverged(step, value)
            return
        now = torch.stack((torch.full_like(loss, step), loss))
        self._found = now if self._found is None else torch.where(self._found[1].isfinite(), now, self._found)
        if (step + 1) % _LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Raise Diverged where a loss was not finite."""
        if self._found is None:
            return
        step, loss = self._found.tolist()
        if not math.isfinite(loss):
            raise _diverged(int(step), loss)


def _diverged(step: int, loss: float) -> Diverged:
    return Diverged(f"the loss became {loss} at step {step}: lower the learning rate")


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """Return the rate of update ``step`` of ``steps``, a pure function of both."""
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
    if config.schedule == "step":
        return config.lr * config.factor ** sum(step >= round(share * steps) for share in config.milestones)
    if config.schedule == "linear":
        first, second = config.milestones
        done = min(max((step / steps - first) / (second - first), 0.0), 1.0)
        return config.lr * (1 + (config.factor - 1) * done)
    rising = config.warmup * steps
    if step < rising:
        return config.lr * (1 / 25 + (1 - 1 / 25) * step / rising)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


def make_optimiser(parameters: list[Tensor], config: OptimiserConfig, undecayed: Sequence[Tensor] = ()) -> Optimiser:
    """Return the optimiser over ``parameters``; those in ``undecayed`` have no weight decay.

    Raises:
        UserError: the rule is ``lamb``, and its package is not installed.
    """
    spared = {id(p) for p in undecayed}
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if id(p) not in spared]}]
    if spared:
        groups.append({"params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0})
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.name == "lamb":
        return _lamb(groups, config)
    # one kernel in place of a dozen for each tensor; it reads a tensor and its gradient straight through
    straight = all(p.is_contiguous() and p.device.type == "cpu" for p in parameters)
    decoupled = config.name == "adamw"
    return Adam(groups, lr=config.lr, weight_decay=config.weight_decay, decoupled=decoupled, fused=straight)


def _lamb(groups: list[dict[str, Any]], config: OptimiserConfig) -> torch.optim.Optimizer:
    try:
        from pytorch_optimizer.optimizer.lamb import Lamb
    except ImportError as error:
        ways = "pip install 'bdl-pipe[lamb]'"
        raise UserError(f"the optimiser lamb needs the package pytorch_optimizer ({error}): {ways}") from None
    # a length has no bias to correct, and a number of steps in the group would not be in a checkpoint
    optimiser = Lamb(groups, lr=config.lr, weight_decay=config.weight_decay, weight_decouple=False, adam_debias=True)
    optimiser.clamp = math.inf  # of φ; a whole coreset is one tensor, and longer than 10
    return optimiser


def checkpoint(task: Objective, optimiser: Optimiser, step: int) -> State:
    """Return everything that the steps from ``step`` on depend on."""
    tensors = {f"task.{k}": v for k, v in task.state().items()}
    return State(tensors | optimiser_tensors(optimiser, "optimiser"), {"step": step})


def resume(task: Objective, optimiser: Optimiser, report: Report) -> int:
    """Restore the last checkpoint, if any, and return the step to go on from."""
    last = distributed.broadcast_from_rank0(report.load)
    if last is None:
        return 0
    task.restore({k.removeprefix("task."): v for k, v in last.tensors.items() if k.startswith("task.")})
    restore_optimiser(optimiser, last.tensors, "optimiser")
    return int(last.config["step"])


def optimiser_tensors(optimiser: Optimiser, prefix: str) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors: ``prefix.<parameter number>.<name>``."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    return {
        f"{prefix}.{i}.{name}": torch.as_tensor(value)
        for i, parameter in enumerate(parameters)
        for name, value in optimiser.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimiser(optimiser: Optimiser, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Undo :func:`optimiser_tensors`; what is not named is forgotten."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    optimiser.state.clear()
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            number, name = key.removeprefix(prefix + ".").split(".", 1)
            parameter = parameters[int(number)]
            if name == "step" or value.shape != parameter.shape:
                optimiser.state[parameter][name] = value.clone()  # torch keeps Adam's step on the CPU
            else:  # in the parameter's own memory order, or other bits may follow
                optimiser.state[parameter][name] = torch.empty_like(parameter).detach().copy_(value)
