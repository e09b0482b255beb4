"""The in-process executor: one task after the other, here. Needs no Ray."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..settings import Settings, require_device
from . import Done, Task, Work
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
        channel, results = _LocalChannel(display, store), list[Done]()
        for task in tasks:
            before = store.finished(task.name) if store else None
            done = finished(before, task.name) if before else None
            if done is None:
                part = {key: shared[key] for key in task.needs}
                done = attempt(work, task, part, channel, self._settings, keeps=store is not None)
            display.done(task.name)
            results.append(done)
        return results

    def close(self) -> None:
        pass


class _LocalChannel(CheckpointChannel):
    """A channel of no length: the driver is the worker."""

    def __init__(self, display: Display, store: Store | None) -> None:
        super().__init__(store)
        self._display = display

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._display.step(task, step, total, metrics)
