"""What runs in the process of a task: it sets threads and device, and sends progress and checkpoints."""

import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.errors import ArtifactError
from bdl_pipe.metrics.cost import clock, peak_bytes
from bdl_pipe.progress import Report

from ..core.settings import Settings, require_device
from .base import Done, Task, Work

_REPORT_SECONDS: Final = 0.5
_TRIM_THRESHOLD: Final = -1  # option numbers of mallopt, from malloc.h
_MMAP_THRESHOLD: Final = -3


class Channel(Protocol):
    """A connection from a worker to the driver."""

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None: ...
    def save(self, task: str, blob: bytes) -> None: ...
    def load(self, task: str) -> bytes | None: ...
    def finish(self, task: str, blob: bytes) -> None: ...


class HandedOver(Exception):
    """A task has reached its time limit in this process; its checkpoint holds what it has done."""


class TaskReport(Report):
    """The report of one task: it sends progress at most twice a second, and checkpoints as bytes."""

    def __init__(
        self,
        task: str,
        channel: Channel,
        every: float,
        keeps: bool,
        limit: float = math.inf,
        cost: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the task's name, and the connection to the driver.

        Args:
            every: seconds between two checkpoints.
            keeps: whether checkpoints are kept.
            limit: seconds after which the next checkpoint is the last; once it is kept, HandedOver is raised.
            cost: the clock of :attr:`seconds`; all other times are wall time.
        """
        self._task, self._channel, self._every, self._keeps, self._limit = task, channel, every, keeps, limit
        self._cost, self._began = cost, cost()
        self._start = self._saved = time.monotonic()
        self._reported = -_REPORT_SECONDS
        self._before = 0.0
        self._metrics: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this task, including earlier attempts up to their last checkpoint."""
        return self._before + self._cost() - self._began

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._metrics.update(metrics or {})
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS or step == total:
            self._reported = now
            self._channel.report(self._task, step, total, self._metrics)
            self._metrics = {}

    def due(self) -> bool:
        return self._keeps and (time.monotonic() - self._saved >= self._every or self._is_over())

    def save(self, state: State) -> None:
        if self._keeps:
            self._channel.save(self._task, to_bytes(_timed(state, self.seconds)))
            self._saved = time.monotonic()
            if self._is_over():
                raise HandedOver(self._task)

    def load(self) -> State | None:
        blob = self._channel.load(self._task) if self._keeps else None
        if blob is None:
            return None
        try:
            state, facts = _untimed(blob, self._task)
        except ArtifactError:
            return None  # the checkpoint is damaged, so the task starts over
        self._before = facts["seconds"]
        return state

    def _is_over(self) -> bool:
        return time.monotonic() - self._start >= self._limit


def attempt(
    work: Work,
    task: Task,
    shared: Mapping[str, Any],
    channel: Channel,
    settings: Settings,
    keeps: bool,
    limit: float = math.inf,
) -> Done:
    """Run one task, from its last checkpoint if there is one, and return its result and cost.

    Raises:
        HandedOver: the task kept a checkpoint after ``limit`` seconds; another attempt continues from it.
    """
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    import torch

    torch.set_num_threads(settings.threads)
    require_device(settings.device)
    keep_freed_memory()
    report = TaskReport(task.name, channel, settings.checkpoint_seconds, keeps, limit, clock(settings.device))
    with peak_bytes(settings.device) as peak:
        result = work(task.payload, shared, report)
    done = Done(result, report.seconds, peak.bytes)
    if keeps:
        channel.finish(task.name, to_bytes(_timed(result, done.seconds, done.peak_bytes)))
    return done


def finished(blob: bytes, origin: str) -> Done | None:
    """Read a result that ``attempt`` stored; None if it is damaged."""
    try:
        state, facts = _untimed(blob, origin)
    except ArtifactError:
        return None
    return Done(state, facts["seconds"], facts["peak_bytes"])


def keep_freed_memory() -> None:
    """Make glibc reuse large blocks instead of returning them to the kernel: training steps fault fewer pages."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
            for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
                ctypes.CDLL(None).mallopt(option, 2**30)


def _timed(state: State, seconds: float, peak: int = 0) -> State:
    return State(state.tensors, {"state": state.config, "seconds": seconds, "peak_bytes": peak})


def _untimed(blob: bytes, origin: str) -> tuple[State, dict[str, Any]]:
    stored = from_bytes(blob, origin)
    return State(stored.tensors, stored.config["state"]), stored.config
