"""The 1-D regression of the inducing-weight paper, with the distance between a method's functions and NUTS's.

Ritter, Kukla, Zhang & Li 2021 (section 4.1, appendix J.1), after Foong et al. 2019: 50 inputs from U[-1, -0.7] and
50 from U[0.5, 1], y ~ N(cos(4x + 0.8), 0.01), the second number a variance (J.1 prints 0.4x; 4.1 and figure 2 have
4x). One hidden layer of 50 tanh units; each layer's weights and biases have the prior N(0, 16/d_in), d_in the
number of its inputs without the bias. The paper shows pictures; we compute, at each x of a grid, the
1-Wasserstein distance between a method's draws of f(x) and NUTS's, averaged over the grid and over its parts.

This module has the problem, the reference and the distance; ``inducing_methods.py`` has the methods and runs
them. It needs no sampler: NUTS's functions are stored
(``results/inducing/regression_nuts.safetensors``) and come from ``python -m benchmarks.references.inducing_nuts``.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors import safe_open
from scipy.stats import wasserstein_distance
from torch import Tensor

from bdl_pipe.seeds import Seed

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "results" / "inducing" / "regression_nuts.safetensors"
HIDDEN, NOISE_VARIANCE, PRIOR_SCALE = 50, 0.01, 4.0
WEIGHTS = 3 * HIDDEN + 1  # input weights, hidden biases, output weights, output bias: the order of the flat vector
CLUSTERS = ((-1.0, -0.7), (0.5, 1.0))
GRID = np.linspace(-2, 2, 161)

Predictive = Callable[[Tensor], Tensor]  # inputs [x] -> draws of the noise-free f, [draw, x]
Method = Callable[[Tensor, Tensor, Sequence[Seed]], list[Predictive]]  # inputs [row], targets [row] -> one per seed


def data(rng: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, [100] each, in float64."""
    random = rng.fold("regression").numpy()
    x = np.concatenate([random.uniform(low, high, 50) for low, high in CLUSTERS])
    return x, np.cos(4 * x + 0.8) + math.sqrt(NOISE_VARIANCE) * random.standard_normal(100)


def prior_sd() -> np.ndarray:
    """The prior standard deviation of each weight, [151]: 4 in the first layer (one input), 4/√50 in the second."""
    return np.repeat([PRIOR_SCALE, PRIOR_SCALE / math.sqrt(HIDDEN)], [2 * HIDDEN, HIDDEN + 1])


def functions(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """f(x) of each draw: weights [draw, 151], inputs [x] -> [draw, x]."""
    first, bias, last, shift = np.split(weights, [HIDDEN, 2 * HIDDEN, 3 * HIDDEN], axis=1)
    hidden = np.tanh(x[None, :, None] * first[:, None] + bias[:, None])  # [draw, x, unit]
    return np.einsum("dxu,du->dx", hidden, last) + shift


def regions(grid: np.ndarray) -> dict[str, np.ndarray]:
    """Masks over the grid: where there are data, between the clusters, outside them, and everywhere."""
    (left, inner), (outer, right) = CLUSTERS
    inside = ((grid >= left) & (grid <= inner)) | ((grid >= outer) & (grid <= right))
    between, outside = (grid > inner) & (grid < outer), (grid < left) | (grid > right)
    return {"data": inside, "between": between, "outside": outside, "all": np.ones_like(inside)}


def distances(grid: np.ndarray, reference: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    """The 1-Wasserstein distance of the marginals at each x, averaged over each part of the grid; draws [draw, x]."""
    each = np.array([wasserstein_distance(reference[:, i], draws[:, i]) for i in range(len(grid))])
    return {name: float(each[mask].mean()) for name, mask in regions(grid).items()}


@dataclass(frozen=True)
class Reference:
    """NUTS's functions: ``draws`` [draw, x] on ``grid`` [x] for the data ``x``, ``y`` [row]; ``about``: the run."""

    x: np.ndarray
    y: np.ndarray
    grid: np.ndarray
    draws: np.ndarray
    about: dict[str, object]


def read_reference(path: Path = STORED) -> Reference:
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in ("x", "y", "grid", "draws")}
        return Reference(**tensors, about=json.loads(file.metadata()["about"]))


def prior(x: Tensor, y: Tensor, rngs: Sequence[Seed]) -> list[Predictive]:
    """Functions of the prior: the score of a method that learned nothing from the data."""
    return [_functions(prior_sd() * rng.fold("prior").numpy().standard_normal((2000, WEIGHTS))) for rng in rngs]


def _functions(weights: np.ndarray) -> Predictive:
    return lambda grid: torch.from_numpy(functions(weights, grid.numpy()))


def halves(reference: Reference) -> dict[str, float]:
    """The distance between two halves of the chains, as of two runs of the sampler itself."""
    half = len(reference.draws) // 2  # draws are stored chain by chain
    return distances(reference.grid, reference.draws[:half], reference.draws[half:])


def spreads(grid: np.ndarray, reference: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    """A method's standard deviation of f(x) over the reference's, both averaged over each part of the grid."""
    return {name: float(draws.std(0)[m].mean() / reference.std(0)[m].mean()) for name, m in regions(grid).items()}


def predict(reference: Reference, method: Method, rngs: Sequence[Seed]) -> list[np.ndarray]:
    """Draws of f on the reference's grid, [draw, x] for each address, from the reference's data."""
    x, y, grid = (torch.from_numpy(a) for a in (reference.x, reference.y, reference.grid))
    return [predictive(grid).detach().double().numpy() for predictive in method(x, y, rngs)]


def draw(reference: Reference, shown: dict[str, np.ndarray], path: Path) -> None:
    """Draw the paper's figure 2: mean and one to three standard deviations of f, one panel for each method.

    One more panel has all deviations. ``shown``: title -> draws of f [draw, x], NUTS's first; NUTS's mean and band are
    drawn into every other panel, too.
    """
    columns = math.ceil((len(shown) + 1) / 2)
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.9 * columns, 5.9), layout="constrained")
        axes = figure.subplots(2, columns)
        spread, panels = axes[1, 0], [*axes[0], *axes[1, 1:]]
        for axis, (name, draws) in zip(panels, shown.items(), strict=False):
            _panel(axis, reference, name, draws)
        for axis in panels[len(shown) :]:
            axis.set_visible(False)
        _deviations(spread, reference, shown)
        axes[0, 0].set_ylabel("f(x)")
        axes[1, 1].set_ylabel("f(x)")
        handles, labels = (panels[1] if len(shown) > 1 else panels[0]).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=110)


def _panel(axis: Any, reference: Reference, name: str, draws: np.ndarray) -> None:
    grid, mean, sd = reference.grid, draws.mean(0), draws.std(0)
    for k in (3, 2, 1):
        label = "mean ± 1, 2, 3 standard deviations" if k == 2 else None
        axis.fill_between(grid, mean - k * sd, mean + k * sd, color="C0", alpha=0.2, linewidth=0, label=label)
    axis.plot(grid, mean, "C0", linewidth=1.8, label="mean of f(x)")
    axis.plot(grid, np.cos(4 * grid + 0.8), "k", linewidth=0.8, label="cos(4x + 0.8)")
    axis.plot(reference.x, reference.y, "r.", markersize=2.5, label="observations")
    title = name
    if draws is not reference.draws:
        middle, wide = reference.draws.mean(0), 3 * reference.draws.std(0)
        axis.plot(grid, middle, color="0.3", linestyle=":", linewidth=1, label="mean of NUTS")
        for k, edge in enumerate((middle - wide, middle + wide)):
            label = None if k else "mean ± 3 standard deviations of NUTS"
            axis.plot(grid, edge, color="0.3", linestyle="--", linewidth=0.9, label=label)
        title = f"{name}, W₁ {distances(grid, reference.draws, draws)['all']:.2f}"
    axis.set(title=title, xlim=(-2, 2), ylim=(-5, 5), xlabel="x")


def _deviations(axis: Any, reference: Reference, shown: dict[str, np.ndarray]) -> None:
    for name, draws in shown.items():
        own = draws is reference.draws
        axis.plot(reference.grid, draws.std(0), "k--" if own else "-", label=name, linewidth=1.8 if own else 1.2)
    axis.set(title="standard deviation of f(x)", yscale="log", xlim=(-2, 2), ylim=(0.01, 40), xlabel="x")
    axis.legend(fontsize=7.5, ncols=2, loc="upper center", frameon=False)
