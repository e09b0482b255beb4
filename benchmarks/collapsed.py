"""Exact integrals over a box of weights: their number per second, beside other ways to compute them.

(a) triangular_density, d = 1, 3, 5, 8 uniform half-widths, float64, no gradient: ours; the textbook signed sum over
    corners (24 terms for d = 3), which loses its digits where widths differ; Monte Carlo; SciPy's nested adaptive
    quadrature (d = 1 and 3: at 5 an integral takes minutes).
(b) expect of a sigmoid of 1 and of 8 cubics.
(c) softmax_one, 10,000 images × 28 samples: one weight, and one weight for each of 10 classes, all classes each.

    python benchmarks/collapsed.py --threads 2

Rates are medians over repeats; "a core-second" counts processor time, which other work on the machine disturbs less.
"error" is the largest relative error against ours (for Monte Carlo the median error). "times for a tenth of the digits"
is the time that Monte Carlo would need for an error of 1e-13, ten times our error, over our time; it is computed from
Monte Carlo's error at ``--draws``. Goals: 1e6 integrals a second at d = 3, 1,000 times SciPy, Monte Carlo 100 times
slower for a tenth of the accuracy; (c) within 5 s.
"""

import argparse
import itertools
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from scipy.integrate import IntegrationWarning, nquad
from torch import Tensor

from bdl_pipe.collapsed.integrals import cubic_sigmoid, few_uniforms
from bdl_pipe.seeds import Seed

COUNTS = {1: 400_000, 3: 200_000, 5: 60_000, 8: 6_000}
OUR_ERROR = 1e-14  # tests/collapsed allow 1e-12; the largest observed error is 3e-15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--scipy", type=int, default=2, help="integrals by SciPy, of each d")
    parts = ["density", "expect", "softmax"]
    parser.add_argument("--only", choices=parts, nargs="+", default=parts)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps({"torch": torch.__version__, "device": options.device, "threads": options.threads}), flush=True)
    with torch.no_grad():
        if "density" in options.only:
            for d, count in COUNTS.items():
                densities(d, count, options)
        if "expect" in options.only:
            for d, pieces in itertools.product((1, 3, 8), (1, 8)):
                expectations(d, pieces, options)
        if "softmax" in options.only:
            for weights in (1, 10):
                softmaxes(weights, options)


def densities(d: int, count: int, options: argparse.Namespace) -> None:
    y, centre, widths, radius = points(d, count, options.device)
    busy = time.process_time()
    ours = clock(lambda: few_uniforms.triangular_density(y, centre, widths, radius), options.repeats)
    busy = (time.process_time() - busy) / (options.repeats + 1) / count
    density = few_uniforms.triangular_density(y, centre, widths, radius)
    say(f"density, d = {d}", "ours", ours / count, **{"a core-second": 1 / busy})
    few = min(count, 20_000)
    part = [values[:few] for values in (y, centre, widths, radius)]
    taken = clock(lambda: signed_sum(*part), options.repeats)
    say(f"density, d = {d}", "signed sum", taken / few, error=worst(signed_sum(*part), density[:few]))
    drawn = [values[:20] for values in (y, centre, widths, radius)]
    generator = Seed(0).fold("monte carlo").generator(options.device)
    taken = clock(lambda: monte_carlo(*drawn, options.draws, generator), options.repeats) / 20
    off = ((monte_carlo(*drawn, options.draws, generator) - density[:20]) / density[:20]).abs().median()
    needed = taken * (float(off) / (10 * OUR_ERROR)) ** 2 / (ours / count)
    more = {"error": float(off), "times ours": taken / (ours / count), "times for a tenth of the digits": needed}
    say(f"density, d = {d}", f"Monte Carlo, {options.draws} draws", taken, **more)
    if d <= 3:
        start = time.perf_counter()
        exact = torch.tensor([adaptive(*(v[i].tolist() for v in part)) for i in range(options.scipy)])
        taken = (time.perf_counter() - start) / options.scipy
        more = {"error": worst(exact.to(density), density[: options.scipy]), "times ours": taken / (ours / count)}
        say(f"density, d = {d}", "SciPy nquad", taken, **more)


def expectations(d: int, pieces: int, options: argparse.Namespace) -> None:
    count = COUNTS.get(d, 1000) // (10 * pieces)
    _, centre, widths, _ = points(d, count, options.device)
    g = cubic_sigmoid(pieces).to(centre)
    taken = clock(lambda: few_uniforms.expect(g, 3 * centre, widths), options.repeats)
    say(f"sigmoid of {pieces} cubics, d = {d}", "ours", taken / count)


def softmaxes(weights: int, options: argparse.Namespace) -> None:
    generator = Seed(0).fold("softmax").generator(options.device)
    logits = 3 * torch.randn(28, 10_000, 1, 10, generator=generator, device=options.device)
    feature = torch.rand(28, 10_000, weights, generator=generator, device=options.device)
    index = torch.arange(weights, device=options.device)

    def all_samples() -> Tensor:
        each = [few_uniforms.softmax_one(one, index, -1.0, 2.0, z) for one, z in zip(logits, feature, strict=True)]
        return torch.stack([probabilities.mean(1) for probabilities in each]).mean(0)

    taken = clock(all_samples, 1)
    line = {"case": "softmax, 10,000 images x 28 samples x 10 classes, float32", "weights": weights}
    print(json.dumps(line | {"s": round(taken, 3)}), flush=True)


def points(d: int, count: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points within the support, half-widths and radii all uniform."""
    random = Seed(0).fold("collapsed", d).generator(device)
    widths = torch.rand(count, d, generator=random, dtype=torch.float64, device=device)
    radius = 0.1 + torch.rand(count, generator=random, dtype=torch.float64, device=device)
    place = 0.9 * (2 * torch.rand(count, generator=random, dtype=torch.float64, device=device) - 1)
    centre = torch.randn(count, generator=random, dtype=torch.float64, device=device)
    return centre + place * (widths.sum(-1) + radius), centre, widths, radius


def signed_sum(y: Tensor, centre: Tensor, half_widths: Tensor, radius: Tensor) -> Tensor:
    widths = torch.cat([half_widths, (radius / 2)[:, None].expand(-1, 2)], -1)
    order = widths.shape[-1] - 1
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=order + 1))).to(widths)
    corners = ((y - centre)[:, None] + widths @ signs.T).clamp_min(0)
    return (corners**order @ signs.prod(-1)) / (math.factorial(order) * (2 * widths).prod(-1))


def monte_carlo(
    y: Tensor, centre: Tensor, half_widths: Tensor, radius: Tensor, draws: int, generator: torch.Generator
) -> Tensor:
    uniform = torch.rand(draws, *half_widths.shape, generator=generator, dtype=y.dtype, device=y.device)
    f = centre + ((2 * uniform - 1) * half_widths).sum(-1)
    return ((radius - (y - f).abs()).clamp_min(0) / radius**2).mean(0)


def adaptive(y: float, centre: float, half_widths: list[float], radius: float) -> float:
    def integrand(*weights: float) -> float:
        f = centre + sum(weights)
        return max(radius - abs(y - f), 0.0) / radius**2

    limits = {"epsabs": 1e-6, "epsrel": 1e-6, "limit": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntegrationWarning)  # SciPy warns of the kinks; the table shows its error
        total = nquad(integrand, [(-h, h) for h in half_widths], opts=limits)[0]
    return total / math.prod(2 * h for h in half_widths)


def clock(step: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after one warm-up call."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def worst(got: Tensor, exact: Tensor) -> float:
    return float(((got - exact).abs() / exact).max())


def say(case: str, form: str, seconds: float, **more: float) -> None:
    line = {"case": case, "form": form, "integrals/s": float(f"{1 / seconds:.4g}")}
    print(json.dumps(line | {key: float(f"{value:.4g}") for key, value in more.items()}), flush=True)


if __name__ == "__main__":
    main()
