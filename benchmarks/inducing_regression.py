"""The 1-D regression of the inducing-weight paper, with a number: how far a method's functions are from NUTS's.

Ritter, Kukla, Zhang & Li 2021 (section 4.1, appendix J.1), after Foong et al. 2019: 50 inputs from U[-1, -0.7] and
50 from U[0.5, 1], y ~ N(cos(4x + 0.8), 0.01), the second number a variance (J.1 prints 0.4x; 4.1 and figure 2 have
4x). One hidden layer of 50 tanh units; each layer's weights and biases have the prior N(0, 16/d_in), d_in the
width of what it reads, the bias not counted. The paper shows pictures; here, at each x of a grid, the
1-Wasserstein distance between a method's draws of f(x) and NUTS's, averaged over the grid and over its parts.

    python benchmarks/inducing_regression.py

It needs no sampler: NUTS's functions are stored (``results/inducing/regression_nuts.safetensors``) and come from
``python -m benchmarks.references.inducing_nuts``. A method is a function of the data that gives a predictive
(:data:`Method`); add it to :data:`METHODS`.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from safetensors import safe_open
from scipy.stats import wasserstein_distance
from torch import Tensor

from bdl_pipe.seeds import Seed

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "results" / "inducing" / "regression_nuts.safetensors"
FIGURE = ROOT / "results" / "inducing" / "regression.png"
HIDDEN, NOISE_VARIANCE, PRIOR_SCALE = 50, 0.01, 4.0
WEIGHTS = 3 * HIDDEN + 1  # input weights, hidden biases, output weights, output bias: the order of the flat vector
CLUSTERS = ((-1.0, -0.7), (0.5, 1.0))
GRID = np.linspace(-2, 2, 161)

Predictive = Callable[[Tensor], Tensor]  # inputs [x] -> draws of the noise-free f, [draw, x]
Method = Callable[[Tensor, Tensor, Seed], Predictive]  # inputs [row], targets [row], address -> a fitted predictive


def data(rng: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, [100] each, in float64."""
    random = rng.fold("regression").numpy()
    x = np.concatenate([random.uniform(low, high, 50) for low, high in CLUSTERS])
    return x, np.cos(4 * x + 0.8) + math.sqrt(NOISE_VARIANCE) * random.standard_normal(100)


def prior_sd() -> np.ndarray:
    """Of each weight, [151]: 4 in the first layer (one input), 4/√50 in the second."""
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
    """NUTS's functions: ``draws`` [draw, x] on ``grid`` [x] for the data ``x``, ``y`` [row]; ``about``: how."""

    x: np.ndarray
    y: np.ndarray
    grid: np.ndarray
    draws: np.ndarray
    about: dict[str, object]


def read_reference(path: Path = STORED) -> Reference:
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in ("x", "y", "grid", "draws")}
        return Reference(**tensors, about=json.loads(file.metadata()["about"]))


def prior(x: Tensor, y: Tensor, rng: Seed) -> Predictive:
    """Functions of the prior, whatever the data: what a method that learned nothing would score."""
    weights = prior_sd() * rng.fold("prior").numpy().standard_normal((2000, WEIGHTS))
    return lambda grid: torch.from_numpy(functions(weights, grid.numpy()))


METHODS: dict[str, Method] = {"prior": prior}


def halves(reference: Reference) -> dict[str, float]:
    """One half of the chains against the other: the distance that two runs of the sampler itself have."""
    half = len(reference.draws) // 2  # draws are stored chain by chain
    return distances(reference.grid, reference.draws[:half], reference.draws[half:])


def predict(reference: Reference, methods: dict[str, Method], rng: Seed) -> dict[str, np.ndarray]:
    """Each method's draws of f on the reference's grid, [draw, x], from the reference's data."""
    x, y, grid = (torch.from_numpy(a) for a in (reference.x, reference.y, reference.grid))
    return {name: method(x, y, rng.fold(name))(grid).detach().double().numpy() for name, method in methods.items()}


def draw(reference: Reference, shown: dict[str, np.ndarray], path: Path) -> None:
    """The paper's figure 2: mean and one to three standard deviations of f, one panel a method."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(shown), figsize=(3.2 * len(shown), 2.6), sharey=True, squeeze=False)
    for axis, (name, draws) in zip(axes[0], shown.items(), strict=True):
        mean, sd = draws.mean(0), draws.std(0)
        for k in (3, 2, 1):
            axis.fill_between(reference.grid, mean - k * sd, mean + k * sd, color="C0", alpha=0.2, linewidth=0)
        axis.plot(reference.grid, mean, "C0")
        axis.plot(reference.grid, np.cos(4 * reference.grid + 0.8), "k", linewidth=0.8)
        axis.plot(reference.x, reference.y, "r.", markersize=2)
        axis.set(title=name, ylim=(-4, 4), xlabel="x")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help=f"write the figure here, as {FIGURE.relative_to(ROOT)}")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reference = read_reference()
    print(json.dumps({"reference": reference.about}))
    print(json.dumps({"method": "NUTS, one half of the chains against the other", "wasserstein": halves(reference)}))
    shown = predict(reference, METHODS, Seed(options.seed))
    for name, draws in shown.items():
        print(json.dumps({"method": name, "wasserstein": distances(reference.grid, reference.draws, draws)}))
    if options.figure:
        draw(reference, {"NUTS": reference.draws} | shown, options.figure)


if __name__ == "__main__":
    main()
