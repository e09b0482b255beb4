"""Class-incremental learning: the classes of a data set arrive in steps, in a random order.

The order is ``numpy.random.RandomState(order).permutation(k)``, which for CIFAR-100 and the orders 0 to 4 gives the
lists of the published code of Zhou et al. 2022 (FRePo).
"""

from dataclasses import dataclass

import numpy as np

from ..errors import require


@dataclass(frozen=True)
class IncrementConfig:
    """The section ``increment`` of a data set: one step of class-incremental learning.

    Attributes:
        order: the seed of the order of classes.
        classes: the number of new classes in each step. It must divide the number of all classes.
        step: the number of the step, from 0. Fits use rows of its new classes; tests use rows of all classes so far.
    """

    order: int
    classes: int
    step: int

    def __post_init__(self) -> None:
        require(0 <= self.order < 2**32, "order", "must be in [0, 2^32)", self.order)
        require(self.classes > 0, "classes", "must be > 0", self.classes)
        require(self.step >= 0, "step", "must be >= 0", self.step)

    def check(self, total: int) -> None:
        """Raise ConfigError unless the step is valid for ``total`` classes."""
        require(total % self.classes == 0, "classes", f"must divide the {total} classes", self.classes)
        steps = total // self.classes
        require(self.step < steps, "step", f"must be < {steps}: each adds {self.classes} of {total} classes", self.step)

    def new(self, total: int) -> list[int]:
        """List the new classes of this step, in their order; ``total`` is the number of all classes."""
        return self.seen(total)[self.step * self.classes :]

    def seen(self, total: int) -> list[int]:
        """List the classes up to this step, in their order."""
        # the published orders come from this legacy generator
        order: list[int] = np.random.RandomState(self.order).permutation(total).tolist()
        return order[: (self.step + 1) * self.classes]
