"""What a stage hands to an executor, what the executor returns, and how one task runs in a process.

A task is a pure function of its payload, of shared read-only data, and of the seeds in them, on one thread: every
executor gives the same bits.
"""

import contextlib
import ctypes
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, final

import torch

from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.errors import ArtifactError
from bdl_pipe.metrics.cost import clock, peak_bytes
from bdl_pipe.progress import Report

from ..core.settings import Settings, require_device
from .display import Display
from .store import Store

Work = Callable[[Any, Mapping[str, Any], Report], Any]  # (payload, shared, report) -> result
Where = Literal["here", "workers", "try"]
Send = Callable[[str, int, int, Mapping[str, float]], None]  # receives (task, step, total, metrics)
_REPORT_SECONDS: Final = 0.5
_TRIM_THRESHOLD: Final = -1  # option numbers of mallopt, from malloc.h
_MMAP_THRESHOLD: Final = -3


@dataclass(frozen=True)
class Task:
    """A unit of work.

    Attributes:
        name: unique within a call; it names the task's checkpoint.
        payload: small, sent with the task.
        needs: keys of the shared data that it reads.
        data_parallel: several processes may share its batches.
        size: the amount of work, relative to the other tasks of the call.
    """

    name: str
    payload: Any
    needs: tuple[str, ...] = ()
    data_parallel: bool = False
    size: float = 1.0


@dataclass(frozen=True)
class Done:
    """A task's result and its cost, over all its attempts.

    Attributes:
        seconds: by ``bdl_pipe.metrics.cost.clock``: on a CPU the processor time of one thread, else wall time.
        peak_bytes: the largest resident memory of the process that ran it, up to its end.
    """

    result: Any
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Batch:
    """What the tasks of one call have in common.

    Attributes:
        work: an importable function.
        shared: read-only data; each worker receives it at most once.
        display: shows every step.
        store: keeps checkpoints and results, which are then States; None: nothing is kept.
    """

    work: Work
    shared: Mapping[str, Any]
    display: Display
    store: Store | None


class Executor(ABC):
    """A way to run the tasks of a stage."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def map(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        shared: Mapping[str, Any],
        display: Display,
        store: Store | None = None,
        where: Where = "workers",
    ) -> list[Done]:
        """Run the tasks that have no stored result, and return all results in the order of the tasks.

        Args:
            work, shared, display, store: as in :class:`Batch`.
            where: "here" runs the tasks in this process, on the CPU; "workers" sends them to workers; "try" runs the
                smallest task here for up to ten seconds, and sends the rest to workers if it takes long.

        Raises:
            UserError: no node can run such a task, or the cluster does not answer.
            Exception: the error of a task, as the task raised it; the other tasks are cancelled.
        """
        display.expect(len(tasks))
        stored = {task.name: _untimed(store.finished(task.name), task.name) for task in tasks} if store else {}
        results = {name: done for name, done in stored.items() if done is not None}
        for name in results:
            display.done(name)
        left = [task for task in tasks if task.name not in results]
        if left:
            results |= self._run(Batch(work, shared, display, store), left, where)
        return [results[task.name] for task in tasks]

    def close(self) -> None:
        """Stop all worker processes."""

    @abstractmethod
    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        """Run the tasks, and return their results by name."""


@final
class Inline(Executor):
    """An executor that runs all tasks in this process, one after the other. It needs no Ray."""

    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        return {task.name: run_here(batch, task, self._settings) for task in tasks}


def run_here(batch: Batch, task: Task, settings: Settings, limit: float = math.inf) -> Done:
    """Run a task in this process; :func:`attempt` describes ``limit``."""
    shared = {key: batch.shared[key] for key in task.needs}
    done = attempt(batch.work, task, shared, batch.display.step, batch.store, settings, limit)
    batch.display.done(task.name)
    return done


class Kept(Protocol):
    """A keeper of one stage's checkpoints: a :class:`Store`, or a worker's connection to the driver's store."""

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
        send: Send,
        kept: Kept | None,
        every: float,
        limit: float = math.inf,
        cost: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the task's name, and what receives its progress and its checkpoints.

        Args:
            kept: None: no checkpoint is kept.
            every: seconds between two checkpoints.
            limit: seconds after which the next checkpoint is the last; once it is kept, HandedOver is raised.
            cost: the clock of :attr:`seconds`; all other times are wall time.
        """
        self._task, self._send, self._kept, self._every, self._limit = task, send, kept, every, limit
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
            self._send(self._task, step, total, self._metrics)
            self._metrics = {}

    def due(self) -> bool:
        return self._kept is not None and (time.monotonic() - self._saved >= self._every or self._is_over())

    def save(self, state: State) -> None:
        if self._kept is not None:
            self._kept.save(self._task, to_bytes(_timed(state, self.seconds)))
            self._saved = time.monotonic()
            if self._is_over():
                raise HandedOver(self._task)

    def load(self) -> State | None:
        last = _untimed(self._kept.load(self._task), self._task) if self._kept is not None else None
        if last is None:
            return None
        self._before = last.seconds
        return last.result

    def _is_over(self) -> bool:
        return time.monotonic() - self._start >= self._limit


def attempt(
    work: Work,
    task: Task,
    shared: Mapping[str, Any],
    send: Send,
    kept: Kept | None,
    settings: Settings,
    limit: float = math.inf,
) -> Done:
    """Run one task, from its last checkpoint if there is one, and return its result and cost.

    Raises:
        HandedOver: the task kept a checkpoint after ``limit`` seconds; another attempt continues from it.
    """
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    torch.set_num_threads(settings.threads)
    require_device(settings.device)
    keep_freed_memory()
    report = TaskReport(task.name, send, kept, settings.checkpoint_seconds, limit, clock(settings.device))
    with peak_bytes(settings.device) as peak:
        result = work(task.payload, shared, report)
    done = Done(result, report.seconds, peak.bytes)
    if kept is not None:
        kept.finish(task.name, to_bytes(_timed(result, done.seconds, done.peak_bytes)))
    return done


def keep_freed_memory() -> None:
    """Make glibc reuse large blocks instead of returning them to the kernel: training steps fault fewer pages."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
            for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
                ctypes.CDLL(None).mallopt(option, 2**30)


def _timed(state: State, seconds: float, peak: int = 0) -> State:
    return State(state.tensors, {"state": state.config, "seconds": seconds, "peak_bytes": peak})


def _untimed(blob: bytes | None, origin: str) -> Done | None:
    """Read a state and its cost; None if there is none or the bytes are damaged: the task then starts over."""
    try:
        stored = from_bytes(blob, origin) if blob else None
    except ArtifactError:
        return None
    if stored is None:
        return None
    return Done(State(stored.tensors, stored.config["state"]), stored.config["seconds"], stored.config["peak_bytes"])
