"""The toy problems of variational Bayesian last layers: a cubic with a gap, two half moons, and how they are fitted.

Harrison, Willes & Snoek 2023 (workshop text), figure 1 and appendix G.1. All other settings are theirs.
*The cubic*: the caption has 50 rows and the appendix 100; we take 100, and y = (x/4)³, which is ±1 at the ends of the
data. *Not printed*: the activation (we take a leaky ReLU, as in their regression tables), the initial deviation of
variational features (.05, as in ``params/paper/vbll-table2.yaml``), the rate of Adam (SGD's rate), the number of hidden
layers of the residual network (two), and the priors of the last layer (N(0, I), as in their tables). The limit of 2 on
the gradient's norm, which they print for the cubic only, holds for the moons, too: without it G-VBLL diverges. The last
partial batch of an epoch is dropped (3 steps of 32 rows for 100 rows, 31 steps for 1,000).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.config import merge, read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed

SEEDS: Final = 5
CUBIC_ROWS, CUBIC_NOISE = 100, 0.1
MOON_ROWS, MOON_NOISE = 1000, 0.2

_SGD: Final = {"name": "sgd", "momentum": 0.9, "schedule": "constant"}
_CUBIC_SGD: Final = {**_SGD, "lr": 3e-4, "weight_decay": 0.0, "grad_clip_norm": 2.0}
_MOON_SGD: Final = {**_SGD, "lr": 3e-2, "weight_decay": 1e-4, "grad_clip_norm": 2.0}
_CUBIC_ADAM: Final = {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "grad_clip_norm": 2.0}
_WISHART: Final = {"prior_variance": 1.0, "wishart_scale": 1.0, "kl_weight": 1.0}
_CUBIC: Final = {
    "network": {"name": "mlp", "hidden": [128, 128], "activation": "leaky_relu"},
    "training": {"epochs": 1000, "batch": 32, "optimiser": _CUBIC_SGD},
    "layer": {"covariance": "dense", "rank": None, "wishart_dof": 1.0, **_WISHART},
}
_FEATURES: Final = {"initial_sd": 0.05, "kl_weight": 1.0, "draws": 100, "validation_draws": 1}
_RESIDUAL: Final = {
    "name": "python",
    "path": str(Path(__file__).with_name("residual.py")),
    "object": "Residual",
    "options": {"width": 128, "hidden": 2},
}
_MOON_TRAINING: Final = {"epochs": 100, "batch": 32, "optimiser": _MOON_SGD}

# row -> method, its stage and its section of params.yaml
CUBIC_FITS: Final[dict[str, tuple[str, str, Mapping[str, Any]]]] = {
    "variational features, SGD (the paper's)": ("vbll_bnn", "student", {**_CUBIC, "features": _FEATURES}),
    "variational features, Adam": (
        "vbll_bnn",
        "student",
        merge({**_CUBIC, "features": _FEATURES}, {"training": {"optimiser": _CUBIC_ADAM}}),
    ),
    "point features, SGD": ("vbll", "student", _CUBIC),
    "point features, Adam": ("vbll", "student", merge(_CUBIC, {"training": {"optimiser": _CUBIC_ADAM}})),
}
G_VBLL: Final = (
    "g_vbll",
    "student",
    {
        "network": _RESIDUAL,
        "training": _MOON_TRAINING,
        "layer": {"name": "generative", "dirichlet": 1.0, "wishart_dof": 128.0, "refit": True, **_WISHART},
    },
)
UNLIMITED: Final = (  # the printed settings, for the first ten epochs
    *G_VBLL[:2],
    merge(G_VBLL[2], {"training": {"epochs": 10, "optimiser": {"grad_clip_norm": None}}}),
)
PLAIN: Final = ("sgd", "trajectory", {"network": _RESIDUAL, "snapshots": 1, **_MOON_TRAINING})


def curve(x: np.ndarray) -> np.ndarray:
    """Return f(x) = (x/4)³."""
    return (x / 4) ** 3


def cubic(seed: int) -> FitData:
    """Return rows of the cubic, x uniform on [-4, -2] ∪ [2, 4]."""
    random = Seed(seed).fold("cubic").numpy()
    x = random.uniform(2, 4, (CUBIC_ROWS, 1)) * random.choice([-1, 1], (CUBIC_ROWS, 1))
    y = curve(x) + CUBIC_NOISE * random.standard_normal(x.shape)
    zero, one = torch.zeros(1), torch.ones(1)
    transform = Transform("table", zero, one, shift=zero, scale=one)
    return FitData("regression", Examples(x, y), Examples(x[:0], y[:0]), transform)


def moons(seed: int) -> FitData:
    """Return rows of scikit-learn's half moons; inputs are not rescaled."""
    from sklearn.datasets import make_moons

    x, labels = make_moons(MOON_ROWS, noise=MOON_NOISE, random_state=seed)
    transform = Transform("table", torch.zeros(2), torch.ones(2))
    return FitData("classification", Examples(x, labels), Examples(x[:0], labels[:0]), transform, ("0", "1"))


def fitted(how: tuple[str, str, Mapping[str, Any]], data: Sequence[FitData], first: int = 0) -> list[State]:
    """Fit a method to each of ``data``, from random weights; the seeds are numbered from ``first`` on."""
    name, stage, section = how
    method = METHODS[name]
    config: Any = read(method.config, section, f"methods.{name}")
    fit, rng = method.stages[stage].fit_many, Seed(0).fold("figure 1", name)  # type: ignore[index]
    assert fit is not None
    rngs = [rng.fold(first + number) for number in range(len(data))]
    return fit(data, [{}] * len(data), config, rngs=rngs, report=Silent())
