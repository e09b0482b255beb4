"""Random and adversarial boxes: widths of every ratio down to 1e-10, points at the edge, at knots, in the middle.

Also snapshots of small networks, whose weights make such boxes.
"""

from typing import NamedTuple

import numpy as np
import torch

from bdl_pipe.artifacts import stack
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed

Weights = dict[str, torch.Tensor]

WIDTHS = ("equal", "spread", "extreme", "clustered")
PLACES = ("inside", "edge", "middle", "knot")


class Case(NamedTuple):
    y: float
    centre: float
    half_widths: list[float]
    radius: float


def numbers(*address: str | int) -> np.random.Generator:
    return Seed(0).fold("collapsed", *address).numpy()


def width(kind: str, random: np.random.Generator) -> float:
    """A half-width of ``kind``.

    equal: within a factor of 2; spread: within 1e4; extreme: any down to 1e-10, or zero; clustered: a few sizes far
    apart, each several times.
    """
    if kind == "equal":
        return random.uniform(0.5, 1)
    if kind == "spread":
        return 10 ** random.uniform(-4, 0)
    if kind == "extreme":
        return float(random.integers(0, 2)) * 10 ** random.uniform(-10, 0)
    return random.choice([1, 1e-5, 0.5e-5, 1e-10]) * random.choice([1, random.uniform(0.5, 1)])


def case(d: int, kind: str, place: str, random: np.random.Generator) -> Case:
    half_widths, radius = [width(kind, random) for _ in range(d)], width(kind, random) or 1.0
    centre, support = random.normal(), sum(half_widths) + radius
    if place == "inside":
        offset = support * random.uniform(-1, 1)
    elif place == "edge":
        offset = random.choice([-1, 1]) * support * (1 - 10 ** random.uniform(-7, 0))
    elif place == "middle":
        offset = random.choice([0, 1e-10, 1e-5]) * random.uniform(-1, 1)
    else:
        offset = sum(random.choice([-1, 1]) * w for w in [*half_widths, radius])
        offset += random.choice([0, 1e-10, 1e-5]) * random.uniform(-1, 1)
    return Case(float(centre + offset), float(centre), [float(w) for w in half_widths], float(radius))


def cases(d: int, kind: str, count: int) -> list[Case]:
    random = numbers("cases", d, kind)
    return [case(d, kind, PLACES[i % len(PLACES)], random) for i in range(count)]


def snapshots_of(spec: NetworkSpec, count: int = 3, spread: float = 0.6, double: bool = True) -> Weights:
    """Stacked weights and biases of ``count`` networks, scattered around one network."""
    base, past = spec.build(Seed(1)).state_dict(), []
    for number in range(count):
        generator = Seed(2).fold(number).generator()
        moved = {k: v.double() + spread * torch.randn(v.shape, generator=generator) for k, v in base.items()}
        past.append(moved if double else {k: v.float() for k, v in moved.items()})
    return stack(past)


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tensors(chosen: list[Case], *, grad: bool = False) -> tuple[torch.Tensor, ...]:
    """y, centre, half-widths and radius of the cases."""
    return tuple(double([getattr(c, name) for c in chosen]).requires_grad_(grad) for name in Case._fields)
