"""results/dark_knowledge/failings.md: what a factorised Gaussian loses, on posteriors that a grid knows exactly.

    python -m benchmarks.failings             # some CPU seconds

The discussion notes of Bayesian dark knowledge state that variational inference (VI) and expectation propagation (EP)
often use a factorised Gaussian, which may fail to capture correlations, several modes, or skewness. Each toy posterior
here has one of these. *exact*: sums over a grid. *VI*: the Gaussian of the least KL(q ‖ p), the best of five starts, on
the same grid. *EP*: a Gaussian factor for each row, refined with the moments of the tilted distributions on the grid
until nothing changes. *chains*: sixteen chains of Hamiltonian Monte Carlo (``bdl_pipe.sgmcmc.Hmc``) that begin at draws
from the prior; the mean of three seeds, with its standard error. *one chain*: the first of them.

- **correlation**: y = w x + b + N(0, 0.5²), five rows with x from 0.5 to 2.5, and N(0, 2²) as the prior of w and b.
- **modes**: y = w² + N(0, 0.5²), three rows near 1, and N(0, 1) as the prior of w.
- **skewness**: y = max(0, w) + N(0, 0.3²), four rows near 0, and N(0, 1) as the prior of w.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bdl_pipe.baselines.moment_propagation import Beliefs
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Hmc, sample
from benchmarks import written
from benchmarks.toys.problems import OUT
from pipeline.core import provenance, records

CHAINS, STEPS, BURN_IN, SEEDS = 16, 1000, 200, 3
SWEEPS: Final = 1000  # the most sweeps of EP over the rows
DAMPING: Final = 0.5
STARTS: Final = (-1.0, -0.5, 0.1, 0.5, 1.0)  # VI starts from these means, in deviations of the prior
EPOCHS: Final = (1, 40)  # passes over the rows; a step is exact in the moments of one row of a line
Numbers = Callable[[Tensor, Tensor], dict[str, float]]


@dataclass(frozen=True)
class Toy:
    """A posterior of one or two weights.

    Attributes:
        prior_sd: the standard deviation of the prior N(0, s² I).
        rows: the log-likelihood of each row, weights [n, d] -> [row, n].
        size: the number of weights.
        ends: the grid reaches from −ends to ends in each weight.
        points: the number of points of the grid in each weight.
        numbers: the figures of a distribution of points [n, d] with weights [n].
    """

    prior_sd: float
    rows: Callable[[Tensor], Tensor]
    size: int
    ends: float
    points: int
    numbers: Numbers

    def grid(self) -> Tensor:
        """Return the points of the grid [n, d]."""
        axis = torch.linspace(-self.ends, self.ends, self.points, dtype=torch.float64)
        return torch.cartesian_prod(*[axis] * self.size).reshape(-1, self.size)

    def log_density(self, weights: Tensor) -> Tensor:
        """Return log p(w, D) up to a constant."""
        return gaussian(weights, torch.zeros(self.size), torch.full((self.size,), self.prior_sd)) + self.rows(
            weights
        ).sum(0)


def gaussian(weights: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """Return the log density of independent Gaussians up to a constant that depends on ``sd``'s product."""
    return -(0.5 * ((weights - mean) / sd).square() + sd.log()).sum(-1)


def share(log_density: Tensor) -> Tensor:
    """Return the probabilities of the points of a grid."""
    return torch.softmax(log_density, 0)


def moments(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each weight."""
    mean = weights @ points
    return mean, weights @ (points - mean).square()


def variational(toy: Toy, starts: Sequence[float] = STARTS) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the factorised Gaussian of the least KL(q ‖ p); ``starts`` are of its means."""
    points = toy.grid()
    target = toy.log_density(points)
    best: tuple[float, Tensor, Tensor] | None = None
    for start in starts:
        mean = torch.full((toy.size,), start * toy.prior_sd, dtype=torch.float64, requires_grad=True)
        log_sd = torch.full((toy.size,), math.log(0.3 * toy.prior_sd), dtype=torch.float64, requires_grad=True)
        rule = torch.optim.LBFGS(
            [mean, log_sd], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9, tolerance_change=1e-14
        )

        def loss(mean: Tensor = mean, log_sd: Tensor = log_sd) -> Tensor:
            q = share(gaussian(points, mean, log_sd.exp()))
            return -(q * target).sum() - log_sd.sum()

        def closure(rule: torch.optim.LBFGS = rule, loss: Callable[[], Tensor] = loss) -> Tensor:
            rule.zero_grad()
            value = loss()
            value.backward()
            return value

        rule.step(closure)  # type: ignore[arg-type]
        value = float(loss().detach())
        if best is None or value < best[0]:
            best = value, mean.detach(), log_sd.detach().exp()
    assert best is not None
    return best[1], best[2]


def expectation_propagation(toy: Toy) -> tuple[Tensor, Tensor, int]:
    """Return mean and deviation of EP's factorised Gaussian, and the number of sweeps.

    Raises:
        ArithmeticError: the factors do not converge.
    """
    points = toy.grid()
    likelihood = toy.rows(points)
    precision = torch.zeros(len(likelihood), toy.size, dtype=torch.float64)
    product = torch.zeros_like(precision)
    prior = toy.prior_sd**-2
    for sweep in range(1, SWEEPS + 1):
        before = torch.cat([precision, product]).clone()
        for row, log_factor in enumerate(likelihood):
            cavity = prior + precision.sum(0) - precision[row]
            shift = product.sum(0) - product[row]
            if not (cavity > 0).all():
                continue
            tilted = share(gaussian(points, shift / cavity, cavity.rsqrt()) + log_factor)
            mean, variance = moments(points, tilted)
            precision[row] += DAMPING * (1 / variance - cavity - precision[row])
            product[row] += DAMPING * (mean / variance - shift - product[row])
        if (torch.cat([precision, product]) - before).abs().max() < 1e-8:
            whole = prior + precision.sum(0)
            return product.sum(0) / whole, whole.rsqrt(), sweep
    raise ArithmeticError(f"EP has not converged in {SWEEPS} sweeps")


def chains(toy: Toy, rng: Seed) -> Tensor:
    """Return draws of chains that begin at draws from the prior, [chain, draw, weight]."""
    start = toy.prior_sd * torch.randn(CHAINS, toy.size, generator=rng.fold("start").generator(), dtype=torch.float64)
    kernel = Hmc(12, jitter=0.2, acceptance=0.8)
    return sample(toy.log_density, start, kernel, 0.1, steps=STEPS, burn_in=BURN_IN, rng=rng.fold("chains"))


def backpropagation(x: Tensor, y: Tensor, toy: Toy, noise: float, epochs: int) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of w and b by the updates of ``pbp`` for a line, with a known noise."""
    gamma = torch.full((1, 1), 1e12, dtype=torch.float64)
    variance = torch.full((1, 1, 2), 2 * toy.prior_sd**2, dtype=torch.float64)  # a layer divides by √2
    beliefs = Beliefs([torch.zeros_like(variance)], [variance], gamma + 1, noise**2 * gamma)
    for _ in range(epochs):
        for row, target in zip(x, y, strict=True):
            beliefs = beliefs.given(row.reshape(1, 1), target.reshape(1, 1)).beliefs
    return beliefs.means[0][0, 0] / math.sqrt(2), (beliefs.variances[0][0, 0] / 2).sqrt()


X: Final = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64)
Y: Final = torch.tensor([0.9, 0.6, 2.1, 1.8, 2.7], dtype=torch.float64)
NOISE: Final = 0.5


def line(weights: Tensor) -> Tensor:
    """Return the rows' log-likelihood of y = w x + b."""
    means = weights[:, 0] * X[:, None] + weights[:, 1]
    return -0.5 * ((Y[:, None] - means) / NOISE).square()


def of_line(points: Tensor, weights: Tensor) -> dict[str, float]:
    _, variance = moments(points, weights)
    centred = points - weights @ points
    covariance = float(weights @ centred.prod(-1))
    sds = {}
    for at in (1.5, -1.5):
        values = points[:, :1] * at + points[:, 1:]
        sds[f"sd of f({at:g})"] = float(moments(values, weights)[1][0].sqrt())
    return {"correlation of w and b": covariance / float(variance.prod().sqrt()), **sds}


def square(weights: Tensor) -> Tensor:
    """Return the rows' log-likelihood of y = w²."""
    targets = torch.tensor([1.2, 0.7, 1.3], dtype=torch.float64)
    return -0.5 * ((targets[:, None] - weights[:, 0].square()) / 0.5).square()


def of_square(points: Tensor, weights: Tensor) -> dict[str, float]:
    w = points[:, 0]
    below, between = (float(weights @ chosen.double()) for chosen in (w < 0, w.abs() < 0.5))
    return {"P(w < 0)": below, "P(−0.5 < w < 0.5)": between, "E w²": float(weights @ w.square())}


def hinge(weights: Tensor) -> Tensor:
    """Return the rows' log-likelihood of y = max(0, w)."""
    targets = torch.tensor([0.1, -0.2, 0.2, -0.1], dtype=torch.float64)
    return -0.5 * ((targets[:, None] - weights[:, 0].relu()) / 0.3).square()


def of_hinge(points: Tensor, weights: Tensor) -> dict[str, float]:
    mean, variance = moments(points, weights)
    w = points[:, 0]
    third = float(weights @ (w - mean).pow(3)) / float(variance) ** 1.5
    return {"skewness": third, "P(w > 0.4)": float(weights @ (w > 0.4).double()), "E w": float(mean)}


TOYS: Final = {
    "correlation": Toy(2.0, line, 2, 10.0, 161, of_line),
    "modes": Toy(1.0, square, 1, 8.0, 4001, of_square),
    "skewness": Toy(1.0, hinge, 1, 8.0, 4001, of_hinge),
}


def of_draws(toy: Toy, draws: Tensor) -> dict[str, float]:
    points = draws.reshape(-1, toy.size).double()
    return toy.numbers(points, torch.full((len(points),), 1 / len(points), dtype=torch.float64))


def table(toy: Toy, name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the figures of each approximation, with its name."""
    points = toy.grid()

    def of_gaussian(mean: Tensor, sd: Tensor) -> dict[str, str]:
        return shown(toy.numbers(points, share(gaussian(points, mean, sd))))

    yield "exact", shown(toy.numbers(points, share(toy.log_density(points))))
    yield "VI", of_gaussian(*variational(toy))
    mean, sd, sweeps = expectation_propagation(toy)
    yield f"EP, {sweeps} sweeps", of_gaussian(mean, sd)
    if name == "correlation":
        for epochs in EPOCHS:
            title = f"probabilistic backpropagation, {epochs} epoch{'s' * (epochs > 1)}"
            yield title, of_gaussian(*backpropagation(X, Y, toy, NOISE, epochs))
    draws = [chains(toy, Seed(0).fold("failings", name, seed)) for seed in range(SEEDS)]
    each = [of_draws(toy, drawn) for drawn in draws]
    cells = {}
    for key in each[0]:
        cells[key] = written.error(*written.mean_and_error([figures[key] for figures in each]), digits=3)
    yield f"{CHAINS} chains", cells
    yield "one chain", shown(of_draws(toy, draws[0][:1]))


def shown(figures: Mapping[str, float]) -> dict[str, str]:
    return {key: f"{value + 0.0:.3f}".replace("-0.000", "0.000") for key, value in figures.items()}


def page(parts: Mapping[str, Sequence[tuple[str, Mapping[str, str]]]], facts: Mapping[str, str]) -> str:
    """Return the page as Markdown."""
    text = ["# What a factorised Gaussian loses", __doc__.split("\n\n", 2)[2].strip()]
    for name, rows in parts.items():
        cells = [[title, *of.values()] for title, of in rows]
        text += [f"## {name}", written.table(["", *rows[0][1]], cells)]
    text.append(written.listed(facts))
    return "\n\n".join(text) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    began, parts = time.process_time(), {}
    for name, toy in TOYS.items():
        parts[name] = list[tuple[str, Mapping[str, str]]]()
        for row in table(toy, name):
            print(name, *row, flush=True)
            parts[name].append(row)
    facts = {
        "commit": provenance.commit(),
        "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread, torch {torch.__version__}",
        "CPU seconds": f"{time.process_time() - began:.0f}",
    }
    (OUT / "failings.md").write_text(page(parts, facts))


if __name__ == "__main__":
    main()
