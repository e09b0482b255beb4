"""A fit that diverges is made again at a smaller rate; what it took is in the result, and in the report.

The rates of a config are its fields ``lr``, ``label_lr`` and ``step_size``, at any depth, and of a schedule of step
sizes its factor. A killed retry goes on where it was: a checkpoint says which attempt it is of.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from bdl_pipe.artifacts import State
from bdl_pipe.errors import Diverged
from bdl_pipe.progress import Report

ATTEMPTS: Final = 4  # the last at .027 of the rates
FACTOR: Final = 0.3
RATE_SHARE: Final = "rate_share"  # of a result that took several attempts: what its rates were multiplied by
_RATES: Final = frozenset({"lr", "label_lr", "step_size"})
_ATTEMPT: Final = "attempt"
_FACTORS: Final = ("value", "a")  # of schedules of step sizes


class Attempt(Report):
    """A report for one attempt: the checkpoints of others are not its own."""

    def __init__(self, report: Report, number: int) -> None:
        self._report, self._number = report, number

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._report(step, total, metrics)

    def due(self) -> bool:
        return self._report.due()

    def save(self, state: State) -> None:
        about = {**state.config, _ATTEMPT: self._number} if self._number else state.config
        self._report.save(State(state.tensors, about))

    def load(self) -> State | None:
        last = self._report.load()
        if last is None or last.config.get(_ATTEMPT, 0) != self._number:
            return None
        return State(last.tensors, {k: v for k, v in last.config.items() if k != _ATTEMPT})


def fitted(fit: Callable[[Any, Report], list[State]], config: Any, report: Report) -> list[State]:
    """Fit, again at ``FACTOR`` of the rates as long as it diverges; results of more than one attempt say so.

    Args:
        fit: (config, report) -> the states.

    Raises:
        Diverged: it did so at the smallest rates, too, or has none.
    """
    last = report.load()
    first = int(last.config.get(_ATTEMPT, 0)) if last is not None else 0
    for number in range(first, ATTEMPTS):
        share = FACTOR**number
        try:
            states = fit(slower(config, share), Attempt(report, number))
        except Diverged:
            if number + 1 == ATTEMPTS or slower(config, FACTOR) == config:
                raise
        else:
            return [State(s.tensors, {**s.config, RATE_SHARE: share}) for s in states] if number else states
    raise AssertionError(first)


def slower(config: Any, share: float) -> Any:
    """Return the config with all of its rates times ``share``; the same where it has none."""
    if share == 1 or not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _RATES and value is not None:
            changes[field.name] = _times(value, share)
        elif (smaller := slower(value, share)) != value:
            changes[field.name] = smaller
    return dataclasses.replace(config, **changes) if changes else config


def _times(rate: Any, share: float) -> Any:
    if isinstance(rate, float | int):
        return rate * share
    (name,) = (name for name in _FACTORS if hasattr(rate, name))
    return dataclasses.replace(rate, **{name: getattr(rate, name) * share})
