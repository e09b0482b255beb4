"""The toy regression of CIBER's figure 2: few samples of a posterior, collapsed or not, beside 2,000 samples.

Zeng and Van den Broeck 2023, appendix C.1: 10 inputs uniform on [-1, -.5] and [.5, 1], targets a cubic polynomial with
Gaussian noise; a ReLU network with two hidden layers, Gaussian priors and likelihood. They state no polynomial, noise,
width or prior. We take 4x³ - 2x, five inputs in each interval, a noise of .2 or .5 that the likelihood knows, and two
layers of ten units; the priors are N(0, 2/d_in) for weights, d_in the number of a layer's inputs, and N(0, 1) for
hidden biases. The output has no bias, so that the last layer has ten weights. This module has the problem and the
network; ``benchmarks/references/ciber_nuts.py`` samples the posterior and stores the draws;
``benchmarks/ciber_figure2.py`` uses the draws.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from bdl_pipe.seeds import Seed

ROOT = Path(__file__).resolve().parent.parent
HIDDEN = 10
SIZES = (HIDDEN, HIDDEN, HIDDEN * HIDDEN, HIDDEN, HIDDEN)  # the flat vector: in, its bias, middle, its bias, out
WEIGHTS = sum(SIZES)
INTERVALS = ((-1.0, -0.5), (0.5, 1.0))
NOISES = (0.2, 0.5)  # standard deviations; each is one setting


def cubic(x: np.ndarray) -> np.ndarray:
    return 4 * x**3 - 2 * x


def stored(noise: float) -> Path:
    return ROOT / "results" / "collapsed" / f"figure2_nuts_{noise:g}.safetensors"


def data(rng: Seed, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, [10] each."""
    random = rng.fold("toy").numpy()
    x = np.concatenate([random.uniform(low, high, 5) for low, high in INTERVALS])
    return x, cubic(x) + noise * random.standard_normal(10)


def prior_sd() -> np.ndarray:
    """The prior standard deviation of each weight, [140]."""
    return np.repeat([math.sqrt(2), 1.0, math.sqrt(2 / HIDDEN), 1.0, math.sqrt(2 / HIDDEN)], SIZES)


def parts(weights: np.ndarray) -> list[np.ndarray]:
    """The five parts of flat weights [draw, 140]; the middle one as [draw, unit, unit it reads]."""
    split = np.split(weights, np.cumsum(SIZES)[:-1], axis=1)
    split[2] = split[2].reshape(-1, HIDDEN, HIDDEN)
    return split


def features(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The last layer's inputs: weights [draw, 140], inputs [x] -> [draw, x, unit]."""
    first, bias, middle, shift, _ = parts(weights)
    hidden = np.maximum(x[None, :, None] * first[:, None] + bias[:, None], 0)
    return np.maximum(np.einsum("dxi,doi->dxo", hidden, middle) + shift[:, None], 0)


def functions(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """f(x) of each draw [draw, x]."""
    return np.einsum("dxu,du->dx", features(weights, x), parts(weights)[4])


@dataclass(frozen=True)
class Reference:
    """The posterior by NUTS.

    Attributes:
        weights: thinned draws [draw, 140], chain by chain, in units of the network.
        runs: successive draws of one chain [run, 10, 140].
        walks: states of short Hamiltonian trajectories from one draw, its neighbourhood [run, 10, 140].
        about: how they were drawn.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    runs: np.ndarray
    walks: np.ndarray
    about: dict[str, float]


def read_reference(noise: float) -> Reference:
    with safe_open(stored(noise), "numpy") as file:
        tensors = {name: file.get_tensor(name).astype(np.float64) for name in ("x", "y", "weights", "runs", "walks")}
        return Reference(**tensors, about=json.loads(file.metadata()["about"]))
