"""The toy problems of Bayesian dark knowledge: data, network, prior, and the grid on which predictives are compared.

Korattikara, Rathod, Murphy & Welling 2015. *regression*: y = x³ + N(0, 9), 20 inputs uniform on [-4, 4]
(Hernández-Lobato & Adams 2015), 10 ReLU units. *classification*: two classes of 10 points each in the plane, 10 ReLU
units. We have neither their points nor their prior's precision. Ours: N(0, I) on all weights, for inputs
and targets that are standardised by the training rows; classes at N(±(1, 1), .8² I), with two points of each class
exchanged, so that no line divides them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bdl_pipe.config import read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.target import TargetConfig

OUT: Final = Path(__file__).resolve().parents[2] / "results" / "dark_knowledge"
NOISE_SD: Final = 3.0  # The targets of the regression have this noise.
NETWORK: Final = {"name": "mlp", "hidden": [10]}


@dataclass(frozen=True)
class Problem:
    """A toy problem.

    Attributes:
        data: the training rows.
        target: the posterior.
        grid: inputs in original units [point, column].
        inside: which points of the grid lie within the box of the training inputs [point].
    """

    name: str
    data: FitData
    target: TargetConfig
    grid: np.ndarray
    inside: np.ndarray

    @property
    def inputs(self) -> Tensor:
        """Return the grid as inputs of the network."""
        return self.data.transform.inputs(self.grid)

    @property
    def stored(self) -> Path:
        """Return the file of the reference."""
        return OUT / f"{self.name}.safetensors"


def regression() -> Problem:
    """Return the regression of one input."""
    random = Seed(0).fold("regression").numpy()
    x = random.uniform(-4, 4, (20, 1))
    y = x**3 + NOISE_SD * random.standard_normal((20, 1))
    mean, sd, shift, scale = (torch.tensor(v) for v in (x.mean(0), x.std(0), y.mean(0), y.std(0)))
    precision = float(y.std() ** 2) / NOISE_SD**2
    data = _data("regression", x, y, Transform("table", mean, sd, shift=shift, scale=scale))
    return _problem("regression", data, np.linspace(-6, 6, 121)[:, None], precision)


def classification() -> Problem:
    """Return the classification of two inputs."""
    random = Seed(0).fold("classification").numpy()
    labels = np.repeat([0, 1], 10)
    place = np.where(np.isin(np.arange(20), (0, 1, 10, 11)), 1 - labels, labels)
    x = np.where(place, 1.0, -1.0)[:, None] + 0.8 * random.standard_normal((20, 2))
    data = _data("classification", x, labels, Transform("table", torch.tensor(x.mean(0)), torch.tensor(x.std(0))))
    axis = np.linspace(-6, 6, 31)
    return _problem("classification", data, np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), None)


def _data(task: str, x: np.ndarray, y: np.ndarray, transform: Transform) -> FitData:
    classes = ("0", "1") if task == "classification" else ()
    return FitData(task, Examples(x, y), Examples(x[:0], y[:0]), transform, classes)  # type: ignore[arg-type]


def _problem(name: str, data: FitData, grid: np.ndarray, precision: float | None) -> Problem:
    section = {"network": NETWORK, "prior_precision": 1.0, "noise_precision": precision}
    low, high = data.train.inputs.min(0), data.train.inputs.max(0)
    return Problem(name, data, read(TargetConfig, section, "target"), grid, ((low <= grid) & (grid <= high)).all(1))


PROBLEMS: Final = {"regression": regression, "classification": classification}
