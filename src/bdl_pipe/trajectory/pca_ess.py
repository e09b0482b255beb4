"""Elliptical slice sampling in the subspace of a trajectory's principal components.

The sampler: Murray, Adams & MacKay 2010, figure 2. The subspace: Izmailov et al. 2019, see ``subspace``. The sampler
has no setting to tune: each step draws an ellipse through the current point and a draw from the prior, and a level
below the current likelihood, then shrinks an interval of angles around the current angle until a point is above this
level.

The chain starts at z = 0, the trajectory's mean. Step t draws all its random numbers at the address ``step, t``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..data.size import Section
from ..errors import Diverged, require
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..progress import Report
from ..seeds import Seed
from .snapshots import BATCH_NORM
from .subspace import SubspaceConfig, Target, fitted, from_model

LogLikelihood = Callable[[Tensor], float]


@dataclass(frozen=True)
class PcaEssConfig(SubspaceConfig):
    """The section ``methods.pca_ess``: the subspace and the chain.

    Attributes:
        burn_in: the number of steps before the first draw.
        every: the number of steps between draws.
        batch: the number of rows of a forward pass; it affects the result only with batch normalisation.
    """

    burn_in: int
    every: int
    batch: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.burn_in >= 0, "burn_in", "must be >= 0", self.burn_in)
        require(self.every > 0, "every", "must be > 0", self.every)
        require(self.batch > 1, "batch", "must be > 1", self.batch)

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole chain."""
        return self.burn_in + self.every * self.draws


@dataclass(frozen=True)
class Place:
    """The position of a chain: coordinates in float64 and their log-likelihood."""

    z: Float[Tensor, " dimension"]
    log_likelihood: float


def step(place: Place, log_likelihood: LogLikelihood, prior_variance: float, generator: torch.Generator) -> Place:
    """Make one step, which leaves exp(log_likelihood(z)) N(z; 0, prior_variance I) invariant.

    A point with a NaN log-likelihood counts as a point of likelihood 0.
    """
    other = math.sqrt(prior_variance) * torch.randn(len(place.z), generator=generator, dtype=torch.float64)
    level = place.log_likelihood + math.log(1 - _uniform(generator))
    angle = 2 * math.pi * _uniform(generator)
    low, high = angle - 2 * math.pi, angle
    while True:
        z = place.z * math.cos(angle) + other * math.sin(angle)
        value = log_likelihood(z)
        if value >= level:
            return Place(z, value)
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = low + (high - low) * _uniform(generator)


def sample(
    log_likelihood: LogLikelihood, config: PcaEssConfig, *, rng: Seed, report: Report
) -> Float[Tensor, "draw dimension"]:
    """Return draws of z, given the tempered log-likelihood.

    Raises:
        Diverged: the log-likelihood at z = 0 is not finite.
    """
    saved, first = report.load(), 0
    if saved is None:
        origin, kept = torch.zeros(config.dimension, dtype=torch.float64), list[Tensor]()
        place = Place(origin, log_likelihood(origin))
        if not math.isfinite(place.log_likelihood):
            raise Diverged(f"the log-likelihood at the trajectory's mean is {place.log_likelihood}")
    else:
        place = Place(saved.tensors["z"], saved.tensors["log_likelihood"].item())
        kept, first = list(saved.tensors["kept"]), int(saved.config["step"])
    for number in range(first, config.steps):
        place = step(place, log_likelihood, config.prior_variance, rng.fold("step", number).generator())
        done = number + 1
        if done > config.burn_in and (done - config.burn_in) % config.every == 0:
            kept.append(place.z)
        report(done, config.steps, {"log_likelihood": place.log_likelihood})
        if report.due():
            drawn = torch.stack(kept) if kept else place.z.new_zeros(0, len(place.z))
            level = torch.tensor(place.log_likelihood, dtype=torch.float64)
            report.save(State({"z": place.z, "log_likelihood": level, "kept": drawn}, {"step": done}))
    return torch.stack(kept)


def _uniform(generator: torch.Generator) -> float:
    return torch.rand((), generator=generator, dtype=torch.float64).item()


def fit(data: FitData, inputs: Inputs, config: PcaEssConfig, *, rng: Seed, report: Report) -> State:
    """Return the networks of a chain in the subspace of the trajectory in ``inputs``.

    Raises:
        ConfigError: the dimension is larger than the number of snapshots minus one.
        Diverged: the log-likelihood at the trajectory's mean is not finite.
    """
    target = Target(data, inputs, config, "pca_ess", rng)

    def chain(part: Report) -> Tensor:
        return sample(lambda z: target.total(z, config.batch), config, rng=rng, report=part)

    return fitted(target, chain, config.steps, config.draws, report)


_SETTINGS: Final[Section] = {"prior_variance": 1.0, "burn_in": 5, "every": 3, **BATCH_NORM}
PCA_ESS = Method(
    name="pca_ess",
    family="trajectory",
    bayesian=True,
    config=PcaEssConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"})},
    search={"temperature": (0.1, 1e4, "log"), "prior_variance": (0.1, 100.0, "log")},
    settings=_SETTINGS,
    default=Default(
        1.0,
        "iterates",
        lambda size: {"dimension": 3, "rows": 1000, "batch": 500, "temperature": 10.0, "draws": 10},
        suits=lambda size: size.task == "classification",
    ),
    from_model=FromModel(partial(from_model, {**_SETTINGS, "temperature": 1000.0, "rows": 1000, "batch": 500})),
)
