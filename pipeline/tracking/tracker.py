"""The tracker of a command: a thread that shows the stages in MLflow's store while they run elsewhere."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from ..core import curves, places, provenance
from ..core.model import Params
from ..core.settings import Settings
from ..core.storage import hide
from ..plan import fresh
from ..plan.plan import Plan, Stage
from . import comparison, store
from .comparison import Comparison
from .stage_runs import IDENTITY, TRACKED, StageRun, commit

_FOLLOW_SECONDS: Final = 3.0  # between two looks at the curves of running stages
_CLOSE_SECONDS: Final = 120.0  # that the end of a command waits for the store at most
_STOP_SECONDS: Final = 10.0  # the same after Ctrl-C


class Tracker:
    """Tells MLflow of one command's stages. Its methods return at once; a thread does what they ask for, in order.

    The first failure of the store is one warning, and ends the tracking of this command. :func:`project` shows later
    what the store has missed.
    """

    def __init__(self, settings: Settings, params: Params, command: str, tags: Mapping[str, str]) -> None:
        self._params, self._device, self._command, self._tags = params, settings.device, command, tags
        self._todo = queue.SimpleQueue[Callable[[], object] | None]()
        self._running: dict[str, StageRun] = {}
        self._began, self._parent, self._has_failed = time.time(), "", False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if settings.tracking:
            self._thread.start()

    def started(self, stage: Stage) -> None:
        """Show that a stage runs."""
        if stage.kind in TRACKED:
            self._todo.put(partial(self._start, StageRun.of(stage), time.time()))

    def ended(self, stage: Stage, status: str, lines: Sequence[str] = ()) -> None:
        """Show that a stage, whose files are in place, ended as FINISHED, FAILED (with its last lines) or KILLED."""
        if stage.kind in TRACKED:
            self._todo.put(partial(self._end, stage.name, status, time.time(), lines))
        elif stage.kind == "report" and status == "FINISHED":
            self._todo.put(self._keep_report)

    def project(self, plan: Plan) -> None:
        """Show the stages that are up to date and that the store does not know."""
        runs = [StageRun.of(stage) for stage in plan.values() if stage.kind in TRACKED]
        self._todo.put(lambda: self._project(runs))

    def compare(self, build: Callable[[], Comparison]) -> None:
        """Bring the comparison up to date."""
        self._todo.put(lambda: comparison.publish(self._client, build()))

    def close(self, status: str) -> None:
        """End the command's run, once the thread has done what it was asked for; a slow store is one warning."""
        if not self._thread.is_alive():
            return
        self._todo.put(partial(self._finish, status))
        self._todo.put(None)
        self._thread.join(_STOP_SECONDS if status == "KILLED" else _CLOSE_SECONDS)
        if self._thread.is_alive():
            print(f"warning: {hide(store.store_uri())} is slow: not all stages are tracked", file=sys.stderr)

    def _work(self) -> None:
        try:
            self._client = store.connect()
            self._experiment = store.experiment(self._client, store.STAGES)
            store.end_dead(self._client, self._experiment)
            while True:
                try:
                    action = self._todo.get(timeout=_FOLLOW_SECONDS)
                except queue.Empty:
                    for run in self._running.values():
                        run.follow(self._client)
                    continue
                if action is None:
                    return
                action()
        except Exception as error:  # MLflow, SQL, disks and networks raise what they like; no result depends on it
            store.warn(error)

    def _start(self, run: StageRun, started: float) -> None:
        self._begin(run, started, provenance.commit())
        self._running[run.stage.name] = run

    def _begin(self, run: StageRun, started: float, made_at: str) -> None:
        if not self._parent:
            tags = {"device": self._device, **commit(provenance.commit()), **self._tags}
            self._parent = store.create(self._client, self._experiment, self._command, tags, self._began)
        tags = {store.NEST: self._parent, "device": self._device, **commit(made_at)}
        run.start(self._client, self._experiment, self._params, tags, started)

    def _end(self, name: str, status: str, ended: float, lines: Sequence[str]) -> None:
        self._has_failed = self._has_failed or status == "FAILED"
        if (run := self._running.pop(name, None)) is None:
            return
        if status == "FINISHED" and run.digest() in self._known(run.digest()):  # it came out up to date
            self._client.delete_run(run.run_id)
        else:
            run.end(self._client, status, ended, lines)

    def _keep_report(self) -> None:
        page = places.REPORT / "index.html"
        if self._parent and page.is_file():
            self._client.log_artifact(self._parent, str(page))

    def _project(self, runs: Sequence[StageRun]) -> None:
        known = self._known()
        for run in runs:
            if fresh.reason(run.stage) is None and run.digest() not in known:
                ended, begun = run.identity.stat().st_mtime, curves.begun(run.curve)
                self._begin(run, begun.get("started", ended), begun.get("commit", ""))
                run.end(self._client, "FINISHED", ended)

    def _known(self, identity: str = "") -> set[str]:
        """Return the identities of results in the store, all or only this one."""
        query = f"tags.{IDENTITY} = '{identity}'" if identity else f"tags.{IDENTITY} != ''"
        return {run.data.tags[IDENTITY] for run in store.search(self._client, self._experiment, query)}

    def _finish(self, status: str) -> None:
        for name in [*self._running]:
            self._end(name, "KILLED", time.time(), ())
        if self._parent:
            is_whole = status != "FINISHED" or not self._has_failed
            self._client.set_terminated(self._parent, status if is_whole else "FAILED")


@contextmanager
def opened(
    settings: Settings, params: Params, command: str, tags: Mapping[str, str] | None = None
) -> Iterator[Tracker]:
    """Open the tracker of a command, which ends as FINISHED, or as FAILED or KILLED by what the block raises."""
    tracker = Tracker(settings, params, command, tags or {})
    status: str = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.close(status)
