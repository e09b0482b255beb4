"""Test functions of Bayesian optimisation, on the unit cube; each is to be minimised.

Surjanovic and Bingham, "Virtual library of simulation experiments", have their definitions, usual domains and minima;
inputs of the unit cube are stretched to the usual domain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function of the unit cube.

    Attributes:
        value: inputs [..., column] -> values [...].
        columns: the number of inputs.
        minimum: the least value.
        at: an input with the least value.
    """

    value: Callable[[np.ndarray], np.ndarray]
    columns: int
    minimum: float
    at: tuple[float, ...]


def branin(x: np.ndarray) -> np.ndarray:
    """Return Branin's function, on [−5, 10] × [0, 15]."""
    u, v = 15 * x[..., 0] - 5, 15 * x[..., 1]
    b, c, t = 5.1 / (4 * np.pi**2), 5 / np.pi, 1 / (8 * np.pi)
    return (v - b * u**2 + c * u - 6) ** 2 + 10 * (1 - t) * np.cos(u) + 10


_ALPHA: Final = np.array([1.0, 1.2, 3.0, 3.2])
_A3: Final = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
_P3: Final = 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]])
_A6: Final = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_P6: Final = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann3(x: np.ndarray) -> np.ndarray:
    """Return Hartmann's function of three inputs."""
    return -(_ALPHA * np.exp(-(_A3 * (x[..., None, :] - _P3) ** 2).sum(-1))).sum(-1)


def hartmann6(x: np.ndarray) -> np.ndarray:
    """Return Hartmann's function of six inputs."""
    return -(_ALPHA * np.exp(-(_A6 * (x[..., None, :] - _P6) ** 2).sum(-1))).sum(-1)


def ackley(x: np.ndarray) -> np.ndarray:
    """Return Ackley's function, on [−32.768, 32.768] in each input."""
    u = 65.536 * (x - 0.5)
    far = -20 * np.exp(-0.2 * np.sqrt((u**2).mean(-1)))
    return far - np.exp(np.cos(2 * np.pi * u).mean(-1)) + 20 + np.e


def levy(x: np.ndarray) -> np.ndarray:
    """Return Levy's function, on [−10, 10] in each input."""
    w = 1 + (20 * x - 11) / 4
    inner = (w[..., :-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[..., :-1] + 1) ** 2)
    last = (w[..., -1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[..., -1]) ** 2)
    return np.sin(np.pi * w[..., 0]) ** 2 + inner.sum(-1) + last


def rosenbrock(x: np.ndarray) -> np.ndarray:
    """Return Rosenbrock's function, on [−5, 10] in each input."""
    u = 15 * x - 5
    return (100 * (u[..., 1:] - u[..., :-1] ** 2) ** 2 + (u[..., :-1] - 1) ** 2).sum(-1)


_HARTMANN3: Final = (0.114614, 0.555649, 0.852547)
_HARTMANN6: Final = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
FUNCTIONS: Final[Mapping[str, Function]] = {
    "branin": Function(branin, 2, 0.39788735772973816, (0.5427728, 0.1516667)),
    "hartmann3": Function(hartmann3, 3, -3.862779787332660, _HARTMANN3),
    "hartmann6": Function(hartmann6, 6, -3.322368011415515, _HARTMANN6),
    "ackley5": Function(ackley, 5, 0.0, (0.5,) * 5),
    "ackley20": Function(ackley, 20, 0.0, (0.5,) * 20),
    "levy10": Function(levy, 10, 0.0, (0.55,) * 10),
    "rosenbrock4": Function(rosenbrock, 4, 0.0, (0.4,) * 4),
}
