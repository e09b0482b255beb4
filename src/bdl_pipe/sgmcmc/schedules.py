"""Schedules of step sizes, and the choice of steps that are kept as draws."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

from ..errors import require, require_positive
from .kernel import Kernel


class Schedule(ABC):
    """The step size of each step, in the units of the kernel."""

    @abstractmethod
    def at(self, step: int) -> float:
        """Return the step size of step ``step``, counted from 0."""

    def samples(self, step: int) -> bool:
        """Return whether step ``step`` has the kernel's noise. A step without noise optimises and is not kept."""
        return True


@final
@dataclass(frozen=True)
class ConstantStep(Schedule):
    """One step size for all steps.

    Attributes:
        value: the step size of every step.
    """

    value: float
    name: Literal["constant"] = "constant"

    def __post_init__(self) -> None:
        require(self.value > 0, "value", "must be > 0", self.value)

    def at(self, step: int) -> float:
        return self.value


@final
@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """The step size a (b + t)^(−c) of step t (Welling & Teh 2011).

    For c in (1/2, 1] the sum of the step sizes diverges and the sum of their squares converges. Deviation: draws are
    equally weighted; Welling & Teh weight them by the step size.

    Attributes:
        a: the factor a of the step size a (b + t)^(−c).
        b: the offset b of t.
        c: the exponent c of the decay, in (1/2, 1] for chains that converge.
    """

    a: float
    b: float
    c: float
    name: Literal["polynomial"] = "polynomial"

    def __post_init__(self) -> None:
        require_positive(self, "a", "b")
        require(0 <= self.c <= 1, "c", "must be in [0, 1]", self.c)

    def at(self, step: int) -> float:
        return self.a * (self.b + step) ** -self.c


@final
@dataclass(frozen=True)
class CyclicalSteps(Schedule):
    """The step size value/2 (1 + cos(π u)), u the finished share of its cycle (Zhang et al. 2020, eq. 1).

    The first part of each cycle explores: the kernel runs without noise, and nothing is kept. So all draws of a cycle
    begin at one point, with the smallest steps of the cycle: the longer the exploration, the less they spread. On a
    Gaussian of precisions 1, .3 and .1, with cycles of 500 steps from .2 on, SGHMC's draws have .99 or more of the true
    variances without exploration, .94, .83 and .49 of them with .5, and .06, .02 and .01 with the .8 of the paper.

    Attributes:
        value: the step size at the start of each cycle.
        cycle: the number of steps of a cycle.
        exploration: the share of a cycle without noise; in [0, 1).
    """

    value: float
    cycle: int
    exploration: float
    name: Literal["cyclical"] = "cyclical"

    def __post_init__(self) -> None:
        require(self.value > 0, "value", "must be > 0", self.value)
        require(self.cycle > 1, "cycle", "must be > 1", self.cycle)
        require(0 <= self.exploration < 1, "exploration", "must be in [0, 1)", self.exploration)

    def at(self, step: int) -> float:
        return self.value / 2 * (1 + math.cos(math.pi * (step % self.cycle) / self.cycle))

    def samples(self, step: int) -> bool:
        return step % self.cycle >= self.exploration * self.cycle


@final
@dataclass(frozen=True)
class ScaledSteps:
    """Step sizes in units that do not depend on the number N of rows, their noise, or the kernel.

    For regression, the loss of a row is half the squared error of standardised targets.

    Attributes:
        rate: the learning rate at which gradient descent on the rows' mean loss moves as far as the kernel's drift.
        cycle: the length of a cycle of the schedule ``cyclical``, in epochs. null: one step size for all steps.
        exploration: the share of a cycle without noise; in [0, 1).
    """

    rate: float
    cycle: float | None = None
    exploration: float = 0.0
    name: Literal["scaled"] = "scaled"

    def __post_init__(self) -> None:
        require_positive(self, "rate", or_null=("cycle",))
        require(0 <= self.exploration < 1, "exploration", "must be in [0, 1)", self.exploration)

    def settle(self, kernel: Kernel, rows: int, precision: float, per_epoch: int) -> Schedule:
        """Return the schedule for ``rows`` rows of noise precision λ_n, with ``per_epoch`` steps in an epoch."""
        value = kernel.step_size_of(self.rate, rows * precision)
        if self.cycle is None:
            return ConstantStep(value)
        return CyclicalSteps(value, max(2, round(self.cycle * per_epoch)), self.exploration)


_LONG_EXPLORATION: Final = 0.4  # of a cycle: draws then have clearly less than the target's variance
StepSizes = ConstantStep | PolynomialDecay | CyclicalSteps | ScaledSteps


def long_exploration(steps: StepSizes) -> float:
    """Return the share of exploration in a cycle if it makes the draws vary too little, else 0."""
    share = steps.exploration if isinstance(steps, CyclicalSteps | ScaledSteps) else 0.0
    cycles = not (isinstance(steps, ScaledSteps) and steps.cycle is None)
    return share if cycles and share > _LONG_EXPLORATION else 0.0


def settled(steps: StepSizes, kernel: Kernel, rows: int, precision: float, per_epoch: int) -> Schedule:
    """Return the schedule of a section; ``scaled`` is converted by :meth:`ScaledSteps.settle`."""
    return steps.settle(kernel, rows, precision, per_epoch) if isinstance(steps, ScaledSteps) else steps


@final
@dataclass(frozen=True)
class Setting:
    """The number that determines all step sizes of a chain. The error of a diverged chain names it.

    Attributes:
        key: the number's key, below its method: ``sampler.step_size.rate``.
        value: the number.
        schedule: number -> schedule of step sizes.
    """

    key: str
    value: float
    schedule: Callable[[float], Schedule]

    @classmethod
    def of(cls, steps: StepSizes, key: str, settle: Callable[[Any], Schedule] = lambda steps: steps) -> "Setting":
        """Return the setting of the section ``steps`` under ``key``; ``settle`` maps a section to its schedule."""
        section: Any = steps
        (field,) = (name for name in ("value", "a", "rate") if hasattr(section, name))
        return cls(f"{key}.{field}", getattr(section, field), lambda value: settle(replace(section, **{field: value})))


@dataclass(frozen=True)
class Thinning:
    """The choice of positions θ_1 … θ_steps that are kept: every ``every``-th after the first ``burn_in``.

    Attributes:
        steps: the number of steps of a chain.
        burn_in: the number of first steps; none of them is kept.
        every: the number of steps from one kept position to the next.
    """

    steps: int
    burn_in: int
    every: int

    def __post_init__(self) -> None:
        require(self.every > 0, "every", "must be > 0", self.every)
        require(0 <= self.burn_in < self.steps, "burn_in", f"must be in [0, {self.steps}), the steps", self.burn_in)
        require(self.count > 0, "every", f"must leave a draw of {self.steps - self.burn_in} steps", self.every)

    @property
    def count(self) -> int:
        """Return the number of kept positions."""
        return (self.steps - self.burn_in) // self.every

    def keeps(self, done: int) -> bool:
        """Return whether the position after ``done`` steps is kept."""
        return done > self.burn_in and (done - self.burn_in) % self.every == 0
