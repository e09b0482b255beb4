"""Tables and figure of ``benchmarks/ciber_linear.py``: for which settings a box of samples beats the samples.

python -m benchmarks.ciber_linear_tables
"""

import argparse
import math
import time
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

from bdl_pipe.seeds import Seed
from benchmarks.ciber_linear import (
    POINTS,
    TOGETHER,
    Box,
    Problem,
    averaged_trials,
    curve,
    each_trial,
    grid,
    isotropic,
    line,
    monte_carlo,
    needed,
    pooled,
    scores,
    spread_of,
    truth,
)
from benchmarks.written import PAGES, error, table, write

SPREADS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SIZES = (5, 10, 20, 50, 100, 150, 300)
PAPER_MC = 0.130
Scores = dict[str, Tensor]  # name -> score of each trial


def mean_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def shown(values: Tensor) -> str:
    return error(*mean_error(values))


def settings(trials: int, rng: Seed) -> dict[str, Problem]:
    most = max(SIZES)
    made = {f"d = {d}, spread {s:g}": isotropic(d, s, most, trials, rng) for d in (1, 2, 5) for s in SPREADS}
    return made | {f"line, {rows} rows": line(rows, 0.5, most, trials, rng) for rows in (3, 20)}


def few_rows(scored: dict[str, Scores]) -> list[list[str]]:
    rows = []
    for name, found in scored.items():
        cells = [found[key] for key in ("mc", "fit", "variance tail", "density tail", "density support")]
        cells += [found["mc reverse"], found["density reverse"]]
        better = (found["density tail"] < found["mc"]).double().mean()
        ends = [f"{float(found['density outside'].mean()):.3f}", f"{float(found['variance ratio'].mean()):.2f}"]
        rows.append([name, *map(shown, cells), *ends, f"{100 * float(better):.0f} %"])
    return rows


def many_rows(scored: dict[str, Scores], curves: dict[str, list[float]]) -> list[list[str]]:
    rows = []
    for name, found in scored.items():
        means = curves[name]
        boxes = [found[key] for key in ("variance tail", "density tail", "density support", "density reverse")]
        matching = [needed(float(value.mean()), SIZES, means) for value in boxes[:2]]
        ends = [*matching, f"{float(found['variance ratio'].mean()):.2f}"]
        rows.append([name, shown(found["mc"]), f"{means[4]:.4f}", shown(found["fit"]), *map(shown, boxes), *ends])
    return rows


def variation_rows(*scored: dict[str, Scores]) -> list[list[str]]:
    keys = [f"{key} variation" for key in ("mc", "fit", "variance", "density")]
    return [[name, *(shown(one[name][key]) for one in scored for key in keys)] for name in scored[0]]


def pooled_rows(problems: dict[str, Problem]) -> list[list[str]]:
    """The rows for five samples, for problems with one truth for all trials."""
    return [[name, *map(shown, pooled(p.few(5)).values())] for name, p in problems.items() if "line" not in name]


def draw(problems: dict[str, Problem], many: dict[str, Scores], curves: dict[str, list[float]]) -> None:
    """Figures 3 and 4 for some settings: |estimate - truth| of five samples, and KL by the number of samples."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in problems if name in SHOWN]
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(2, len(names), figsize=(3.2 * len(names), 5.6), layout="constrained")
        for (top, bottom), name in zip(axes.T, names, strict=True):
            _differences(top, problems[name], name)
            bottom.plot(SIZES, curves[name], "C0.-", label="Monte Carlo")
            for match, style in (("density", "C2--"), ("variance", "C1--")):
                level = many[name][f"{match} tail"].mean()
                bottom.axhline(float(level), color=style[:2], linestyle="--", label=f"CIBER of 50, {match}")
            bottom.set(xscale="log", yscale="log", xlabel="samples of Monte Carlo", ylabel="KL(truth ‖ estimate)")
        axes[0, 0].legend(fontsize=7.5, frameon=False)
        axes[1, 0].legend(fontsize=7.5, frameon=False)
        figure.savefig(PAGES / "linear.png", dpi=100)


def _differences(axis: Any, problem: Problem, name: str) -> None:
    few, y = problem.few(5), grid(problem)
    p, at = truth(few, y).exp(), np.linspace(-9, 9, POINTS)
    estimates = {"Monte Carlo": monte_carlo(few, y), "CIBER, density": Box.of(few).log_density(y, "density")}
    for colour, (label, q) in zip(("C0", "C2"), estimates.items(), strict=True):
        gaps = (q.exp() - p).abs() * problem.deviation[:, None]
        middle, wide = gaps.mean(0), 1.96 * gaps.std(0) / math.sqrt(len(gaps))
        axis.plot(at, middle, colour, label=label)
        axis.fill_between(at, middle - wide, middle + wide, color=colour, alpha=0.3, linewidth=0)
    axis.set(title=name, xlim=(-4, 4), xlabel="y, true deviations", ylabel="|estimate - truth|")


FEW = ["setting", "MC", "fit", "CIBER √6, tail", "CIBER L2, tail", "CIBER L2, support", "MC reverse"]
FEW += ["CIBER L2, reverse", "truth beyond the support", "variance ratio", "CIBER L2 better than MC"]
MANY = ["setting", "MC 50", "MC 100", "fit 50", "CIBER √6, tail", "CIBER L2, tail", "CIBER L2, support"]
MANY += ["CIBER L2, reverse", "MC to match √6", "MC to match L2", "variance ratio"]


def ranges(rng: Seed, trials: int) -> str:
    """The variance of the uniform distribution on [min, max] of S normal numbers, divided by the numbers' variance."""
    random = torch.randn(trials, max(SIZES), generator=rng.fold("ranges").generator(), dtype=torch.float64)
    rows = []
    for size in (2, 3, *SIZES):
        part = random[:, :size]
        width = part.amax(1) - part.amin(1)
        rows.append([str(size), shown(width), shown(width**2 / 12)])
    return table(["S", "range", "variance of the box over the true one"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, rng = time.process_time(), Seed(options.seed).fold("ciber linear")
    problems = settings(options.trials, rng)
    for way, of in (("one_to_one", each_trial), ("pooled", averaged_trials)):
        spread = spread_of(PAPER_MC, of, 2_000, rng)
        made = {f"{way}: d = {d}": isotropic(d, spread, max(SIZES), options.trials, rng) for d in (1, 2, 5)}
        problems |= {f"{name}, spread {spread:.2f}": problem for name, problem in made.items()}
    curves = {name: curve(problem, SIZES) for name, problem in problems.items()}
    few, many = ({name: scores(p.few(size)) for name, p in problems.items()} for size in (5, 50))
    parts = [f"{options.trials} trials each; mean ± standard error over the trials. {NOTE}"]
    parts += ["## Five samples", table(FEW, few_rows(few)), POOLED, table(HEADS, pooled_rows(problems))]
    parts += ["## Fifty samples", table(MANY, many_rows(many, curves))]
    parts += [VARIATION, table(TOTAL, variation_rows(few, many)), RANGES, ranges(rng, 20_000)]
    draw(problems, many, curves)
    parts += ["![Five samples and the number of samples](linear.png)"]
    write(PAGES / "linear.md", "Bayesian linear regression", "python -m benchmarks.ciber_linear_tables", parts, start)


SHOWN = ("d = 1, spread 1", "d = 2, spread 1", "d = 2, spread 4", "d = 5, spread 8")
HEADS = ["setting", "MC", "fit", "CIBER √6", "CIBER L2"]
POOLED = f"""The estimates of {TOGETHER} trials averaged before the KL is taken (CIBER with its tail); mean ± standard
error over groups of {TOGETHER} trials:"""
NOTE = f"""Settings that begin with \"each\" or \"pooled\" have the spread at which Monte Carlo's KL of five samples is
the paper's {PAPER_MC}, by trial or of averages. \"Variance ratio\": that of CIBER's predictive (radius √6·σ) over the
true one. What each column is: the head of `benchmarks/ciber_linear.py`; \"√6\" has the radius that matches the
variance, \"L2\" the paper's. Lower is better but for \"support\", which is no divergence."""
VARIATION = "Total variation distance to the truth, without a tail:"
TOTAL = ["setting", *(f"{name}, {size}" for size in (5, 50) for name in ("MC", "fit", "CIBER √6", "CIBER L2"))]
RANGES = "The box itself, for d = 1: of S normal samples."

if __name__ == "__main__":
    main()
