"""The tracker of a command: a thread that writes stages to MLflow's store while their processes run.

All params, tags and metrics of a stage's run come from the plan and from the stage's files.
"""

import json
import math
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe import artifacts, config, scores
from bdl_pipe.scores import RunScores

from ..core import curves, places, provenance
from ..core.model import FIT_KINDS, Params
from ..core.settings import Settings
from ..core.storage import hide
from ..plan import plan as plans
from ..plan.plan import Plan, Stage
from . import comparison, store
from .comparison import Comparison

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_TRACKED: Final = (*FIT_KINDS, "evaluate")
_REPORT: Final = "report.sha256"  # the tag with the hash of the report's pages
_SAME: Final = "report.run"  # the tag with the id of the run that has the same pages
_IDENTITY: Final = "identity"  # the tag with the hash of the identity file, which identifies a result
_FOLLOW_SECONDS: Final = 3.0  # between two reads of running stages' curves
_CLOSE_SECONDS: Final = 120.0  # the longest wait for the store at the end of a command
_STOP_SECONDS: Final = 10.0  # the longest wait after Ctrl-C


class StageRun:
    """One execution of a stage, and its run in MLflow's store.

    Attributes:
        identity, record, curve: the stage's files, stored here because ``places`` may change.
        run_id: the run's id in the store; empty if it does not exist yet.
        shown: the time up to which the curve is in the store.
    """

    def __init__(self, stage: Stage) -> None:
        about = stage.kind, stage.key
        self.stage, self.run_id, self.shown = stage, "", 0.0
        self.identity, self.record, self.curve = places.identity(*about), places.record(*about), places.curve(*about)

    def digest(self) -> str:
        """Return the hash of the identity file, which is unique to a result."""
        return artifacts.sha256(self.identity)

    def start(
        self, client: "MlflowClient", experiment: str, params: Params, tags: Mapping[str, str], started: float
    ) -> None:
        """Create the run, with its params and with tags for filtering."""
        stage = self.stage
        run = params.run("student" if stage.kind == "evaluate" else stage.kind, stage.key)
        about = {"dataset": run.spec.dataset, "method": run.spec.method, "setting": run.spec.setting}
        artifacts_read = [path.parent if path.name == artifacts.MANIFEST else path for path in stage.reads]
        inputs = {f"sha256.{path}": digest for path in artifacts_read if (digest := _hash(path))}
        facts = {"stage": stage.kind, "key": stage.key, **about, "seed": str(params.seed), **inputs}
        self.run_id = store.create(client, experiment, f"{stage.kind} {stage.key}", {**tags, **facts}, started)
        numbers = {**(about if stage.kind == "evaluate" else {}), **config.to_mapping(run.config)}
        store.log(client, self.run_id, params=store.flatten(numbers))
        self.shown = started

    def follow(self, client: "MlflowClient") -> None:
        """Write the points that the stage has measured since the last call."""
        points = curves.read(self.curve, self.shown)
        store.log(client, self.run_id, [(name, x, at.time, at.step) for at in points for name, x in at.metrics.items()])
        self.shown = max([self.shown, *(at.time for at in points)])

    def end(self, client: "MlflowClient", status: str, ended: float, lines: Sequence[str] = ()) -> None:
        """Write the results, or the last lines of a failed stage, and end the run."""
        self.follow(client)
        if status == "FINISHED":
            record = json.loads(self.record.read_text(encoding="utf-8")) if self.stage.kind != "evaluate" else {}
            metrics = ((name, value, ended, 0) for name, value in self._metrics(record))
            store.log(client, self.run_id, metrics, tags=self._results(record))
        elif lines:
            store.log(client, self.run_id, tags={"error": hide("\n".join(lines))})
        client.set_terminated(self.run_id, status, round(1000 * ended))

    def _metrics(self, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        if self.stage.kind == "evaluate":
            yield from final_scores(RunScores(scores.read(self.stage.makes[0] / "scores.parquet"))).items()
        else:
            yield from record["metrics"].items()
            yield "fit_seconds", sum(record["seconds"].values())

    def _results(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Collect the tags of a result: the link to its artifact, and facts of its record."""
        place = self.stage.makes[0]
        tags = {_IDENTITY: self.digest(), "artifact": str(place), "artifact.sha256": _hash(place)}
        if record:
            tags |= {"device": record["device"], "warnings": "\n".join(record["warnings"]), **_commit(record["commit"])}
        if self.stage.kind == "student":
            tags[store.NOTE] = (
                f"The fitted posterior is `{place}`. `python -m pipeline export model {self.stage.key} --to DIR` "
                "writes it as a model that MLflow loads and serves."
            )
        return {name: text for name, text in tags.items() if text}


class Tracker:
    """Tracks one command's stages in MLflow. Its methods return immediately; a thread executes the requests in order.

    The first error of the store is a warning and ends the tracking of this command. :func:`project` adds missing stages
    later.
    """

    def __init__(self, settings: Settings, params: Params, command: str, tags: Mapping[str, str]) -> None:
        self._params, self._device, self._command, self._tags = params, settings.device, command, tags
        self._todo = queue.SimpleQueue[Callable[[], object] | None]()
        self._running: dict[str, StageRun] = {}
        self._began, self._parent, self._has_failed, self._watches = time.time(), "", False, False
        self._watched = settings.machine.track.system
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if settings.tracking:
            self._thread.start()

    def started(self, stage: Stage) -> None:
        """Track the start of a stage."""
        if stage.kind in _TRACKED:
            self._todo.put(partial(self._start, StageRun(stage), time.time()))

    def ended(self, stage: Stage, status: str, lines: Sequence[str] = ()) -> None:
        """Track the end of a stage with written files: FINISHED, FAILED (with its last lines) or KILLED.

        SAME is a stage that another command has made meanwhile, which shows it.
        """
        if stage.kind in _TRACKED:
            self._todo.put(partial(self._end, stage.name, status, time.time(), lines))
        elif stage.kind == "report" and status == "FINISHED":
            self._todo.put(self._keep_report)

    def project(self, plan: Plan) -> None:
        """Add the stages that are up to date but missing in the store."""
        runs = [StageRun(stage) for stage in plan.values() if stage.kind in _TRACKED]
        self._todo.put(lambda: self._project(runs))

    def compare(self, build: Callable[[], Sequence[Comparison]]) -> None:
        """Bring the comparison up to date."""
        self._todo.put(lambda: comparison.publish(self._client, build()))

    def close(self, status: str) -> None:
        """End the command's run after the thread has executed all requests; a slow store causes one warning."""
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
        except Exception as error:  # MLflow, SQL, disks and networks raise any exception; no result depends on it
            store.warn(error)

    def _start(self, run: StageRun, started: float) -> None:
        self._begin(run, started, provenance.commit())
        self._running[run.stage.name] = run

    def _begin(self, run: StageRun, started: float, made_at: str) -> None:
        if not self._parent:
            tags = {"device": self._device, **_commit(provenance.commit()), **self._tags}
            self._parent = store.create(self._client, self._experiment, self._command, tags, self._began)
            self._watches = store.watch(self._parent, self._watched)
        tags = {store.NEST: self._parent, "device": self._device, **_commit(made_at)}
        run.start(self._client, self._experiment, self._params, tags, started)

    def _end(self, name: str, status: str, ended: float, lines: Sequence[str]) -> None:
        self._has_failed = self._has_failed or status == "FAILED"
        if (run := self._running.pop(name, None)) is None:
            return
        if status == "SAME" or (status == "FINISHED" and run.digest() in self._known(run.digest())):  # it is not new
            self._client.delete_run(run.run_id)
        else:
            run.end(self._client, status, ended, lines)

    def _keep_report(self) -> None:
        """Keep the report's pages, unless another run of the store has the same report.

        MLflow shows one file alone, so that the first page has the script of 0.9 MB that draws figures. Other pages
        say where their figures are.
        """
        pages = {str(page.relative_to(places.REPORT)): page for page in sorted(places.REPORT.rglob("*.html"))}
        if not self._parent or not pages:
            return
        digest = sha256("".join(artifacts.sha256(page) for page in pages.values()).encode()).hexdigest()
        same = store.search(self._client, self._experiment, f"tags.{_REPORT} = '{digest}'")
        store.log(self._client, self._parent, tags={_REPORT: digest} | ({_SAME: same[0].info.run_id} if same else {}))
        script = places.REPORT / "pages/vega.js"
        code = script.read_text(encoding="utf-8") if script.is_file() else ""
        for name, page in pages.items() if not same else ():
            head, found, tail = page.read_text(encoding="utf-8").rpartition('vega.js"></script>')
            drawn = f"<script>{code}</script>" if name == "index.html" else f"<p>Its figures are in report/{name}.</p>"
            text = f"{head.rpartition('<script')[0]}{drawn}{tail}" if found else tail
            self._client.log_text(self._parent, text, name)

    def _project(self, runs: Sequence[StageRun]) -> None:
        published = self._known()
        for run in runs:
            if plans.reason(run.stage) is None and (digest := run.digest()) not in published:
                ended, begun = run.identity.stat().st_mtime, curves.begun(run.curve, digest)
                self._begin(run, begun.get("started", ended), begun.get("commit", ""))
                run.shown = run.shown if begun else math.inf  # the curve is of another result
                run.end(self._client, "FINISHED", ended)

    def _known(self, identity: str = "") -> set[str]:
        """Return the identities of all results in the store, or only ``identity`` if the store has it."""
        query = f"tags.{_IDENTITY} = '{identity}'" if identity else f"tags.{_IDENTITY} != ''"
        return {run.data.tags[_IDENTITY] for run in store.search(self._client, self._experiment, query)}

    def _finish(self, status: str) -> None:
        for name in [*self._running]:
            self._end(name, "KILLED", time.time(), ())
        if self._watches:
            store.unwatch()
        if self._parent:
            is_whole = status != "FINISHED" or not self._has_failed
            self._client.set_terminated(self._parent, status if is_whole else "FAILED")


@contextmanager
def opened(
    settings: Settings, params: Params, command: str, tags: Mapping[str, str] | None = None
) -> Iterator[Tracker]:
    """Open the tracker of a command, which ends as FINISHED or, depending on the block's exception, FAILED or
    KILLED."""
    tracker = Tracker(settings, params, command, tags or {})
    with store.ending(tracker.close):
        yield tracker


def final_scores(stored: RunScores) -> dict[str, float]:
    """Average the scores of a run to its final metrics, which have the same names for all methods.

    ``test/accuracy``, ``corrupted/accuracy`` (the mean over corruptions and severities), ``ood/<set>/auroc``,
    ``transfer/<set>/accuracy``, ``cost/fit_seconds``: each is the mean over splits and seeds.
    """
    values = defaultdict[str, list[float]](list)
    for of in stored.quantities:
        place = f"{of.set}/{of.name}" if of.set in ("ood", "transfer") else of.set
        values[f"{place}/{of.title}"] += [value for group in stored.groups(of) for value in group]
    return {name: sum(scores) / len(scores) for name, scores in sorted(values.items())}


def _commit(name: str) -> dict[str, str]:
    """Return our tag and MLflow's tag of a commit."""
    return {"git_commit": name, "mlflow.source.git.commit": name.removesuffix("-dirty")} if name else {}


def _hash(place: Path) -> str:
    """Hash the manifest of an artifact, which has the hash of every file; empty if there is none."""
    manifest = place / artifacts.MANIFEST
    return artifacts.sha256(manifest) if manifest.is_file() else ""
