"""Fits that are killed: a report that kills a fit at a checkpoint, and the fit that continues from this checkpoint."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.progress import Report

T = TypeVar("T")


class Killed(Exception):
    """The kill of a fit."""


class Watched(Report):
    """A report that records the reports of a fit, and may kill the fit.

    Attributes:
        asked: how often the fit has asked whether a checkpoint is due.
        steps: (step, total) of each report.
        seen: the metrics of each report.
        kept: the checkpoint, as bytes.
    """

    def __init__(self, stop: int | None = None, *, from_step: int | None = None, kept: bytes | None = None) -> None:
        """Save at question number ``stop``, or at the first question from step ``from_step`` on, and kill the fit."""
        self.asked, self.kept = 0, kept
        self.steps, self.seen = list[tuple[int, int]](), list[Mapping[str, float]]()
        self._stop, self._from = stop, from_step

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        assert 0 < step <= total
        assert all(math.isfinite(value) for value in (metrics or {}).values())
        self.steps.append((step, total))
        self.seen.append(metrics or {})

    def due(self) -> bool:
        self.asked += 1
        return self.asked == self._stop or (self._from is not None and self.steps[-1][0] >= self._from)

    def save(self, state: State) -> None:
        self.kept = to_bytes(state)
        raise Killed

    def load(self) -> State | None:
        return None if self.kept is None else from_bytes(self.kept)


class Saving(Report):
    """A report that saves a checkpoint whenever it is asked, and kills the fit at save number ``stop``.

    Attributes:
        told: step and loss of each report.
        saved: the number of saves.
        kept: the last checkpoint, as bytes.
    """

    def __init__(self, last: State | None = None, stop: int = 0) -> None:
        self.told, self.saved, self._stop = list[tuple[int, float]](), 0, stop
        self.kept = None if last is None else to_bytes(last)

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self.told.append((step, (metrics or {}).get("loss", math.nan)))

    def due(self) -> bool:
        return True

    def save(self, state: State) -> None:
        self.saved, self.kept = self.saved + 1, to_bytes(state)
        if self.saved == self._stop:
            raise Killed

    def load(self) -> State | None:
        return None if self.kept is None else from_bytes(self.kept)


def killed(fit: Callable[[Report], Any], stop: int | None = None, *, from_step: int | None = None) -> State:
    """Return the checkpoint of a fit that is killed as :class:`Watched` says."""
    report = Watched(stop, from_step=from_step)
    with pytest.raises(Killed):
        fit(report)
    checkpoint = report.load()
    assert checkpoint is not None
    return checkpoint


def resumed(fit: Callable[[Report], T], stop: int | None = None, *, from_step: int | None = None) -> T:
    """Kill a fit at a checkpoint, and return the result of the fit that continues from this checkpoint."""
    return fit(Watched(kept=to_bytes(killed(fit, stop, from_step=from_step))))


def same_bits(first: State, second: State) -> bool:
    """Say whether two states have the same config and the same tensors, to the last bit."""
    return to_bytes(first) == to_bytes(second)
