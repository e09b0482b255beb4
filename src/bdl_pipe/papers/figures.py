"""A printed figure, and ours beside it."""

import math
from dataclasses import dataclass
from typing import Final

from ..scores import Estimate

FAR: Final = 3.0  # A difference of more combined standard errors than this is marked.


@dataclass(frozen=True)
class Printed:
    """A figure as the paper prints it.

    Attributes:
        error: its ±; empty: the paper prints none.
        setting: what the figure is of beside its data set: the network, images per class. Figures of one are ordered.
    """

    value: str
    error: str = ""
    setting: str = ""

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
    """Our figure in the paper's unit (None: there is no such score), and the paper's (None: it prints none)."""

    ours: Estimate | None = None
    paper: Printed | None = None

    @property
    def difference(self) -> float | None:
        """Return ours − the paper's, in the paper's unit; None where a figure is missing."""
        return None if self.ours is None or self.paper is None else self.ours.mean - float(self.paper.value)

    @property
    def z(self) -> float | None:
        """Return (ours − paper's) / √(our standard error² + the paper's²).

        It is None where an error is unknown or both are 0.
        """
        if self.difference is None or self.ours is None or self.paper is None:
            return None
        if self.ours.error is None or not self.paper.error:
            return None
        combined = math.hypot(self.ours.error, float(self.paper.error))
        return self.difference / combined if combined != 0 else None

    @property
    def far(self) -> bool:
        """Return True if the figures differ by more than ``FAR`` combined standard errors, or by NaN."""
        return self.z is not None and not abs(self.z) <= FAR

    @property
    def digits(self) -> int:
        """Return the number of digits to show: as many as the paper prints, and at least two."""
        return max(2, self.paper.digits) if self.paper else 2
