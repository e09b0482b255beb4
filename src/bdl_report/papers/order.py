"""Printed figures and ours beside them; the order of methods in a table and in ours, where values need not be equal.

pairs = compared({"DNN": Pair(ours, printed), "SNGP": Pair(...), "D-VBLL": Pair(...)})
Order(pairs).tau        # Kendall's τ-b of the two orders
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from bdl_pipe.scores import Estimate

FAR: Final = 3.0  # a difference of more combined standard errors is marked
CLEAR: Final = 2.0  # two methods differ clearly on a side beyond this many combined standard errors
Figure = tuple[float, float | None]  # a value, and its standard error if it has one


@dataclass(frozen=True)
class Printed:
    """A figure as the paper prints it.

    Attributes:
        error: the figure's ±; empty if the paper prints none.
        setting: the figure's setting beside its data set, such as the network or the images per class. Only figures of
            one setting are ordered.
    """

    value: str
    error: str = ""
    setting: str = ""

    @property
    def figure(self) -> Figure:
        """Return the value, and the ± or None, as numbers."""
        return float(self.value), float(self.error) if self.error else None

    @property
    def digits(self) -> int:
        """Return the number of digits after the point."""
        return len(self.value.partition(".")[2])

    @property
    def text(self) -> str:
        """Return the figure with its ±, if it has one."""
        return f"{self.value} ± {self.error}" if self.error else self.value


@dataclass(frozen=True)
class Pair:
    """Our figure in the paper's unit, and the paper's figure; each is None if it does not exist."""

    ours: Estimate | None = None
    paper: Printed | None = None

    @property
    def difference(self) -> float | None:
        """Return our figure minus the paper's, in the paper's unit; None if a figure is missing."""
        return None if self.ours is None or self.paper is None else self.ours.mean - float(self.paper.value)

    @property
    def z(self) -> float | None:
        """Return (ours − paper's) / √(our standard error² + the paper's²).

        It is None if an error is unknown or if both errors are 0.
        """
        if self.ours is None or self.paper is None or self.ours.error is None or not self.paper.error:
            return None
        combined = math.hypot(self.ours.error, float(self.paper.error))
        return (self.ours.mean - float(self.paper.value)) / combined if combined != 0 else None

    @property
    def far(self) -> bool:
        """Return True if the figures differ by more than ``FAR`` combined standard errors, or by NaN."""
        return self.z is not None and not abs(self.z) <= FAR

    @property
    def digits(self) -> int:
        """Return the number of digits to show: as many as the paper prints, and at least two."""
        return max(2, self.paper.digits) if self.paper else 2


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
    both = dict[str, tuple[Figure, Figure]]()
    for name, pair in cells.items():
        if pair.ours is not None and pair.paper is not None and not math.isnan(pair.ours.mean):
            both[name] = (pair.ours.mean, pair.ours.error), pair.paper.figure
    pairs = []
    for one, two in combinations(both, 2):
        (ours, clear_ours), (paper, clear_paper) = map(_sign, both[one], both[two])
        pairs.append(Compared(one, two, ours, paper, clear_ours and clear_paper))
    return Order(pairs)


def _sign(first: Figure, second: Figure) -> tuple[int, bool]:
    """Return the sign of the difference, and whether it is beyond ``CLEAR`` combined standard errors."""
    difference, clear = first[0] - second[0], False
    if first[1] is not None and second[1] is not None:
        clear = abs(difference) > CLEAR * math.hypot(first[1], second[1])
    return (difference > 0) - (difference < 0), clear
