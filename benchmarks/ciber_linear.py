"""Bayesian linear regression, CIBER's figures 3 and 4: a box of samples against the samples, to the true predictive.

Zeng and Van den Broeck 2023, section 4.3: y ~ N(w·x, σ²), w ~ N(μ, Σ), so that y ~ N(μ·x, x'Σx + σ²). CIBER takes each
weight as uniform on [min, max] of S samples, independently, and integrates the triangular likelihood exactly; Monte
Carlo takes the mixture of S Gaussians. The paper has, over ten trials, KL .069 against .130 for five samples; for fifty
samples Monte Carlo needs more than 100 to match. It states no dimension, input, noise or prior. Our settings:

    isotropic   Σ = τ²I, a random direction of x, d = 1, 2, 5 weights. The only other parameter is ``spread`` =
                √(x'Σx)/σ; Monte Carlo does not even depend on d
    line        intercept and slope (d = 2), prior N(0, I), 3 or 20 rows with x ~ U(-1, 1), σ = 0.5; test inputs
                U(-2, 2); the two weights are correlated, which a box ignores

A triangle's support is bounded, so KL(truth ‖ CIBER) is infinite. These measures are finite:

    tail        KL(truth ‖ 0.99 CIBER + 0.01 Gaussian of its mean and variance)
    support     ∫ p log(p/q) over the support of q, with p as it is: no divergence, and can be negative
    reverse     KL(CIBER ‖ truth)
    variation   ∫ |p - q|/2, half of the quantity in the paper's figure 3; finite for every support
    pooled      KL(truth ‖ q), q the average over ten trials of the estimates (with the tail): the other way to read
                "averaged over 10 trials", as the paper's figure 3 averages

Beside both, "fit" is the Gaussian with the mean and variance of f over the same samples, plus σ², at no cost. This
module has the settings, the estimates and the divergences; ``benchmarks/ciber_linear_tables.py`` writes the tables.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.collapsed.integrals import few_uniforms, radius
from bdl_pipe.seeds import Seed

TAIL = 0.01
POINTS = 601  # points of the grid of y
TOGETHER = 10  # number of trials in an average of estimates


@dataclass(frozen=True)
class Problem:
    """One predictive for each trial, σ = 1 and the true mean 0: samples of w - μ, and the input.

    Attributes:
        weights: samples [trial, sample, d].
        x: inputs [trial, d].
        spread: the true deviation of f = w·x [trial].
    """

    weights: Float[Tensor, "trial sample d"]
    x: Float[Tensor, "trial d"]
    spread: Float[Tensor, " trial"]

    @property
    def f(self) -> Float[Tensor, "trial sample"]:
        return torch.einsum("tsd,td->ts", self.weights, self.x)

    @property
    def deviation(self) -> Float[Tensor, " trial"]:
        """The standard deviation of the true predictive."""
        return (1 + self.spread**2).sqrt()

    def few(self, count: int) -> "Problem":
        return Problem(self.weights[:, :count], self.x, self.spread)


def isotropic(d: int, spread: float, samples: int, trials: int, rng: Seed) -> Problem:
    """The same numbers for every spread, and the same f for every number of samples."""
    random = rng.fold("isotropic", d).generator()
    x = torch.randn(trials, d, generator=random, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    weights = spread * torch.randn(trials, samples, d, generator=random, dtype=torch.float64)
    return Problem(weights, x, torch.full((trials,), spread, dtype=torch.float64))


def line(rows: int, noise: float, samples: int, trials: int, rng: Seed) -> Problem:
    """A data set, its exact posterior, and one test input for each trial; divided by the noise."""
    random = rng.fold("line", rows).generator()
    inputs = 2 * torch.rand(trials, rows, generator=random, dtype=torch.float64) - 1
    design = torch.stack([torch.ones_like(inputs), inputs], -1)  # [trial, row, 2]
    precision = torch.eye(2, dtype=torch.float64) + design.mT @ design / noise**2
    root = torch.linalg.cholesky(precision.inverse())  # [trial, 2, 2]
    at = 4 * torch.rand(trials, generator=random, dtype=torch.float64) - 2
    x = torch.stack([torch.ones_like(at), at], -1) / noise
    weights = torch.randn(trials, samples, 2, generator=random, dtype=torch.float64) @ root.mT
    return Problem(weights, x, (root.mT @ x[..., None]).norm(dim=(-2, -1)))


def grid(problem: Problem) -> Float[Tensor, "trial y"]:
    """A grid of y over nine true deviations on either side."""
    return problem.deviation[:, None] * torch.linspace(-9, 9, POINTS, dtype=torch.float64)


def truth(problem: Problem, y: Float[Tensor, "trial y"]) -> Float[Tensor, "trial y"]:
    """The log density of the true predictive."""
    return gaussian(y, torch.zeros(len(y), 1).to(y), problem.deviation[:, None])


def gaussian(y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return -(((y - mean) / deviation) ** 2) / 2 - deviation.log() - math.log(2 * math.pi) / 2


def monte_carlo(problem: Problem, y: Float[Tensor, "trial y"]) -> Float[Tensor, "trial y"]:
    """The log density of the mixture over the samples of N(f, 1), one sample at a time."""
    total = torch.full_like(y, -torch.inf)
    for f in problem.f.unbind(1):
        total = torch.logaddexp(total, -((y - f[:, None]) ** 2) / 2)
    return total - math.log(problem.f.shape[1] * math.sqrt(2 * math.pi))


def fitted(problem: Problem, y: Float[Tensor, "trial y"]) -> Float[Tensor, "trial y"]:
    f = problem.f
    return gaussian(y, f.mean(1, keepdim=True), (1 + f.var(1, keepdim=True)).sqrt())


@dataclass(frozen=True)
class Box:
    """The uniform distribution over [min, max] of each weight, seen from x."""

    centre: Float[Tensor, " trial"]
    half_widths: Float[Tensor, "trial d"]

    @classmethod
    def of(cls, problem: Problem) -> "Box":
        low, high = problem.weights.amin(1), problem.weights.amax(1)
        return cls(((low + high) / 2 * problem.x).sum(-1), ((high - low) / 2 * problem.x).abs())

    @property
    def variance(self) -> Float[Tensor, " trial"]:
        """The variance of f."""
        return (self.half_widths**2).sum(-1) / 3

    def log_density(self, y: Float[Tensor, "trial y"], match: str) -> Float[Tensor, "trial y"]:
        """The log density of y; -∞ beyond the support."""
        return few_uniforms.log_triangular_density(
            y, self.centre[:, None], self.half_widths[:, None], radius(1.0, match)
        )


def with_tail(log_q: Tensor, y: Tensor, made: Box, match: str) -> Tensor:
    """The defensive mixture with a Gaussian of the same mean and variance [trial, y]."""
    deviation = (made.variance + radius(1.0, match) ** 2 / 6).sqrt()[:, None]
    tail = gaussian(y, made.centre[:, None], deviation) + math.log(TAIL)
    return torch.logaddexp(log_q + math.log1p(-TAIL), tail)


def divergence(y: Tensor, log_p: Tensor, log_q: Tensor) -> Float[Tensor, " trial"]:
    """∫ p (log p - log q) dy over where both are positive, by the trapezoidal rule."""
    gap = (log_p - log_q).nan_to_num(0, 0, 0)
    return torch.trapezoid(log_p.exp() * gap, y, dim=-1)


def variation(y: Tensor, log_p: Tensor, log_q: Tensor) -> Float[Tensor, " trial"]:
    """The total variation distance, between 0 and 1."""
    return torch.trapezoid((log_p.exp() - log_q.exp()).abs(), y, dim=-1) / 2


def scores(problem: Problem) -> dict[str, Tensor]:
    """The score [trial] of each estimate from these samples by each measure."""
    y = grid(problem)
    p = truth(problem, y)
    mixture, fit = monte_carlo(problem, y), fitted(problem, y)
    found = {"mc": divergence(y, p, mixture), "mc reverse": divergence(y, mixture, p), "fit": divergence(y, p, fit)}
    found |= {"mc variation": variation(y, p, mixture), "fit variation": variation(y, p, fit)}
    made = Box.of(problem)
    for match in ("variance", "density"):
        q = made.log_density(y, match)
        found[f"{match} tail"] = divergence(y, p, with_tail(q, y, made, match))
        found[f"{match} support"] = divergence(y, p, q)
        found[f"{match} reverse"] = divergence(y, q, p)
        found[f"{match} variation"] = variation(y, p, q)
        found[f"{match} outside"] = torch.trapezoid(torch.where(q.isfinite(), 0, p.exp()), y, dim=-1)
    found["variance ratio"] = (1 + made.variance) / problem.deviation**2
    return found


def pooled(problem: Problem) -> dict[str, Tensor]:
    """KL(truth ‖ the average over ten trials of the estimates) [trial / 10]; the truth is the same for all."""
    y, made = grid(problem), Box.of(problem)
    p = truth(problem, y)[::TOGETHER]
    boxes = {m: with_tail(made.log_density(y, m), y, made, m) for m in ("variance", "density")}
    found = {"mc": monte_carlo(problem, y), "fit": fitted(problem, y)} | boxes
    averaged = {k: q.unflatten(0, (-1, TOGETHER)).logsumexp(1) - math.log(TOGETHER) for k, q in found.items()}
    return {key: divergence(y[::TOGETHER], p, q) for key, q in averaged.items()}


def curve(problem: Problem, sizes: Sequence[int]) -> list[float]:
    """KL(truth ‖ Monte Carlo) for each number of samples, averaged over the trials; larger numbers add samples."""
    y, found, done = grid(problem), [], 0
    p, q = truth(problem, y), torch.full_like(y, -torch.inf)
    for size in sizes:
        more = Problem(problem.weights[:, done:size], problem.x, problem.spread)
        q = torch.logaddexp(q + math.log(max(done, 1)), monte_carlo(more, y) + math.log(size - done)) - math.log(size)
        found.append(float(divergence(y, p, q).mean()))
        done = size
    return found


def needed(level: float, sizes: Sequence[int], means: Sequence[float]) -> str:
    """The number of samples at which the curve falls to ``level``, interpolated on logarithmic scales."""
    if means[0] <= level:
        return f"≤ {sizes[0]}"
    for k in range(1, len(sizes)):
        if means[k] <= level:
            part = math.log(means[k - 1] / level) / math.log(means[k - 1] / means[k])
            return f"{sizes[k - 1] * (sizes[k] / sizes[k - 1]) ** part:.0f}"
    return f"> {sizes[-1]}"


def spread_of(level: float, of: Callable[[Problem], Tensor], trials: int, rng: Seed) -> float:
    """The spread at which five samples give Monte Carlo a mean KL of ``level``, by bisection on the same samples."""
    low, high = 0.1, 8.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        above = float(of(isotropic(1, middle, 5, trials, rng)).mean()) > level
        low, high = (low, middle) if above else (middle, high)
    return (low + high) / 2


def each_trial(problem: Problem) -> Tensor:
    y = grid(problem)
    return divergence(y, truth(problem, y), monte_carlo(problem, y))


def averaged_trials(problem: Problem) -> Tensor:
    y = grid(problem)
    q = monte_carlo(problem, y).unflatten(0, (-1, TOGETHER)).logsumexp(1) - math.log(TOGETHER)
    return divergence(y[::TOGETHER], truth(problem, y)[::TOGETHER], q)
