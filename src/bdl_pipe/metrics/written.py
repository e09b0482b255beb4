"""Values as readers see them: about three digits, and the unit."""

import math
from collections.abc import Callable, Iterable
from typing import Final

from .metric import Metric

_ROUNDING: Final = 1.01  # a ratio of noise variances up to this one comes from rounding


def writer(metric: Metric) -> Callable[[float], str]:
    """Return the function that writes the values of a metric."""
    by_unit = {"digits": digits, "count": count, "bytes": size, "seconds": seconds, "noise": noise}
    return percent if metric.percent else by_unit.get(metric.unit, plain)


def listed(values: Iterable[tuple[str, float]], write: Callable[[float], str] = "{:.3g}".format) -> str:
    """Write names with their values, for the text that stands for a figure."""
    return ", ".join(f"{name} {write(value)}" for name, value in values)


def plain(value: float) -> str:
    """Write a number with three digits after the point."""
    return f"{value:.3f}"


def digits(value: float) -> str:
    """Write a number with three significant digits, but with at most six digits after the point."""
    after = 2 - math.floor(math.log10(abs(value))) if value else 3
    return f"{value:.{min(6, max(0, after))}f}"


def percent(value: float) -> str:
    """Write a share as per cent, with two digits."""
    return f"{100 * value:.2f}"


def count(value: float) -> str:
    """Write a count with about three digits: 999, 1.23 k, 4.5 M."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1e3:.3g} k" if value < 999_500 else f"{value / 1e6:.3g} M"


def size(value: float) -> str:
    """Write bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def seconds(value: float) -> str:
    """Write seconds with about three digits: 12 ms, 4.21 s, 131 s, 20 min."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value >= 0.1:
        return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
    return f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.2g} ms"


def noise(ratio: float) -> str:
    """Write whether the noise has one variance for all inputs, by the ratio of the largest to the smallest variance."""
    return "one" if ratio <= _ROUNDING else "each input"
