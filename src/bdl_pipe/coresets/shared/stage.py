"""The stage ``coreset``: the distillation of a coreset, possibly joined to the coreset of an earlier step.

In class-incremental learning a step's data have only its new classes (``data.increment``). A step with the previous
step's coreset as input distils its own data and puts the earlier rows first: S_0 ∪ … ∪ S_j is one coreset, and any
protocol can be fitted to it. The published code of Zhou et al. 2022 (FRePo) trains on the same union.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, final

import torch

from ...artifacts import State, under
from ...config import to_mapping
from ...data.fitdata import FitData
from ...method import FanIn, Inputs, Kind, StageSpec
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from .descent import CoresetDescent, Surrogate, kept
from .init import Choice, Coreset, balanced

Make = Callable[[FitData, Inputs, Any, Coreset, Seed], Surrogate]  # (data, inputs, config, start, seed) -> surrogate

NOISY: Final = {"choose": "all", "operations": {"noise": 0.1}}
POOLED: Final = {"label_scale": 1.0, "pool": {"networks": 10, "steps": 100, "lr": 3e-4}, "augmentation": NOISY}


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
    needs: Mapping[Kind, FanIn] | None = None,
    validate_sources: Callable[[Any, Mapping[Kind, Any]], None] | None = None,
) -> StageSpec:
    """Return the stage of a method that distils a coreset by a surrogate loss.

    Args:
        name: the method's name.
        surrogate: makes the method's surrogate.
        section: the key of the method's config whose ``descent`` is the outer loop; the config also has ``ipc``.
        needs, validate_sources: see ``StageSpec``.
    """
    method = _Distillation(name, surrogate, attrgetter(f"{section}.descent"))
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

    def fit(self, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
        """Distil a coreset: ``images``, ``labels``, ``classes`` and the un-transformed ``raw``.

        A fit resumed from ``report.load()`` has the same bits.

        Raises:
            ConfigError: the surrogate cannot be made from the inputs.
            Diverged: the loss or an image became NaN or infinite.
        """
        outer, start, address = self.descent(config), self._start(data, config, rng), rng.fold("distil")
        loss = self.surrogate(data, inputs, config, start, address)
        task = CoresetDescent(start, loss, label_unit=outer.label_unit, average=outer.average, rng=address)
        loop.run_steps(task, outer.optimiser, outer.steps, report)
        about = {"coreset": self.name, "ipc": config.ipc, "config": to_mapping(config)}
        return with_earlier(inputs, task.coreset().state(data, about))

    def read(self, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State:
        """Return the coreset in a checkpoint; searches score it before the distillation ends."""
        outer, start = self.descent(config), self._start(data, config, rng)
        coreset = kept(under("task.", checkpoint.tensors), start, outer.label_unit, outer.average)
        return with_earlier(inputs, coreset.state(data, {"coreset": self.name, "ipc": config.ipc}))

    def _start(self, data: FitData, config: Any, rng: Seed) -> Coreset:
        outer, place = self.descent(config), rng.fold("start")
        return balanced(data, config.ipc, outer.label_scale, rng=place, choice=outer.start).to(data.device)


def with_earlier(inputs: Inputs, new: State) -> State:
    """Return a new coreset after the rows of the earlier coreset in ``inputs``, if there is one."""
    for earlier in inputs.get("coreset", ()):
        rows = {name: torch.cat([earlier.tensors[name], new.tensors[name]]) for name in Coreset.TENSORS}
        new = State({**new.tensors, **rows}, new.config)
    return new
