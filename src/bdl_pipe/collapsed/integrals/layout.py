"""Preparation of the box integrals' arguments: checks, working precision, broadcasting and flattening to points."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import DataError

Values = Float[Tensor, "*#batch"]  # these and the half-widths broadcast
Widths = Float[Tensor, "*#batch d"]


def wide(values: Tensor) -> Tensor:
    """Return the values in float64, or in float32 if the device lacks float64."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def widest(*values: Tensor) -> torch.dtype:
    """Return the widest type of the values."""
    return functools.reduce(torch.promote_types, (value.dtype for value in values))


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which all shapes broadcast.

    torch's own function imports sympy on its first call, which takes two seconds.

    Raises:
        ValueError: the shapes cannot be broadcast.
    """
    return np.broadcast_shapes(*map(tuple, shapes))


def flat(values: Tensor, batch: Sequence[int]) -> Tensor:
    """Broadcast to ``batch`` and flatten: [point]."""
    return wide(values).expand(batch).reshape(-1)


def flat_last(values: Tensor, batch: Sequence[int]) -> Tensor:
    """Return [*batch, d] as [d, point]; values that all points share become a view."""
    size = values.shape[-1]
    if values.ndim == 1:
        return wide(values)[:, None].expand(size, math.prod(batch))
    return wide(values).expand(*batch, size).movedim(-1, 0).reshape(size, math.prod(batch))


def blocks(compute: Callable[..., Tensor], size: int, *parts: Tensor) -> Tensor:
    """Call ``compute`` on at least one and about ``size`` points (the last dimension) at a time."""
    split = (part.split(max(1, size), -1) for part in parts)
    return torch.cat([compute(*block) for block in zip(*split, strict=True)], -1)


def checked_radius(radius: float | Tensor, like: Tensor) -> Tensor:
    """Return the radius as a tensor on the device of ``like``.

    Raises:
        DataError: the radius is not finite or not above zero.
    """
    reach = radius if isinstance(radius, Tensor) else torch.full((), radius, dtype=wide(like).dtype, device=like.device)
    for good, rule in ((reach.isfinite(), "finite"), (reach > 0, "> 0")):
        if not bool(good.all()):
            raise DataError(f"radius must be {rule}, got {reach[~good][0].item()}")
    return reach


def checked_batch(
    y: Tensor, centre: Tensor, half_widths: Tensor, radius: float | Tensor, most: float
) -> tuple[Tensor, tuple[int, ...]]:
    """Check the arguments of a density or distribution function; return the radius and the batch's shape.

    Raises:
        DataError: :func:`checked_radius` or :func:`check` refuses an argument.
    """
    reach = checked_radius(radius, y)
    check(half_widths, most, y=y, centre=centre)
    return reach, broadcast(y.shape, centre.shape, half_widths.shape[:-1], reach.shape)


def check(half_widths: Tensor, most: float, **values: Tensor) -> None:
    """Check values and half-widths.

    Raises:
        DataError: a value is not finite, a half-width is negative, or there are more than ``most`` of them.
    """
    for name, value in {"half_widths": half_widths, **values}.items():
        if not bool(value.isfinite().all()):
            raise DataError(f"{name} must be finite, got {value[~value.isfinite()][0].item()}")
    if half_widths.shape[-1] > most:
        raise DataError(f"half_widths must be at most {most} for a point, got {half_widths.shape[-1]}")
    if bool((half_widths < 0).any()):
        raise DataError(f"half_widths must be ≥ 0, got {float(half_widths.min())}")
