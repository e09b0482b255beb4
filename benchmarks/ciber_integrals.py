"""The closed forms of CIBER's paper, exactly: example 4, and the sigmoid under a Gaussian.

Zeng and Van den Broeck 2023. Example 4 (section 3): f = ReLU(w), w uniform on [-3, 3], y triangular about f; they print
p(y = 1) = 0.164 and E[y] = 0.752. The sigmoid integral (section 4.3): I = ∫ σ(f) N(f) df for f = w·x, 0.823 exactly,
0.826 by CIBER, 0.732 by Monte Carlo, with neither x nor the Gaussian stated.

    python -m benchmarks.ciber_integrals
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from mpmath import mp, mpf
from scipy.optimize import brentq
from torch import Tensor

from bdl_pipe.collapsed.integrals import Piecewise, cubic_sigmoid, few_uniforms, triangular
from bdl_pipe.seeds import Seed
from benchmarks.written import PAGES, error, table, write

DIGITS = 50
PAPER_P, PAPER_MEAN = 0.164, 0.752
PAPER_I, PAPER_CIBER, PAPER_MC = 0.823, 0.826, 0.732
DEVIATIONS = (0.25, 0.5, 1.0, 2.0, 4.0)
SAMPLES = (5, 10, 20, 50)


def nearest_radius() -> mpf:
    """The radius of the triangle nearest to N(0, 1) in L2: the zero of the squared distance's derivative."""
    with mp.workdps(DIGITS):
        return mp.findroot(lambda r: r * mp.erf(r / mp.sqrt(2)) - r / 3 - 4 * (mp.npdf(0) - mp.npdf(r)), mpf("2.3"))


def triangle(u: mpf, r: mpf) -> mpf:
    return max(mpf(0), (r - abs(u)) / r**2)


def triangle_below(u: mpf, r: mpf) -> mpf:
    """P(T ≤ u)."""
    if abs(u) >= r:
        return mpf(u > 0)
    tail = (r - abs(u)) ** 2 / (2 * r**2)
    return tail if u < 0 else 1 - tail


@dataclass(frozen=True)
class Example:
    """p(y = 1) of example 4: the part of the weights where the unit is off, and the part where it is on.

    off = tri(1)/2,    on = (1/6) ∫_0^3 tri(1 - w) dw = P(-2 ≤ T ≤ 1)/6
    """

    off: mpf
    on: mpf

    @classmethod
    def of(cls, r: mpf) -> "Example":
        with mp.workdps(DIGITS):
            r = mpf(r)
            return cls(triangle(mpf(1), r) / 2, (triangle_below(mpf(1), r) - triangle_below(mpf(-2), r)) / 6)

    @property
    def total(self) -> mpf:
        with mp.workdps(DIGITS):
            return self.off + self.on


def by_box(r: float) -> float:
    """p(y = 1) by the box integral: tri(1 - ReLU(w)) as a piecewise polynomial of w."""
    likelihood = triangular(torch.tensor(r, dtype=torch.float64))
    breaks, pieces = likelihood.breakpoints + 1, likelihood.coefficients  # as functions of w, where the unit is on
    level = float(likelihood(torch.tensor(-1.0, dtype=torch.float64)))
    starts, rows = [0.0], [[level, 0.0]]
    slope = float(pieces[1, 1]) if r > 1 else 0.0
    rows.append([level, slope])
    if r <= 1:
        starts.append(float(breaks[0]))
        rows.append(pieces[1].tolist())
    starts += breaks[1:].tolist()
    rows += pieces[2:].tolist()
    g = Piecewise(torch.tensor(starts, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64))
    return float(
        few_uniforms.expect(g, torch.tensor(0.0, dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64))
    )


def radii() -> dict[str, mpf]:
    """Radii that a reader of the paper might use, and slips about them."""
    with mp.workdps(DIGITS):
        named = {"√6": mp.sqrt(6), "L2": nearest_radius(), "1": mpf(1), "2": mpf(2), "3": mpf(3)}
        changed: dict[str, Callable[[mpf], mpf]] = {"": lambda r: r, "/2": lambda r: r / 2, "·2": lambda r: 2 * r}
        changed |= {"²": lambda r: r**2, "^½": mp.sqrt}
        pairs = itertools.product(named.items(), changed.items())
        every = {(f"({n}){c}" if c else n): float(change(r)) for (n, r), (c, change) in pairs}
        return {name: mpf(r) for name, r in {r: (n, r) for n, r in reversed(every.items())}.values()}


def variants(r: mpf) -> dict[str, mpf]:
    """Other quantities that the paper could have computed in place of p(y = 1), for a radius."""
    found = Example.of(r)
    with mp.workdps(DIGITS):
        # as printed, (1 - |u|)/α: zero at y = 1 where the unit is off, negative beyond
        printed, mass = mp.quad(lambda u: (1 - abs(u)) / r, [max(-2, -r), 0, min(1, r)]) / 6, 2 - r
        return {
            "all of it": found.total,
            "the half where the unit is on": found.on,
            "that half, by itself normalised": 2 * found.on,
            "the half where it is off": found.off,
            "both halves with the weight 1/3": 2 * found.total,
            "the triangle of height 1": r * found.total,
            "(1 - |u|)/α as printed, |u| ≤ α": printed,
            "the same, divided by its mass": printed / mass if mass else mpf(0),
            "(1 - |u|)/α where positive": mp.quad(lambda u: (1 - abs(u)) / r, [-min(r, 1), 0, min(r, 1)]) / 6,
        }


def gaussian_example() -> mpf:
    """p(y = 1) of example 3, the Gaussian likelihood."""
    with mp.workdps(DIGITS):
        return mp.npdf(1) / 2 + (mp.ncdf(1) - mp.ncdf(-2)) / 6


def example_page() -> list[str]:
    exact = {"√6, the variance": mp.sqrt(6), "2.297, the nearest in L2": nearest_radius()}
    rows = [[n, mp.nstr(Example.of(r).total, 30), f"{by_box(float(r)):.15f}"] for n, r in exact.items()]
    rows.append(["Gaussian likelihood", mp.nstr(gaussian_example(), 30), ""])
    zero, half = torch.tensor(0.0, dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64)
    relu = Piecewise(zero[None], torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    mean = f"E[y] = E[ReLU(w)] = 3/4 for each; the box integral: {float(few_uniforms.expect(relu, zero, half))!r}."
    parts = ["## Example 4", table(["radius", "p(y = 1), 50 digits rounded to 30", "box integral, float64"], rows)]
    parts.append(mean)
    tried, hits = 0, []
    for name, r in radii().items():
        for variant, value in variants(r).items():
            tried += 1
            if abs(value - PAPER_P) <= 0.0005:
                hits.append([name, mp.nstr(r, 5), variant, mp.nstr(value, 6)])
    parts += [f"Of {tried} pairs of a radius and a way to compute, those that round to {PAPER_P}:"]
    parts += [table(["radius", "value", "what", "p"], hits, left=3) if hits else "none."]
    all_of_it = brentq(lambda r: float(Example.of(mpf(r)).total) - PAPER_P, 3.0, 9.0)
    parts += [f"All of it is {PAPER_P} at radius {all_of_it:.4f} and nowhere else."]
    return parts


def gaussian_sigmoid(mean: float | mpf, deviation: float | mpf) -> mpf:
    """∫ σ(f) N(f; mean, deviation²) df, to 50 digits.

    The trapezoidal rule of step h on the whole line has an error of e^(-2πd/h) for a pole at a distance of d = π/s from
    the real axis (Trefethen and Weideman 2014): 1e-60 here. The mass beyond 16 deviations is 1e-56.
    """
    with mp.workdps(DIGITS):
        m, s = mpf(mean), mpf(deviation)
        count = 8 * max(4, math.ceil(deviation))  # points in a deviation
        terms = (mp.npdf(mpf(k) / count) / (1 + mp.exp(-m - s * k / count)) for k in range(-16 * count, 16 * count + 1))
        return mp.fsum(terms) / count


def mean_of(integral: float, deviation: float) -> float:
    """The mean at which the integral has this value, by a quadrature of 400 nodes and in the end 50 digits."""
    nodes = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    weights = (-(nodes**2) / 2).exp() / (-(nodes**2) / 2).exp().sum()
    return brentq(lambda m: float((weights * (m + deviation * nodes).sigmoid()).sum()) - integral, -30, 30, xtol=1e-14)


def exact_box(centre: Tensor, half: Tensor) -> Tensor:
    """E[σ(c + hU)] of one uniform, without approximation: the softmax of two classes."""
    zero = torch.zeros_like(centre)
    return few_uniforms.softmax_one(torch.stack([zero, centre], -1), 1, -half, half, torch.ones_like(zero))[..., 1]


def matched_rows() -> list[list[str]]:
    """One weight, a box of the Gaussian's own mean and variance."""
    rows = []
    for deviation in DEVIATIONS:
        mean = mean_of(PAPER_I, deviation)
        centre, half = torch.tensor(mean, dtype=torch.float64), torch.tensor(math.sqrt(3) * deviation).double()
        cubics = [float(few_uniforms.expect(cubic_sigmoid(pieces), centre, half[None])) for pieces in (1, 8, 32)]
        probit = 1 / (1 + math.exp(-mean / math.sqrt(1 + math.pi * deviation**2 / 8)))
        values = [*cubics, float(exact_box(centre, half)), float(centre.sigmoid()), probit]
        exact = mp.nstr(gaussian_sigmoid(mean, deviation), 20)
        rows.append([f"{deviation:g}", f"{mean:.4f}", exact, *(f"{value:.4f}" for value in values)])
    return rows


def sampled(deviation: float, d: int, size: int, trials: int, rng: Seed) -> dict[str, Tensor]:
    """Estimates [trial] from S samples of d weights: the box of their ranges, and their average."""
    random = rng.fold("sigmoid", d, size).generator()
    x = torch.randn(trials, d, generator=random, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    noise = deviation * torch.randn(trials, size, d, generator=random, dtype=torch.float64)
    weights = mean_of(PAPER_I, deviation) * x[:, None] + noise  # so that w·x has the mean
    low, high = weights.amin(1), weights.amax(1)
    centre, half = ((low + high) / 2 * x).sum(-1), ((high - low) / 2 * x).abs()
    found = {
        "one cubic": few_uniforms.expect(cubic_sigmoid(1), centre, half),
        "8 cubics": few_uniforms.expect(cubic_sigmoid(8), centre, half),
    }
    if d == 1:
        found["exact"] = exact_box(centre, half[:, 0])
    return found | {"MC": torch.einsum("tsd,td->ts", weights, x).sigmoid().mean(1)}


def sampled_rows(trials: int, rng: Seed) -> list[list[str]]:
    rows = []
    for deviation, d, size in itertools.product((0.5, 1.0, 2.0, 4.0), (1, 5), SAMPLES):
        found = sampled(deviation, d, size, trials, rng)
        off = {name: value - PAPER_I for name, value in found.items()}
        cells = [f"{float(v.mean()):+.4f}, {float((v**2).mean().sqrt()):.4f}" for v in off.values()]
        if d > 1:
            cells.insert(2, "")
        nearer = (off["8 cubics"].abs() < off["MC"].abs()).double()
        as_far = (off["MC"].abs() >= PAPER_I - PAPER_MC).double().mean()
        share = error(100 * float(nearer.mean()), 100 * float(nearer.std()) / math.sqrt(trials), 1)
        rows.append([f"{deviation:g}", str(d), str(size), *cells, share, f"{100 * float(as_far):.1f} %"])
    return rows


MATCHED = ["deviation", "mean", "50-digit integral", "one cubic", "8 cubics", "32 cubics", "exact over the box"]
MATCHED += ["σ(mean)", "probit"]
SAMPLED = ["deviation", "d", "S", "one cubic", "8 cubics", "exact", "MC", "CIBER nearer, %", "MC off by ≥ .091"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, rng = time.process_time(), Seed(options.seed).fold("ciber integrals")
    parts = [
        *example_page(),
        "## The sigmoid integral",
        ABOUT,
        table(MATCHED, matched_rows()),
        FEW.format(options.trials),
    ]
    parts += [table(SAMPLED, sampled_rows(options.trials, rng))]
    write(PAGES / "integrals.md", "Example 4 and the sigmoid", "python -m benchmarks.ciber_integrals", parts, start)


ABOUT = f"""For each deviation of f the mean at which the integral is {PAPER_I}; a box of that mean and variance, d = 1.
The paper has {PAPER_CIBER} by CIBER and {PAPER_MC} by Monte Carlo."""
FEW = """From S samples of w ~ N(μ, Σ), isotropic, in a random direction x: mean error, root mean square error over {}
trials; how often CIBER (8 cubics) is nearer than Monte Carlo; how often Monte Carlo is off by what the paper's is."""

if __name__ == "__main__":
    main()
