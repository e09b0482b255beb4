"""Acquisition functions of points in the unit cube, maximised by their gradient from several starts.

A :data:`Value` maps points [row, column] to a value of each; it is differentiated through the posterior's answers.
Improvement is maximised by its logarithm, whose gradient does not vanish where the improvement does (Ament et al. 2023,
"Unexpected improvements to expected improvement for Bayesian optimization"). A batch is chosen point by point, given
the points before (Wilson et al. 2018, "Maximizing acquisition functions for Bayesian optimization", section 3.2).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.seeds import Seed

from .question import Belief, Question

Value = Callable[[Float[Tensor, "row column"]], Float[Tensor, " row"]]
Propose = Callable[
    [Any, Question, float, Seed], np.ndarray
]  # (belief or None, question, width, address) -> [count, column]
Box = tuple[np.ndarray, np.ndarray]  # the least and the largest value of each column
Acquisition = Callable[[Belief, Question, float, Seed, Tensor], Value]  # (…, the points before [point, column])
_NEAR: Final = 0.1  # standard deviation of candidates around the best input, in sides of the box
_STARTS: Final = 8
_STEPS: Final = 60
_APART: Final = 1e-4  # the least distance of a new point from all others, in some column
_DRAWS: Final = 128  # functions in the expectation of a batch's improvement
_SMOOTH: Final = 1e-4  # the width of a draw's improvement, in standard deviations of the known values
_LEAST: Final = 1e-9  # the least standard deviation of a function, in the same unit


def candidates(
    best: np.ndarray, count: int, random: np.random.Generator, box: Box | None = None
) -> Float[np.ndarray, "point column"]:
    """Return points of the box, half of them uniform and half around the best input so far; None: the unit cube."""
    low, high = (np.zeros(len(best)), np.ones(len(best))) if box is None else box
    half = (count // 2, len(best))
    near = np.clip(best + _NEAR * (high - low) * random.standard_normal(half), low, high)
    return np.concatenate([low + (high - low) * random.random((count - half[0], len(best))), near])


def around_best(question: Question, region: float, rng: Seed) -> Question:
    """Return the question whose points are at most ``region`` from the best input so far, in each column."""
    assert question.known is not None
    rows, values = question.known
    best = rows[values.argmax()]
    box = (np.clip(best - region, 0, 1), np.clip(best + region, 0, 1))
    asked = candidates(best, question.candidates.shape[1], rng.numpy(), box)
    return replace(question, candidates=asked[None], box=box)


def proposes(acquisition: Acquisition) -> Propose:
    """Return the choice of a batch, each point of which has the largest acquisition given the points before."""

    def propose(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
        others = torch.from_numpy(question.candidates[0][:0] if question.known is None else question.known[0])
        chosen = others[:0]
        for number in range(question.count):
            address = rng.fold("point", number)
            value = acquisition(belief, question, width, address.fold("value"), chosen)
            near = torch.cat([others, chosen])
            point = best_point(value, question.candidates[0], near, address.fold("starts"), question.box)
            chosen = torch.cat([chosen, point[None]])
        return chosen.numpy()

    return propose


def best_point(
    value: Value, candidates: np.ndarray, others: Tensor, rng: Seed, box: Box | None = None
) -> Float[Tensor, " column"]:
    """Return the point with the largest value that is none of ``others``, in the box or in the unit cube.

    The starts are the best candidates of some random blocks. A value without a gradient, such as that of trees, takes
    the best candidate.
    """
    points = torch.from_numpy(candidates).double()
    with torch.no_grad():
        values = value(points)
    blocks = torch.from_numpy(rng.numpy().permutation(len(points))).chunk(_STARTS)
    starts = points[torch.stack([block[values[block].argmax()] for block in blocks])]
    ends = torch.cat([ascended(value, starts, box), points])
    with torch.no_grad():
        values = torch.cat([value(ends[: len(starts)]), values])
    if len(others):
        near = (ends[:, None] - others).abs().amax(-1).amin(-1) < _APART
        values = values.masked_fill(near, -torch.inf)
    return ends[values.nan_to_num(-torch.inf).argmax()]


def ascended(
    value: Value, starts: Float[Tensor, "start column"], box: Box | None = None
) -> Float[Tensor, "start column"]:
    """Return the ends of L-BFGS-B from all starts at once, in the box or the cube; the starts without a gradient."""
    from scipy.optimize import minimize  # imported here, because the import takes half a second

    if not value(starts.clone().requires_grad_()).requires_grad:
        return starts

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        points = torch.from_numpy(flat).view_as(starts).requires_grad_()
        total = -value(points).double().nan_to_num(-1e10, -1e10, -1e10).sum()
        (gradient,) = torch.autograd.grad(total, points)
        return total.item(), gradient.nan_to_num(0.0, 0.0, 0.0).flatten().numpy()

    low, high = (np.zeros(starts.shape[1]), np.ones(starts.shape[1])) if box is None else box
    bounds = list(zip(low, high, strict=True)) * len(starts)
    end = minimize(
        loss, starts.flatten().numpy(), jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": _STEPS}
    )
    return torch.from_numpy(np.clip(end.x.reshape(starts.shape), low, high))


def mean_of(belief: Belief, question: Question, width: float, rng: Seed, before: Tensor) -> Value:
    """Return the mean of the predictive."""
    return lambda points: belief.means(points[None], rng)[0]


def bound_of(belief: Belief, question: Question, width: float, rng: Seed, before: Tensor) -> Value:
    """Return mean + width · standard deviation."""
    return lambda points: upper_bound(*belief.parts(points[:, None], rng), width)[:, 0]


def improvement_of(belief: Belief, question: Question, width: float, rng: Seed, before: Tensor) -> Value:
    """Return the log of the expected improvement on the best known value and on the points before.

    It is exact for one point; for more it is a mean over functions drawn at all points together.
    """
    assert question.known is not None
    unit = float(question.known[1].std())
    smooth = _SMOOTH * unit

    def one(points: Tensor) -> Tensor:
        mean, deviation = belief.parts(points[:, None], rng)
        deviation = deviation.clamp_min(_LEAST * (unit or 1)) if deviation.any() else deviation + smooth
        return log_expected_improvement(mean, deviation, question.best)[:, 0]

    def more(points: Tensor) -> Tensor:
        drawn = belief.values(torch.cat([before, points])[None], _DRAWS, rng)[:, 0]
        reached = drawn[:, : len(before)].amax(1, keepdim=True).clamp_min(question.best)
        gain = torch.maximum(drawn[:, len(before) :], reached) - question.best
        return torch.logsumexp(log_softplus(gain / smooth), 0)

    return more if len(before) else one


def function_of(belief: Belief, question: Question, width: float, rng: Seed, before: Tensor) -> Value:
    """Return a drawn function; without one that can be kept, its values at the candidates only."""
    drawn = belief.drawn(rng)
    if drawn is not None:
        return drawn
    return lambda points: belief.values(points.detach()[None], 1, rng)[0, 0]


def upper_bound(mean: Tensor, deviation: Tensor, width: float) -> Float[Tensor, "group row"]:
    """Return mean + width · standard deviation of an equal mixture of N(mean, deviation²) [part, group, row]."""
    spread = (deviation.square().mean(0) + mean.var(0, correction=0)).clamp_min(1e-30).sqrt()
    return mean.mean(0) + width * spread


def log_expected_improvement(
    mean: Float[Tensor, "part group row"], deviation: Float[Tensor, "part group row"], best: float
) -> Float[Tensor, "group row"]:
    """Return log E[max(f − best, 0)] of an equal mixture of N(mean, deviation²), deviations > 0 (Ament et al., eq. 9).

    E[max(f − best, 0)] = σ(φ(z) + zΦ(z)) with z = (mean − best)/σ.
    """
    sigma = deviation.double()
    z = (mean.double() - best) / sigma
    high = z.clamp_min(-1.0)
    above = (torch.exp(-0.5 * high.square()) / math.sqrt(2 * math.pi) + high * torch.special.ndtr(high)).log()
    low = z.clamp(-1e3, -1.0)
    ratio = math.sqrt(math.pi / 2) * torch.special.erfcx(-low / math.sqrt(2))  # Φ/φ
    middle = torch.log1p(low * ratio)
    far = -2 * z.clamp_max(-1e3).neg().log()
    tail = torch.where(z < -1e3, far, middle) - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(sigma.log() + torch.where(z > -1, above, tail), 0) - math.log(len(mean))


def log_softplus(u: Tensor) -> Tensor:
    """Return log log(1 + e^u), which is u for small u."""
    return torch.where(u > -20, F.softplus(u.clamp_min(-20)).log(), u)
