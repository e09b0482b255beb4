"""A printed figure, and ours beside it."""

import math
from dataclasses import dataclass
from typing import Final

from bdl_pipe.scores import Estimate

FAR: Final = 3.0  # a difference of more combined standard errors is marked


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
