"""The training loop of all gradient methods: schedule, progress, checkpoints, exact resume.

An :class:`Objective` owns its parameters, draws its batches from the seed address of the step, and adds its own tensors
to a checkpoint. The loop owns the optimiser, the learning-rate schedule and the checkpoints. A resumed run continues
with the same bits: the optimiser's tensors are stored completely, and no generator has a state.

In a process group (:mod:`bdl_pipe.distributed`) the losses are averaged over ranks at every step. Only rank 0
reports progress and says when a checkpoint is due. Then all ranks save, and all resume from rank 0's checkpoint.
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
from ..errors import Diverged, UserError, require, require_positive
from ..progress import Report
from .adam import Adam

Optimiser = Adam | torch.optim.Optimizer

_LOOK_EVERY: Final = 100  # steps between checks of the loss on an asynchronous device


@dataclass(frozen=True)
class OptimiserConfig:
    """The settings of an optimiser and its learning-rate schedule.

    Attributes:
        name: the update rule of torch, or ``lamb`` of pytorch_optimizer (You et al. 2020, with φ(z) = z): Adam's step,
            scaled in each tensor to the tensor's norm.
        lr: the peak learning rate.
        schedule: ``constant``; ``cosine`` to zero; ``one_cycle``: up over ``warmup``, then cosine to zero; ``step``:
            multiplied by ``factor`` at each of ``milestones``; ``linear``: constant up to the first of two
            ``milestones``, linear to ``factor`` times the rate at the second, then constant (Maddox et al. 2019).
        warmup: the share of steps in which the rate rises linearly from lr/25 to lr (one_cycle only).
        weight_decay: γ, which adds γw to the gradient (decoupled for adamw).
        momentum: the momentum of sgd.
        grad_clip_norm: the largest gradient norm. null: gradients are not clipped.
        milestones: the positions of changes, as shares of all steps (step and linear only); ``step`` rounds each to a
            whole step.
        factor: the factor of the rate at each milestone (step), or at the last one (linear).
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
        require_positive(self, "lr", "factor", or_null=("grad_clip_norm",))
        require(0 < self.warmup < 1, "warmup", "must be in (0, 1)", self.warmup)
        require(self.weight_decay >= 0, "weight_decay", "must be >= 0", self.weight_decay)
        require(0 <= self.momentum < 1, "momentum", "must be in [0, 1)", self.momentum)
        places = list(self.milestones)
        rising = all(before < after for before, after in pairwise([0.0, *places, 1.0]))
        require(rising, "milestones", "must rise, each in (0, 1)", places)
        require(self.schedule != "step" or places != [], "milestones", "must be given for the schedule step", places)
        two = self.schedule != "linear" or len(places) == 2
        require(two, "milestones", "must be two for the schedule linear", places)


class Objective(ABC):
    """A loss of parameters, for the training loop."""

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """Return the leaf tensors that the optimiser updates, in a fixed order."""

    @abstractmethod
    def loss(self, step: int) -> Tensor:
        """Return the scalar loss of step ``step``, with its graph. Its random numbers depend on ``step``.

        In a process group its backward pass must give all ranks equal gradients (:func:`distributed.averaging`).
        """

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return all tensors, except the optimiser's, that later steps depend on."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of :meth:`state`."""

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        """Run after the update of step ``step``; return the metrics to report."""
        return {}

    def undecayed(self) -> list[Tensor]:
        """Return the parameters without weight decay."""
        return []

    def optimiser(self, config: OptimiserConfig) -> Optimiser:
        """Return the optimiser of ``parameters()``."""
        return make_optimiser(self.parameters(), config, self.undecayed())

    def clip(self, largest: float) -> None:
        """Scale the gradients down to the norm ``largest`` if their norm is larger."""
        torch.nn.utils.clip_grad_norm_(self.parameters(), largest)

    def finished(self) -> bool:
        """Return whether training can stop early because later steps cannot change the result."""
        return False


def run_steps(task: Objective, config: OptimiserConfig, steps: int, report: Report) -> None:
    """Run ``steps`` updates of ``task``, from the last checkpoint if there is one.

    Raises:
        Diverged: the loss or a parameter became NaN or infinite, or a matrix of the loss has no Cholesky factor.
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
            mean = distributed.mean(loss.detach())  # averaged over ranks, so that all ranks stop together
            watch.see(step, mean)
            loss.backward(inputs=task.parameters())  # other leaves of the graph need no gradient
            if config.grad_clip_norm is not None:
                task.clip(config.grad_clip_norm)
            optimiser.step()
            metrics = task.after(step, mean)
            if first:
                report(step + 1, steps, metrics)
            if distributed.rank0_says(first and report.due()):
                watch.look()
                report.save(checkpoint(task, optimiser, step + 1))
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged(f"a matrix became singular, NaN or infinite at step {step}: lower the learning rate") from error
    watch.look()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in task.parameters()):
        raise Diverged("a parameter became NaN or infinite in the last step: lower the learning rate")


@final
class _Watch:
    """A check that all losses are finite.

    Reading a loss waits for the device. On a CPU each loss is checked at once. On an asynchronous device the first loss
    that is not finite is recorded, and the record is checked every 100 steps and before a checkpoint is saved.
    """

    def __init__(self, *, ahead: bool) -> None:
        self._ahead = ahead
        self._found: Tensor | None = None  # (step, loss) of the first loss that is not finite, or of the last loss

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
        """Raise Diverged if a loss was not finite."""
        if self._found is None:
            return
        step, loss = self._found.tolist()
        if not math.isfinite(loss):
            raise _diverged(int(step), loss)


def _diverged(step: int, loss: float) -> Diverged:
    return Diverged(f"the loss became {loss} at step {step}: lower the learning rate")


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """Return the learning rate of update ``step`` of ``steps``."""
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
    """Return the optimiser over ``parameters``; ``undecayed`` have no weight decay.

    Raises:
        UserError: the rule is ``lamb`` and its package is not installed.
    """
    spared = {id(p) for p in undecayed}
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if id(p) not in spared]}]
    if spared:
        groups.append({"params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0})
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.name == "lamb":
        try:
            from pytorch_optimizer.optimizer.lamb import Lamb
        except ImportError as error:
            ways = "pip install 'bdl-pipe[lamb]'"
            raise UserError(f"the optimiser lamb needs the package pytorch_optimizer ({error}): {ways}") from None
        # the scaled step needs no bias correction; its step count, in the group, would not be in a checkpoint
        lamb = Lamb(groups, lr=config.lr, weight_decay=config.weight_decay, weight_decouple=False, adam_debias=True)
        lamb.clamp = math.inf  # φ's upper bound: the norm of a coreset, one tensor, exceeds the default 10
        return lamb
    # fused: one kernel instead of a dozen for each tensor; it reads tensor and gradient in memory order
    straight = all(p.is_contiguous() and p.device.type == "cpu" for p in parameters)
    decoupled = config.name == "adamw"
    return Adam(groups, lr=config.lr, weight_decay=config.weight_decay, decoupled=decoupled, fused=straight)


def checkpoint(task: Objective, optimiser: Optimiser, step: int) -> State:
    """Return the checkpoint from which the steps from ``step`` on continue."""
    tensors = {f"task.{k}": v for k, v in task.state().items()}
    return State(tensors | optimiser_tensors(optimiser, "optimiser"), {"step": step})


def resume(task: Objective, optimiser: Optimiser, report: Report) -> int:
    """Restore the last checkpoint, if any, and return the step to continue from."""
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
    """Undo :func:`optimiser_tensors`; other state of the optimiser is deleted."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    optimiser.state.clear()
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            number, name = key.removeprefix(prefix + ".").split(".", 1)
            parameter = parameters[int(number)]
            if name == "step" or value.shape != parameter.shape:
                optimiser.state[parameter][name] = value.clone()  # torch keeps Adam's step on the CPU
            else:  # in the parameter's own memory order, because rounding depends on it
                optimiser.state[parameter][name] = torch.empty_like(parameter).detach().copy_(value)
