"""The interface of executors: tasks, batches of tasks, results, and the run of one task in a process.

A task is a pure function of its payload and of shared read-only data, including their seeds, on one thread, so that all
executors give the same bits.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch

from bdl_pipe import checkpoints
from bdl_pipe.checkpoints import Done as Done  # stages import it from here: editing their imports makes results stale
from bdl_pipe.checkpoints import Kept, Send, measured
from bdl_pipe.progress import Report

from .process import keep_freed_memory, repeat_bits
from ..core.settings import Settings, require_device
from .display import Display
from .store import Store

Work = Callable[[Any, Mapping[str, Any], Report], Any]  # (payload, shared, report) -> result
Where = Literal["here", "workers", "try"]


@dataclass(frozen=True)
class Task:
    """A unit of work.

    Attributes:
        name: the name of the task and its checkpoint, unique within a call.
        payload: small data that are sent with the task.
        needs: keys of the shared data that the task reads.
        data_parallel: whether several processes may share its batches.
        size: the amount of work, relative to the other tasks of the call.
    """

    name: str
    payload: Any
    needs: tuple[str, ...] = ()
    data_parallel: bool = False
    size: float = 1.0


@dataclass(frozen=True)
class Batch:
    """The common part of the tasks of one call.

    Attributes:
        work: an importable function.
        shared: read-only data; each worker receives it at most once.
        display: shows the progress.
        store: stores checkpoints and results, which must be States; None stores nothing.
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
            work, shared, display, store: see :class:`Batch`.
            where: "here" runs the tasks in this process, on the CPU; "workers" sends them to workers; "try" runs the
                smallest task here for up to ten seconds, and sends the rest to workers if it takes longer.

        Raises:
            UserError: no node can run such a task, or the cluster does not answer.
            Exception: the error of a task, as the task raised it; the other tasks are cancelled.
        """
        display.expect(len(tasks))
        results: dict[str, Done] = {}
        if store is not None:
            for task in tasks:
                if finished := checkpoints.kept(store.finished(task.name), task.name):
                    results[task.name] = finished
                    display.done(task.name)
        unfinished = [task for task in tasks if task.name not in results]
        if unfinished:
            results |= self._run(Batch(work, shared, display, store), unfinished, where)
        return [results[task.name] for task in tasks]

    def close(self) -> None:
        """Stop all worker processes."""

    @abstractmethod
    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        """Run the tasks, and return their results by name."""


@final
class Inline(Executor):
    """An executor that runs all tasks in this process, one after another, without Ray."""

    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        return {task.name: run_here(batch, task, self._settings) for task in tasks}


def run_here(batch: Batch, task: Task, settings: Settings, limit: float = math.inf) -> Done:
    """Run a task in this process; see :func:`attempt` for ``limit``."""
    shared = {key: batch.shared[key] for key in task.needs}
    done = attempt(batch.work, task, shared, batch.display.step, batch.store, settings, limit)
    batch.display.done(task.name)
    return done


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
        HandedOver: the task saved a checkpoint after ``limit`` seconds; another attempt continues from it.
    """
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    torch.set_num_threads(settings.threads)
    require_device(settings.device)
    repeat_bits(settings.device)
    keep_freed_memory()
    return measured(
        lambda report: work(task.payload, shared, report),
        task.name,
        kept,
        send,
        every=settings.checkpoint_seconds,
        limit=limit,
        device=settings.device,
    )
