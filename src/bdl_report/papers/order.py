"""The order of methods in a paper's table and in our results, for comparisons in which values need not be equal.

pairs = compared({"DNN": Pair(ours, printed), "SNGP": Pair(...), "D-VBLL": Pair(...)})
Order(pairs).tau        # Kendall's τ-b of the two orders
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from .figures import Pair

CLEAR: Final = 2.0  # two methods differ clearly on a side beyond this many combined standard errors
Figure = tuple[float, float | None]  # a value, and its standard error if it has one


@dataclass(frozen=True)
class Compared:
    """Two methods with figures on both sides.

    Attributes:
        ours, paper: the sign of the first method's figure minus the second's; 0 if the figures are equal.
        clear: both sides have errors, and the two methods differ clearly on both sides.
    """

    first: str
    second: str
    ours: int
    paper: int
    clear: bool

    @property
    def same(self) -> bool:
        """Return True if both sides have the two methods in the same order."""
        return self.ours * self.paper > 0

    @property
    def opposite(self) -> bool:
        """Return True if the two sides have the methods in opposite orders."""
        return self.ours * self.paper < 0

    def __str__(self) -> str:
        """Write the two methods in the paper's order, by increasing figure."""
        ordered = (self.first, self.second) if self.paper < 0 else (self.second, self.first)
        return f"{' < '.join(ordered)}{' (clear)' if self.clear else ''}"


@dataclass(frozen=True)
class Order:
    """The order of each pair of some methods on both sides."""

    pairs: Sequence[Compared]

    @property
    def same(self) -> list[Compared]:
        """List the pairs that both sides have in the same order."""
        return [pair for pair in self.pairs if pair.same]

    @property
    def opposite(self) -> list[Compared]:
        """List the pairs that the two sides have in opposite orders."""
        return [pair for pair in self.pairs if pair.opposite]

    @property
    def clear(self) -> "Order":
        """Return only the pairs that differ clearly on both sides."""
        return Order([pair for pair in self.pairs if pair.clear])

    @property
    def tau(self) -> float | None:
        """Return Kendall's τ-b (Kendall 1945): (same − opposite) / √(pairs that differ in ours · in the paper).

        It is None if all methods are equal on one side.
        """
        differ = math.prod(sum(bool(getattr(pair, side)) for pair in self.pairs) for side in ("ours", "paper"))
        return (len(self.same) - len(self.opposite)) / math.sqrt(differ) if differ else None

    def against(self, method: str) -> "Order":
        """Return the pairs that include ``method``: the signs of the differences to a baseline."""
        return Order([pair for pair in self.pairs if method in (pair.first, pair.second)])


def compared(cells: Mapping[str, Pair]) -> Order:
    """Compare every two methods of ``cells`` that have figures on both sides; NaN has no order.

    Args:
        cells: method -> the figures of one metric and one printed setting.
    """
    both = {name: sides for name, pair in cells.items() if (sides := _sides(pair))}
    return Order([_compared(one, two, both[one], both[two]) for one, two in combinations(both, 2)])


def _sides(pair: Pair) -> tuple[Figure, Figure] | None:
    """Return our figure and the paper's; None if one is missing or ours is not a number."""
    ours, paper = pair.ours, pair.paper
    if ours is None or paper is None or math.isnan(ours.mean):
        return None
    return (ours.mean, ours.error), (float(paper.value), float(paper.error) if paper.error else None)


def _compared(one: str, two: str, first: tuple[Figure, Figure], second: tuple[Figure, Figure]) -> Compared:
    (ours, clear_ours), (paper, clear_paper) = (_sign(a, b) for a, b in zip(first, second, strict=True))
    return Compared(one, two, ours, paper, clear_ours and clear_paper)


def _sign(first: Figure, second: Figure) -> tuple[int, bool]:
    """Return the sign of the difference, and whether it is beyond ``CLEAR`` combined standard errors."""
    difference, clear = first[0] - second[0], False
    if first[1] is not None and second[1] is not None:
        clear = abs(difference) > CLEAR * math.hypot(first[1], second[1])
    return (difference > 0) - (difference < 0), clear
