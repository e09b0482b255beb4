"""results/dark_knowledge: the toy problems of Bayesian dark knowledge, each method's distance to the posterior's own.

    python -m benchmarks.references.hmc regression classification      # once; its results are stored
    python -m benchmarks.dark_knowledge_toys [regression] [classification]
    python -m benchmarks.dark_knowledge_toys --students 3     # toy_students.md: SGLD and its students over seeds

The KL divergence from the reference's predictive to a method's, mean over a grid: at the points within the box of the
training inputs, at the others, and at all. The table and the picture of a problem are written as they are made. All
rows have one seed; ``--students`` fits SGLD's chains, its offline students and those of Algorithm 1 from several.
"""

import argparse
import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.evaluation import references
from bdl_pipe.evaluation.references import distances
from bdl_pipe.predictive import Categorical, Continuous, Gaussian, Predictive
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import average
from benchmarks import written
from benchmarks.toys.methods import ROWS
from benchmarks.toys.problems import OUT, PROBLEMS, Problem
from pipeline.core import provenance, records

REFERENCE: Final = "HMC (the reference)"
PUBLISHED: Final = {  # table 2 of the paper, on the paper's own points
    "point (the mode)": "0.246",
    "SGLD": "0.007",
    "student 2-10-2, offline": "0.031",
    "student 2-100-2, offline": "0.014",
    "student 2-10-10-2, offline": "0.009",
}


@dataclass(frozen=True)
class Line:
    """A row of the table: KL and TV at each point of the grid, and the predictive's mean and deviation."""

    divergence: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    numbers: int
    seconds: float


def reference(problem: Problem) -> State:
    """Read the stored reference of a problem.

    Raises:
        ValueError: the reference belongs to other training rows.
    """
    state = artifacts.from_bytes(problem.stored.read_bytes(), str(problem.stored))
    if state.config["rows"] != references.digest(problem.data.train):
        raise ValueError(f"{problem.stored}: must be of the training rows at hand; delete it and make it again")
    return state


def line(problem: Problem, truth: State, predictive: Predictive, numbers: int, seconds: float) -> Line:
    """Measure a predictive at the grid."""
    mean, variance = truth.tensors["mean"].double(), problem.target.spec(problem.data).noise_variance
    if isinstance(predictive, Categorical):
        log_probs = predictive.log_probs.double()
        p = torch.stack([1 - mean, mean], -1)
        divergence, shown = (torch.special.xlogy(p, p) - p * log_probs).sum(-1), log_probs[:, 1].exp()
        return Line(divergence.numpy(), shown.numpy(), (shown * (1 - shown)).sqrt().numpy(), numbers, seconds)
    assert isinstance(predictive, Continuous)
    draws = truth.tensors["draws"].double()[..., None]
    divergence, _ = distances(Gaussian(draws, torch.full_like(draws, variance)), predictive)
    return Line(divergence.numpy(), _flat(predictive.mean), _flat(predictive.variance.sqrt()), numbers, seconds)


def _flat(values: Tensor) -> np.ndarray:
    return values[:, 0].double().numpy()


def lines(problem: Problem, truth: State, seed: int = 0, names: Collection[str] | None = None) -> dict[str, Line]:
    """Fit and measure the rows of a problem: all, with seed 0, or those with these names."""
    made: dict[str, list[State]] = {}
    measured = dict[str, Line]()
    for name, row in ROWS[problem.name].items():
        if names is not None and name not in names:
            continue
        began = time.process_time()
        made[name] = row(problem, made, seed=seed) if seed else row(problem, made)
        seconds = time.process_time() - began
        posterior = average(made[name]) if len(made[name]) > 1 else posterior_of(made[name][0])
        numbers = sum(tensor.numel() for tensor in posterior.state().tensors.values())
        with torch.no_grad():
            predictive = posterior.predict(problem.inputs, rng=Seed(0))
        measured[name] = line(problem, truth, predictive, numbers, seconds)
        print(name, f"{measured[name].divergence.mean():.4f}", f"{seconds:.0f} s", flush=True)
    return measured


def students(problem: Problem, truth: State, seeds: int) -> str:
    """Write the table of SGLD and its students, offline and by Algorithm 1: mean and standard error over seeds."""
    names = ["SGLD", *(name for name in ROWS[problem.name] if name.endswith(("offline", "online")))]
    measured = [lines(problem, truth, seed, names) for seed in range(seeds)]
    inside, own = problem.inside, _sd(problem, truth)
    rows = list[list[str]]()
    for name in names:
        found = [one[name] for one in measured]
        parts = [[float(one.divergence[part].mean()) for one in found] for part in (inside, ~inside, slice(None))]
        parts.append([float((one.sd / own)[~inside].mean()) for one in found])
        cells = [written.error(*written.mean_and_error(part), digits=3) for part in parts]
        rows.append([name, *cells, f"{statistics.mean(one.seconds for one in found):.0f}"])
    return written.table(["method", "KL inside", "KL outside", "KL, all", "sd outside", "CPU s"], rows)


def table(problem: Problem, truth: State, measured: Mapping[str, Line]) -> str:
    """Write the table of a problem."""
    published = problem.name == "classification"
    head = ["method", "KL inside", "KL outside", "KL, all", *(["the paper's"] if published else [])]
    head += ["sd inside", "sd outside", "numbers", "CPU s"]
    rows = list[list[str]]()
    inside, own = problem.inside, _sd(problem, truth)
    for name, one in measured.items():
        parts = [one.divergence[inside], one.divergence[~inside], one.divergence]
        cells = [name, *(f"{part.mean():.4f}" for part in parts), *([PUBLISHED.get(name, "")] if published else [])]
        cells += [f"{(one.sd / own)[part].mean():.2f}" for part in (inside, ~inside)]
        rows.append([*cells, f"{one.numbers:,}", f"{one.seconds:.0f}"])
    return written.table(head, rows)


def _sd(problem: Problem, truth: State) -> np.ndarray:
    """Return the sd of the reference's predictive at the grid, of y or of the second class's indicator."""
    mean, sd = (truth.tensors[name].double().numpy() for name in ("mean", "sd"))
    if problem.name == "classification":
        return np.sqrt(mean * (1 - mean))
    return np.sqrt(sd**2 + problem.target.spec(problem.data).noise_variance)


def page(problem: Problem, truth: State, measured: Mapping[str, Line]) -> str:
    """Write the page of a problem."""
    about = truth.config
    facts: dict[str, Any] = {
        "commit": provenance.commit(),
        "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread, torch {torch.__version__}",
        "reference": f"{about['sampler']} at {about['commit'][:12]}: {about['chains']} chains of {about['draws']} "
        f"draws after {about['burn_in']}, {about['leapfrogs']} leapfrogs each, accepted {about['accepted']:.2f}; worst "
        f"R-hat {about['r_hat']:.3f}, least bulk ESS {about['ess_bulk']:,.0f}, tail {about['ess_tail']:,.0f}; "
        f"{about['seconds']} CPU s",
        "posterior": f"{about['target']}",
    }
    parts = [
        f"# The toy {problem.name}: distance of each method to the posterior",
        "`python -m benchmarks.dark_knowledge_toys` writes this page. KL is from the reference's predictive to the "
        f"method's, in nats, mean over {len(problem.grid):,} points of a grid; *inside* is the box of the training "
        f"inputs ({problem.inside.sum():,} points). *sd* is the method's standard deviation of the target over the "
        "reference's. *numbers* is how many a prediction needs.",
        f"![{problem.name}]({problem.name}.png)",
        table(problem, truth, measured),
        written.listed(facts),
    ]
    return "\n\n".join(parts) + "\n"


def student_page(tables: Mapping[str, str], seeds: int) -> str:
    """Write the page of the students over seeds."""
    parts = [
        "# The toys' students over seeds",
        f"`python -m benchmarks.dark_knowledge_toys --students {seeds}` writes this page: mean ± standard error over "
        f"{seeds} seeds of chains and students, on the same training rows; the first seed is that of the tables of "
        "[regression](regression.md) and [classification](classification.md), which explain the columns. Offline "
        "students learn from the draws of SGLD above them; online is Algorithm 1 as printed, with a chain of its own.",
        *(f"## {name}\n\n{text}" for name, text in tables.items()),
        f"- commit: {provenance.commit()}\n- device: {records.device_name('cpu')}, 1 thread, torch {torch.__version__}",
    ]
    return "\n\n".join(parts) + "\n"


def draw(problem: Problem, truth: State, measured: Mapping[str, Line]) -> None:
    """Draw the reference and all rows: mean and three sd of y, or the probability of the second class."""
    whole = Line(np.zeros(len(problem.grid)), truth.tensors["mean"].double().numpy(), _sd(problem, truth), 0, 0.0)
    shown = {REFERENCE: whole, **measured}
    count = -(-len(shown) // 4)
    with matplotlib.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 2.6 * count), layout="constrained")
        panels = figure.subplots(count, 4, sharex=True, sharey=True).flatten()
        for axis, (name, one) in zip(panels, shown.items(), strict=False):
            axis.set_title(name if one is whole else f"{name}, KL {one.divergence.mean():.3f}")
            (_band if problem.name == "regression" else _field)(axis, problem, whole, one)
        for axis in panels[len(shown) :]:
            axis.set_visible(False)
        figure.savefig(OUT / f"{problem.name}.png", dpi=90)


def _band(axis: Any, problem: Problem, whole: Line, one: Line) -> None:
    transform, x = problem.data.transform, problem.grid[:, 0]
    assert transform.shift is not None and transform.scale is not None
    shift, scale = float(transform.shift), float(transform.scale)
    filled, dotted = {"color": "C0", "alpha": 0.3, "linewidth": 0}, {"fc": "none", "ec": "0.3", "ls": ":"}
    for band, style in ((one, filled), (whole, dotted)):
        axis.fill_between(x, *(shift + scale * (band.mean + k * band.sd) for k in (-3, 3)), **style)
    axis.plot(x, shift + scale * one.mean, "C0")
    axis.plot(problem.data.train.inputs[:, 0], problem.data.train.targets[:, 0], "k.", markersize=4)
    axis.set(xlim=(-6, 6), ylim=(-200, 200))


def _field(axis: Any, problem: Problem, whole: Line, one: Line) -> None:
    side = round(len(problem.grid) ** 0.5)
    x, y = (problem.grid[:, column].reshape(side, side) for column in (0, 1))
    axis.contourf(x, y, one.mean.reshape(side, side), levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.8)
    for label, colour in ((0, "C0"), (1, "C3")):
        rows = problem.data.train.inputs[problem.data.train.targets == label]
        axis.plot(rows[:, 0], rows[:, 1], "o", color=colour, markeredgecolor="w", markersize=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", choices=[[], *PROBLEMS], help="by default both")
    parser.add_argument("--students", type=int, metavar="SEEDS", help="only SGLD and its students, from so many seeds")
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    if arguments.students:
        tables = {
            name: students(problem(), reference(problem()), arguments.students) for name, problem in PROBLEMS.items()
        }
        (OUT / "toy_students.md").write_text(student_page(tables, arguments.students))
        return
    for name in arguments.problems or PROBLEMS:
        problem = PROBLEMS[name]()
        truth = reference(problem)
        measured = lines(problem, truth)
        draw(problem, truth, measured)
        (OUT / f"{name}.md").write_text(page(problem, truth, measured))


if __name__ == "__main__":
    main()
