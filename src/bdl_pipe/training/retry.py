"""Repeat a diverged fit with smaller rates: :func:`retried`.

The rates of a config are its fields ``lr``, ``label_lr`` and ``step_size``, at any depth, and the factors of schedules
of step sizes. A retry that was killed continues from its checkpoint, which records the attempt's number.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..artifacts import State
from ..errors import Diverged
from ..progress import Report

ATTEMPTS: Final = 4  # the last attempt has 0.027 of the rates
FACTOR: Final = 0.3
RATE_SHARE: Final = "rate_share"  # key of the factor of the rates, in the config of a result of several attempts
_RATES: Final = frozenset({"lr", "label_lr", "step_size"})
_ATTEMPT: Final = "attempt"
_FACTORS: Final = ("value", "a", "rate")  # fields of schedules of step sizes


def retried(fit: Callable[[Any, Report], list[State]], config: Any, report: Report) -> list[State]:
    """Fit; if the fit diverges, repeat it with the rates times ``FACTOR``, up to ``ATTEMPTS`` attempts.

    The states equal the states of a fit with the smaller rates; their config then has the key ``RATE_SHARE``.

    Args:
        fit: (config, report) -> the states.
        config: a frozen dataclass.
        report: stores the checkpoints of all attempts.

    Raises:
        Diverged: the fit diverged at the smallest rates as well, or its config has no rates.
    """
    last = report.load()
    first = int(last.config.get(_ATTEMPT, 0)) if last is not None else 0
    for number in range(first, ATTEMPTS):
        share = FACTOR**number
        try:
            states = fit(slower(config, share), _Attempt(report, number))
        except Diverged:
            if number + 1 == ATTEMPTS or slower(config, FACTOR) == config:
                raise
        else:
            return [State(s.tensors, {**s.config, RATE_SHARE: share}) for s in states] if number else states
    raise AssertionError(first)


def slower(config: Any, share: float) -> Any:
    """Return the config with all of its rates times ``share``; a config without rates is returned unchanged."""
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


class _Attempt(Report):
    """A report for one attempt, which ignores the checkpoints of other attempts."""

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
