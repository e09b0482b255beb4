"""The outer loop of all methods that distil a coreset by a surrogate loss, and the stage ``coreset`` that runs it.

An outer step computes the surrogate's loss at the images and labels, with random numbers from the step's seed address,
and makes one optimiser step of the images, the labels (if they are learned) and the surrogate's own parameters. The
result is the last coreset or an unbiased exponential average.

In class-incremental learning a step's data have only its new classes (``data.increment``). A step with the previous
step's coreset as input distils its own data and puts the earlier rows first: S_0 ∪ … ∪ S_j is one coreset, and any
protocol can be fitted to it. The published code of Zhou et al. 2022 (FRePo) trains on the same union.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, final

import torch
from torch import Tensor

from ...artifacts import State, under
from ...config import to_mapping
from ...data.fitdata import FitData
from ...errors import require
from ...method import FanIn, Inputs, Kind, StageSpec
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from .init import Choice, Coreset, balanced, selected

Search = Mapping[str, tuple[float, float, Literal["log", "linear", "integer"]]]  # as ``Method.search``
RATES: Final[Search] = {"coreset.lr": (1e-3, 1e-1, "log"), "coreset.label_lr": (1e-3, 1.0, "log")}
NOISY: Final = {"choose": "all", "operations": {"noise": 0.1}}
POOLED: Final = {"label_scale": 1.0, "pool": {"networks": 10, "steps": 100, "lr": 3e-4}, "augmentation": NOISY}


class Surrogate(ABC):
    """A loss of a coreset with the gradient of a method's objective, up to a positive factor."""

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        """Return the loss [] at the images and labels, with its graph; ``rng`` is the step's seed address."""

    @abstractmethod
    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        """Run after the step of the images and labels; return the metrics to report.

        Args:
            loss: the loss of the step.
            images: the updated images, with the step's gradient.
            labels: the updated labels.
        """

    def parameters(self) -> list[Tensor]:
        """Return the surrogate's own learned parameters."""
        return []

    def state(self) -> dict[str, Tensor]:
        """Return all other tensors that later steps depend on."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027, the default state is empty
        """Restore the tensors of :meth:`state`."""


@final
class CoresetDescent(loop.Objective):
    """The distillation as a training objective. It stores labels as Ŷ/``label_unit``.

    Adam's step does not depend on the scale of a gradient, so with the unit label_lr/lr the labels have the learning
    rate label_lr.
    """

    def __init__(
        self, start: Coreset, surrogate: Surrogate, *, label_unit: float | None, average: float | None, rng: Seed
    ) -> None:
        """Start from ``start``, on the device of its images.

        Args:
            label_unit: the unit of stored labels. With None, labels are not learned.
            average: the decay of the average that is the result. With None, the last images and labels are the result.
        """
        device = start.images.device
        self._start, self._surrogate, self._rng = start, surrogate, rng
        self._unit, self._learns, self._decay = label_unit or 1.0, label_unit is not None, average
        self._images = start.images.clone().requires_grad_()
        self._labels = (start.labels.to(device, copy=True) / self._unit).requires_grad_(self._learns)
        self._averages = [torch.zeros_like(t) for t in (self._images.detach(), self._labels.detach())]
        self._taken = 0

    def coreset(self) -> Coreset:
        """Return the current coreset, or its average if there is one."""
        return kept(self._tensors(), self._start, self._unit, self._decay)

    def parameters(self) -> list[Tensor]:
        return [self._images, *([self._labels] if self._learns else []), *self._surrogate.parameters()]

    def loss(self, step: int) -> Tensor:
        return self._surrogate.loss(self._images, self._unit * self._labels, step, self._rng.fold("step", step))

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        if self._decay is not None:
            for average, now in zip(self._averages, (self._images, self._labels), strict=True):
                average.lerp_(now.detach(), 1 - self._decay)
            self._taken += 1
        return self._surrogate.after(step, loss, self._images, self._unit * self._labels.detach())

    def state(self) -> dict[str, Tensor]:
        learned = {f"learned.{i}": parameter for i, parameter in enumerate(self._surrogate.parameters())}
        now = {name: value.detach().clone() for name, value in (self._tensors() | learned).items()}
        return now | self._surrogate.state()

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._images.copy_(state["images"])
        self._labels.copy_(state["labels"])
        if self._decay is not None:
            for average, name in zip(self._averages, ("images", "labels"), strict=True):
                average.copy_(state[f"average.{name}"])
            self._taken = int(state["taken"])
        for i, parameter in enumerate(self._surrogate.parameters()):
            parameter.copy_(state[f"learned.{i}"])
        self._surrogate.restore(state)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the state for :func:`kept`."""
        now = {"images": self._images.detach(), "labels": self._labels.detach()}
        if self._decay is None:
            return now
        averages = {"average.images": self._averages[0], "average.labels": self._averages[1]}
        return now | averages | {"taken": torch.tensor(self._taken)}


def kept(state: Mapping[str, Tensor], start: Coreset, label_unit: float | None, average: float | None) -> Coreset:
    """Return the coreset of a descent's state, given the arguments of the descent."""
    images, labels = state["images"], state["labels"]
    if average is not None and int(state["taken"]) > 0:
        present = 1 - average ** int(state["taken"])
        images, labels = state["average.images"] / present, state["average.labels"] / present
    return Coreset(images.clone(), (label_unit or 1.0) * labels, start.classes)


def check_average(average: float | None) -> None:
    """Raise ConfigError unless ``average`` is in (0, 1) or None."""
    require(average is None or 0 < average < 1, "average", "must be in (0, 1) or null", average)


Make = Callable[[FitData, Inputs, Any, Coreset, Seed], Surrogate]  # (data, inputs, config, start, seed) -> surrogate


@dataclass(frozen=True)
class Descent:
    """The outer loop of a distillation.

    Attributes:
        steps: the number of outer steps.
        optimiser: the update rule of images, labels and the surrogate's parameters.
        average, label_unit: see :class:`CoresetDescent`.
        label_scale, start: the scale of the initial labels and the choice of the initial images, see :func:`balanced`.
    """

    steps: int
    optimiser: loop.OptimiserConfig
    average: float | None
    label_unit: float | None = None
    label_scale: float = 1.0
    start: Choice = "random"


def distilled_stage(
    name: str,
    surrogate: Make,
    section: str,
    *,
    size: Literal["ipc", "rows"] = "ipc",
    learned: Sequence[str] = (),
    needs: Mapping[Kind, FanIn] | None = None,
    validate_sources: Callable[[Any, Mapping[Kind, Any]], None] | None = None,
) -> StageSpec:
    """Return the stage of a method that distils a coreset by a surrogate loss.

    Args:
        name: the method's name.
        surrogate: makes the method's surrogate.
        section: the key of the method's config whose ``descent`` is the outer loop.
        size: the key of the number of coreset rows: ``ipc`` of each class, or ``rows`` of a regression.
        learned: the names that the surrogate's own parameters have in the coreset's state, from the first one on. The
            state does not have the others.
        needs, validate_sources: see ``StageSpec``.
    """
    method = _Distillation(name, surrogate, attrgetter(f"{section}.descent"), size, tuple(learned))
    return StageSpec(
        method.fit,
        needs={**(needs or {}), "coreset": "earlier"},
        from_checkpoint=method.read,
        validate_sources=validate_sources,
    )


@final
@dataclass(frozen=True)
class _Distillation:
    """The distillation of one method; its fields are the arguments of :func:`distilled_stage`."""

    name: str
    surrogate: Make
    descent: Callable[[Any], Descent]
    size: Literal["ipc", "rows"]
    learned: tuple[str, ...]

    def fit(self, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
        """Distil a coreset: ``images``, ``labels``, ``classes`` and the un-transformed ``raw``.

        A fit resumed from ``report.load()`` has the same bits.

        Raises:
            ConfigError: the surrogate cannot be made from the inputs.
        """
        outer, start, address = self.descent(config), self._start(data, config, rng), rng.fold("distil")
        loss = self.surrogate(data, inputs, config, start, address)
        task = CoresetDescent(start, loss, label_unit=outer.label_unit, average=outer.average, rng=address)
        loop.run_steps(task, outer.optimiser, outer.steps, report)
        state = self._state(task.coreset(), data, config, loss.parameters(), {"config": to_mapping(config)})
        return with_earlier(inputs, state)

    def read(self, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State:
        """Return the coreset in a checkpoint; searches score it before the distillation ends."""
        outer, start = self.descent(config), self._start(data, config, rng)
        tensors = under("task.", checkpoint.tensors)
        coreset = kept(tensors, start, outer.label_unit, outer.average)
        learned = [tensors[f"learned.{i}"] for i in range(len(self.learned))]
        return with_earlier(inputs, self._state(coreset, data, config, learned, {}))

    def _state(
        self, coreset: Coreset, data: FitData, config: Any, parameters: Sequence[Tensor], about: Mapping[str, object]
    ) -> State:
        state = coreset.state(data, {"coreset": self.name, self.size: getattr(config, self.size), **about})
        learned = zip(self.learned, parameters, strict=False)  # the names are of the first parameters
        tensors = {name: value.detach().cpu().clone() for name, value in learned}
        return State({**state.tensors, **tensors}, state.config)

    def _start(self, data: FitData, config: Any, rng: Seed) -> Coreset:
        outer, select = self.descent(config), balanced if self.size == "ipc" else selected
        count, place = getattr(config, self.size), rng.fold("start")
        return select(data, count, outer.label_scale, rng=place, choice=outer.start).to(data.device)


def with_earlier(inputs: Inputs, new: State) -> State:
    """Return a new coreset after the rows of the earlier coreset in ``inputs``, if there is one."""
    for earlier in inputs.get("coreset", ()):
        rows = {name: torch.cat([earlier.tensors[name], new.tensors[name]]) for name in Coreset.TENSORS}
        new = State({**new.tensors, **rows}, new.config)
    return new
