"""The executor of a machine that reaches a cluster's dashboard alone: the tasks of a stage are a Ray job.

Stages keep running here: they read their inputs, write artifacts, and tell MLflow. A job is sent the code, the tasks
and what these read, and sends home progress and results, which are kept in the stage's store as they come.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import places
from ..core.jobs import client
from ..core.jobs.calls import Call
from ..core.jobs.dashboard import preflight
from ..core.settings import Settings
from .base import Done, Task, Work
from .cluster import Cluster
from .display import Display
from .mapped import Map, run
from .store import Store


class Jobs(Cluster):
    """An executor that runs tasks in a Ray job. Work without a store has its results in this machine's memory alone."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._url = settings.jobs
        self._here = Cluster(dataclasses.replace(settings, jobs=""))

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
        near = super().map if store else self._here.map
        return near(work, tasks, shared=shared, display=display, store=store, light=light)

    def close(self) -> None:
        super().close()
        self._here.close()

    def _connect(self, display: Display) -> None:
        preflight(self._url)

    def _run(
        self, work: Work, tasks: Sequence[Task], shared: Mapping[str, Any], display: Display, store: Store | None
    ) -> dict[str, Done]:
        assert store is not None
        used = {key for task in tasks for key in task.needs}
        arguments = Map(work, tuple(tasks), dataclasses.replace(self._settings, jobs=""), store.name)
        sent = {key: value for key, value in shared.items() if key in used}
        stage = display.label.replace(" ", "@", 1) if places.is_usual() else ""
        call = Call(f"bdl-{store.name}", display.label, stage, run, arguments, sent)
        results = _Results({task.name for task in tasks}, display, store)
        client.perform(self._url, call, results, self._settings.remote)
        return results.done


class _Results:
    """What a job sends home, as it comes."""

    def __init__(self, wanted: set[str], display: Display, store: Store) -> None:
        self._wanted, self.done = wanted, dict[str, Done]()
        self._display, self._store = display, store

    def event(self, event: Mapping[str, Any]) -> None:
        for task, step, total, metrics in event.get("steps", ()):
            if task in self._wanted:
                self._display.step(task, step, total, metrics)

    def missing(self) -> list[str]:
        return sorted(self._wanted - self.done.keys())

    def file(self, name: str, blob: bytes) -> None:
        from .worker import finished

        done = finished(blob, name)
        if done is None or name not in self._wanted:  # of an earlier command, which has that task
            return
        self._store.finish(name, blob)
        self.done[name] = done
        self._display.done(name)
