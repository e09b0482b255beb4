"""The in-process executor: one task after the other, here. Needs no Ray."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.settings import Settings, require_device
from .base import Done, Task, Work
from .display import Display
from .store import CheckpointChannel, Store
from .worker import attempt, finished


class Inline:
    """An executor that runs tasks in this process."""

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
        light: bool | None = False,
    ) -> list[Done]:
        require_device(self._settings.device)
        display.expect(len(tasks))
        return [run_here(work, task, shared, display, store, self._settings) for task in tasks]

    def close(self) -> None:
        pass


def run_here(
    work: Work,
    task: Task,
    shared: Mapping[str, Any],
    display: Display,
    store: Store | None,
    settings: Settings,
    limit: float = math.inf,
) -> Done:
    """Run a task in this process, unless it has been finished already; :func:`~.worker.attempt` says what it raises."""
    before = store.finished(task.name) if store else None
    done = finished(before, task.name) if before else None
    if done is None:
        part, channel = {key: shared[key] for key in task.needs}, _LocalChannel(display, store)
        done = attempt(work, task, part, channel, settings, store is not None, limit)
    display.done(task.name)
    return done


class _LocalChannel(CheckpointChannel):
    """A channel of no length: the driver is the worker."""

    def __init__(self, display: Display, store: Store | None) -> None:
        super().__init__(store)
        self._display = display

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._display.step(task, step, total, metrics)
