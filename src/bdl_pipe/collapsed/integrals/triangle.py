"""The triangular density that stands in for a Gaussian, and its radius."""

import math
from functools import cache
from typing import Final, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import require
from .piecewise import Piecewise

Scale = TypeVar("Scale", float, Tensor)

SQRT_6: Final = math.sqrt(6)  # Var = r²/6; the published code has 2.45


@cache
def density_matched() -> float:
    """Return the radius α ≈ 2.3 whose triangular density is nearest N(0, 1) in L2.

    Zeng and Van den Broeck 2023, section 3.

    ∫(tri − φ)² = 2/(3r) − 4[(Φ(r) − ½)/r − (φ(0) − φ(r))/r²] + const; its derivative times r³/2 is solved for zero.
    """
    from scipy.optimize import brentq  # half a second, which every process would pay

    def slope(r: float) -> float:
        peak, here = 1 / math.sqrt(2 * math.pi), math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
        return r * math.erf(r / math.sqrt(2)) - r / 3 - 4 * (peak - here)

    return float(brentq(slope, 1.0, 4.0, xtol=1e-15))


def radius(sigma: Scale, match: str) -> Scale:
    """Return the triangular radius for a Gaussian of standard deviation ``sigma``, in its units.

    Args:
        match: "variance", √6·σ, or "density", the nearest in L2, of a variance 0.88 times the Gaussian's.

    Raises:
        ConfigError: another ``match``.
    """
    require(match in ("variance", "density"), "match", 'must be "variance" or "density"', match)
    return sigma * (SQRT_6 if match == "variance" else density_matched())


def triangular(radius: Float[Tensor, "*batch"]) -> Piecewise:
    """Return the symmetric triangular density about 0, of a support of ``radius``."""
    zero, height = torch.zeros_like(radius), 1 / radius
    rise, fall = torch.stack([zero, height**2], -1), torch.stack([height, -(height**2)], -1)
    outside = torch.zeros_like(rise)
    return Piecewise(torch.stack([-radius, zero, radius], -1), torch.stack([outside, rise, fall, outside], -2))
