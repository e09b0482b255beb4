"""SWAG: a Gaussian over a network's weights, fitted to the snapshots of its training trajectory.

Maddox, Garipov, Izmailov, Vetrov & Wilson 2019, section 3 and algorithm 1. With w_1 … w_T the snapshots, w̄ their
mean, D = diag of (1/T) Σ (w_t − w̄)² and D̂ the last K deviations w_t − w̄ as columns, a draw is

    w = w̄ + √scale · (D^½ z₁/√2 + D̂ z₂/√(2(K−1))),   z₁, z₂ standard normal,

with the covariance scale·(½D + ½ D̂D̂ᵀ/(K−1)). With ``rank`` 0 it is SWAG-diagonal: w̄ + √scale · D^½ z₁. If the
trajectory has running moments, w̄ and D come from these, over more iterates than there are snapshots, as in the paper.

MultiSWAG (Wilson & Izmailov 2020, section 3.3): the equally weighted mixture of the Gaussians of several independently
trained trajectories. Each of them has the same number of draws.

Deviations: the columns of D̂ are deviations from the final mean; the paper uses the running mean to store less, which a
stored trajectory does not need. D is computed from centred differences in float64, because the paper's E[w²] − E[w]²
cancels in float32. Only parameters are drawn. The running statistics of batch normalisation are recomputed on training
rows for each draw, as in the paper; all other buffers come from the last snapshot.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, under
from ..config import LATER
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..method import Default, FromModel, Inputs, Method, ModelFit, StageSpec
from ..progress import Phase, Report
from ..seeds import Seed
from .sgd import default_iterates
from .snapshots import BATCH_NORM, FLOATS, BatchNormConfig, FloatName, Snapshots, batch_norm

_PHASE: Final = "trajectory-"  # first part of the name of a trajectory's phase
_AT_ONCE: Final = 2**16  # weights whose moments are computed at once; a part's sums have the whole's bits
_EARLIER: Final = "earlier."  # prefix, in a checkpoint, of the draws from the trajectories before


@dataclass(frozen=True)
class SwagConfig(BatchNormConfig):
    """The sections ``methods.swag`` and ``methods.multi_swag`` of params.yaml.

    Attributes:
        rank: K, the number of last deviations in the low-rank part. 0: the covariance is diagonal.
        scale: the factor of the covariance; 1 in the paper.
        draws: the number of networks to draw from each trajectory's Gaussian at the fit.
        dtype: the floating type of the draws; the moments are computed in float64.
    """

    rank: int
    scale: float
    draws: int
    dtype: FloatName = field(default="float64", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rank == 0 or self.rank > 1, "rank", "must be 0 or > 1", self.rank)
        require_positive(self, "scale", "draws")


@dataclass(frozen=True)
class Moments:
    """The moments of a trajectory's weights, computed in float64.

    Attributes:
        mean: w̄.
        sd: D^½, the standard deviations.
        columns: D̂, the last K deviations; [0, weight] for the diagonal form.
    """

    mean: Float[Tensor, " weight"]
    sd: Float[Tensor, " weight"]
    columns: Float[Tensor, "rank weight"]

    def to(self, dtype: torch.dtype) -> "Moments":
        """Return the moments in another floating type."""
        return Moments(self.mean.to(dtype), self.sd.to(dtype), self.columns.to(dtype))

    def draw(self, z1: Float[Tensor, " weight"], z2: Float[Tensor, " rank"], scale: float) -> Float[Tensor, " weight"]:
        """Return the weights w for the standard normal numbers z₁ and z₂, a linear map."""
        rank = len(self.columns)
        if rank == 0:
            return self.mean + math.sqrt(scale) * self.sd * z1
        low = (self.columns.T @ z2).div_(math.sqrt(2 * (rank - 1)))  # in place, as a new vector costs as much as a sum
        return (self.sd * z1).div_(math.sqrt(2)).add_(low).mul_(math.sqrt(scale)).add_(self.mean)


def moments(past: Float[Tensor, "epoch weight"], rank: int) -> Moments:
    """Return the mean, the standard deviations and the last ``rank`` deviations of snapshots of any floating type."""
    count, weights = past.shape
    mean, sd = past.new_empty(2, weights, dtype=torch.float64)
    columns = past.new_empty(rank, weights, dtype=torch.float64)
    for start in range(0, weights, _AT_ONCE):  # float64 copies of all snapshots would be twice as large as these are
        part = slice(start, start + _AT_ONCE)
        centred = past[:, part].to(torch.float64, copy=True)
        mean[part] = centred.mean(0)
        centred -= mean[part]
        columns[:, part] = centred[count - rank :]
        sd[part] = centred.square_().mean(0).sqrt_()
    return Moments(mean, sd, columns)


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: SwagConfig, *, rng: Seed, report: Report, method: str = "swag") -> State:
    """Return draws from the Gaussian of each trajectory in ``inputs``: one for ``swag``, all for ``multi_swag``.

    The data serve only to recompute batch normalisation's statistics. Errors name the section of ``method``.

    Raises:
        ConfigError: a trajectory has fewer snapshots than ``rank`` or, without moments, fewer than two; or the
            trajectories have different networks.
    """
    every = inputs["trajectory"]
    same = all(each.config["spec"] == every[0].config["spec"] for each in every)
    require(same, f"methods.{method}", "must be made of trajectories of one network")
    saved = report.load()
    first = 0 if saved is None else int(saved.config["phase"].removeprefix(_PHASE))
    drawn = {} if saved is None else under(_EARLIER, saved.tensors)
    for number in range(first, len(every)):
        carried = {_EARLIER + name: value for name, value in drawn.items()}
        part = Phase(report, f"{_PHASE}{number}", number * config.draws, len(every) * config.draws, carried)
        place = rng.fold("trajectory", number) if number else rng
        state = _drawn(every[number], data, config, method, rng=place, report=part)
        drawn = {name: torch.cat([drawn[name], v]) if drawn else v for name, v in state.tensors.items()}
    return State(drawn, state.config)


def _drawn(trajectory: State, data: FitData, config: SwagConfig, method: str, *, rng: Seed, report: Report) -> State:
    """Return draws from the Gaussian of one trajectory: of its running moments, if any, and its last snapshots."""
    snapshots = Snapshots(trajectory, data, config, rng)
    dtype = FLOATS[config.dtype]
    iterates, rank, count = snapshots.moments, config.rank, snapshots.count
    enough = count > 1 or iterates is not None
    require(enough, "methods.sgd.snapshots", f"must be at least 2 for {method} without moments", count)
    require(rank <= count, f"methods.{method}.rank", f"must be <= the snapshots ({count})", rank)
    past = snapshots.flat()
    if iterates is None:
        gaussian = moments(past, rank).to(dtype)
    else:
        mean, variance = iterates
        gaussian = Moments(mean, variance.sqrt(), past[count - rank :].double() - mean).to(dtype)
    stored = past.dtype
    del past  # as large as all draws

    def draw(numbers: range) -> dict[str, Tensor]:
        points = torch.empty(len(numbers), len(gaussian.mean), dtype=stored)
        for point, number in zip(points, numbers, strict=True):
            generator = rng.fold("draw", number).generator()
            z1 = torch.randn(len(gaussian.mean), generator=generator, dtype=dtype)
            z2 = torch.randn(rank, generator=generator, dtype=dtype)
            point.copy_(gaussian.draw(z1, z2, config.scale))
        return snapshots.named(points)

    return snapshots.draws(draw, config.draws, report=report).state()


def _default(draws: int, size: Size) -> Section:
    return {"rank": min(10, default_iterates(size)["snapshots"] - 1), "draws": draws}


def _from_model(fit: ModelFit) -> Section:
    rank = 0 if fit.snapshots < 3 else min(10, fit.snapshots - 1)
    return {"rank": rank, "scale": 1.0, "draws": fit.draws, **batch_norm(fit)}


SWAG = Method(
    name="swag",
    family="trajectory",
    bayesian=True,
    config=SwagConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"})},
    program=True,
    weighs_rows=True,
    search={"scale": (0.05, 5.0, "log")},
    settings={"scale": 1.0, **BATCH_NORM},
    default=Default(0.2, "iterates", partial(_default, 20)),
    from_model=FromModel(_from_model),
)

MULTI_SWAG = replace(
    SWAG,
    name="multi_swag",
    stages={"student": StageSpec(partial(fit, method="multi_swag"), needs={"trajectory": "all"})},
    from_model=None,
    default=Default(
        0.2,
        "iterates",
        partial(_default, 7),  # 21 draws of three trajectories: about as many as swag has
        automatic=lambda size: (
            "on the most tables of results/your_data its NLL is at or below boosting's"
            if size.image is None and not size.tiny
            else ""
        ),
    ),
)
