"""The stage ``coreset``: a coreset of the data, possibly joined to the coreset of an earlier step.

In class-incremental learning a step's data have only its new classes (``data.increment``). A step with the previous
step's coreset as input distils its own data and puts the earlier rows first: S_0 ∪ … ∪ S_j is one coreset, and any
protocol can be fitted to it. The published code of Zhou et al. 2022 (FRePo) trains on the same union.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from ...artifacts import State
from ...data.fitdata import FitData
from ...method import FanIn, Fit, FromCheckpoint, Inputs, Kind, StageSpec
from ...progress import Report
from ...seeds import Seed
from .init import Coreset

NOISY: Final = {"choose": "all", "operations": {"noise": 0.1}}
POOLED: Final = {"label_scale": 1.0, "pool": {"networks": 10, "steps": 100, "lr": 3e-4}, "augmentation": NOISY}


def coreset_stage(
    fit: Fit,
    *,
    needs: Mapping[Kind, FanIn] | None = None,
    from_checkpoint: FromCheckpoint | None = None,
    validate_sources: Callable[[Any, Mapping[Kind, Any]], None] | None = None,
    in_driver: bool = False,
) -> StageSpec:
    """Return the stage of a method whose ``fit`` makes a coreset; see ``StageSpec`` for the other arguments."""
    return StageSpec(
        partial(_fit, fit),
        needs={**(needs or {}), "coreset": "earlier"},
        in_driver=in_driver,
        from_checkpoint=None if from_checkpoint is None else partial(_read, from_checkpoint),
        validate_sources=validate_sources,
    )


def joined(earlier: State, new: State) -> State:
    """Return a coreset with the rows of both, the earlier rows first; everything else comes from ``new``."""
    rows = {name: torch.cat([earlier.tensors[name], new.tensors[name]]) for name in Coreset.TENSORS}
    return State({**new.tensors, **rows}, new.config)


def _fit(fit: Fit, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    return _with_earlier(inputs, fit(data, inputs, config, rng=rng, report=report))


def _read(read: FromCheckpoint, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State:
    return _with_earlier(inputs, read(checkpoint, data, inputs, config, rng=rng))


def _with_earlier(inputs: Inputs, new: State) -> State:
    for earlier in inputs.get("coreset", ()):
        new = joined(earlier, new)
    return new
