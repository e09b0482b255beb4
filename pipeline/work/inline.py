"""The in-process executor: one task after the other, in this process. It needs no Ray."""

import math
from collections.abc import Mapping, Sequence

from ..core.settings import Settings, require_device
from .base import Batch, Done, Executor, Task, Where
from .display import Display
from .store import CheckpointChannel, Store
from .worker import attempt, finished


class Inline(Executor):
    """An executor that runs all tasks in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        require_device(self._settings.device)
        return {task.name: run_here(batch, task, self._settings) for task in tasks}


def run_here(batch: Batch, task: Task, settings: Settings, limit: float = math.inf) -> Done:
    """Run a task in this process unless its result is stored; see :func:`~.worker.attempt` for ``limit``."""
    blob = batch.store.finished(task.name) if batch.store else None
    done = finished(blob, task.name) if blob else None
    if done is None:
        shared = {key: batch.shared[key] for key in task.needs}
        channel = _LocalChannel(batch.display, batch.store)
        done = attempt(batch.work, task, shared, channel, settings, batch.store is not None, limit)
    batch.display.done(task.name)
    return done


class _LocalChannel(CheckpointChannel):
    """The channel of a task that runs in the driver's process."""

    def __init__(self, display: Display, store: Store | None) -> None:
        super().__init__(store)
        self._display = display

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._display.step(task, step, total, metrics)
