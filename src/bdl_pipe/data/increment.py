"""Class-incremental learning: the classes of a data set come a few at a time, in an order that is drawn.

The order is ``numpy.random.RandomState(order).permutation(k)``, which for CIFAR-100 and the orders 0 to 4 gives the
lists in the published code of Zhou et al. 2022 (FRePo).
"""

from dataclasses import dataclass

import numpy as np

from ..errors import require


@dataclass(frozen=True)
class IncrementConfig:
    """``increment`` of a data set: one step of it.

    Attributes:
        order: seed of the order in which the classes come.
        classes: how many new ones each step has; it divides their number.
        step: of the data set; fits see the rows of the classes that are new in it, tests those of all classes so far.
    """

    order: int
    classes: int
    step: int

    def __post_init__(self) -> None:
        require(0 <= self.order < 2**32, "order", "must be in [0, 2^32)", self.order)
        require(self.classes > 0, "classes", "must be > 0", self.classes)
        require(self.step >= 0, "step", "must be >= 0", self.step)

    def check(self, total: int) -> None:
        """Raise ConfigError unless this is a step of ``total`` classes, with the key in this config."""
        require(total % self.classes == 0, "classes", f"must divide the {total} classes", self.classes)
        steps = total // self.classes
        require(self.step < steps, "step", f"must be < {steps}, as {self.classes} of {total} come a step", self.step)

    def new(self, total: int) -> list[int]:
        """List the classes that are new in this step, in their order; ``total`` is the number of all."""
        return self.seen(total)[self.step * self.classes :]

    def seen(self, total: int) -> list[int]:
        """List the classes that have come up to this step, in their order."""
        # the legacy generator, with which the published orders were drawn
        order: list[int] = np.random.RandomState(self.order).permutation(total).tolist()
        return order[: (self.step + 1) * self.classes]
