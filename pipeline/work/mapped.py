"""The tasks of a stage inside a Ray job: a cluster's executor there, whose results and progress go home."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.jobs.calls import Outlet
from ..core.settings import Settings
from .base import Task, Work
from .cluster import Cluster, as_driver
from .display import Display
from .store import Store


@dataclass(frozen=True)
class Map:
    """The arguments of :func:`run`: those of ``Executor.map``.

    Attributes:
        identity: of the work; a job that was killed is gone on with from the checkpoints of this name.
    """

    work: Work
    tasks: Sequence[Task]
    settings: Settings
    identity: str


def run(arguments: Map, shared: Mapping[str, Any], outlet: Outlet) -> None:
    """Run the tasks, and send home the bytes of each result as a task ends."""
    store = Store(_folder(), arguments.identity)
    store.open()
    executor = Cluster(as_driver(arguments.settings))
    try:
        with _Relay(store, outlet) as display:
            executor.map(arguments.work, arguments.tasks, shared=shared, display=display, store=store)
    finally:
        executor.close()
    store.clear()


class _Relay(Display):
    """A display that is seen elsewhere."""

    def __init__(self, store: Store, outlet: Outlet) -> None:
        super().__init__("job")
        self._store, self._outlet = store, outlet

    def step(self, task: str, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._outlet.step(task, step, total, dict(metrics or {}))

    def say(self, text: str) -> None:
        self._outlet.tell(said=text)

    def done(self, task: str) -> None:
        blob = self._store.finished(task)
        assert blob is not None
        self._outlet.keep(task, blob)


def _folder() -> Path:
    """Return where checkpoints of jobs lie on the node that runs them: longer than a job lives."""
    return Path(tempfile.gettempdir()) / f"bdl-jobs-{os.getuid()}"
