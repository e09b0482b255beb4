"""Tracking: what the store shows of stages, from their files alone, and that no result depends on the store."""

import hashlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from filelock import Timeout
from mlflow.tracking import MlflowClient

from bdl_pipe import artifacts, scores
from bdl_pipe.scores import Quantity, RunScores
from pipeline import tracking
from pipeline.core import curves, places, provenance
from pipeline.core.curves import Curve
from pipeline.core.settings import Settings
from pipeline.plan import plan as plans
from pipeline.plan.plan import Plan, Stage
from pipeline.tracking import store
from pipeline.tracking.tracker import final_scores
from tests.report.report_cases import of_values

RECORD = {"metrics": {"rhat": 1.5}, "seconds": {"0-0": 2.0, "0-1": 3.0}, "warnings": ["chains disagree"]}
FIGURES = {
    Quantity("accuracy"): [0.8, 0.9],  # of the seeds
    Quantity("accuracy", "corrupted", "fog", 1): 0.7,
    Quantity("accuracy", "corrupted", "gaussian_noise", 5): 0.1,
    Quantity("auroc", "ood", "mnist5k", score="max_prob"): 0.6,
    Quantity("auroc", "ood", "mnist5k", score="refit_density"): 0.3,
    Quantity("accuracy", "transfer", "stl10"): [0.5, 0.7],
    Quantity("fit_seconds", "cost"): 12.0,
}
EXPERIMENT = partial(store.attempt, lambda client: store.experiment(client, tracking.STAGES))  # None if it fails
TABLE = scores.table("toy", "vbll", "small", of_values(FIGURES))


@dataclass(frozen=True)
class Config:
    """A method's numbers: more than MLflow takes in one request."""

    many: dict[str, int] = field(default_factory=lambda: {f"p{i}": i for i in range(150)})


@pytest.fixture(autouse=True)
def project(untracked: Path) -> Path:
    with artifacts.publish(places.artifact("prepare", "toy"), "prepare", about={}):
        return untracked


def params() -> Any:
    spec = SimpleNamespace(dataset="toy", method="vbll", setting="small")
    return SimpleNamespace(seed=7, run=lambda kind, key: SimpleNamespace(spec=spec, config=Config()))


def stage(kind: str = "student", key: str = "toy-vbll") -> Stage:
    above = {"evaluate": places.artifact("student", key)}.get(kind, places.artifact("prepare", "toy") / "manifest.json")
    places_of = [places.artifact(kind, key)] + ([places.record(kind, key)] if kind != "evaluate" else [])
    return Stage(kind, key, frozenset(), (above,), tuple(places_of), {}, {})


def work(of: Stage) -> None:
    """Write the files that a stage leaves: a curve, its artifact, its record, its identity."""
    curve = Curve(of.kind, of.key)
    curve.metrics({"loss": 2.0}, 1)
    curve.metrics({"loss": 1.0}, 2)
    with artifacts.publish(of.makes[0], of.kind, about={}) as folder:
        if of.kind == "evaluate":
            pq.write_table(TABLE, folder / "scores.parquet")
    if of.kind != "evaluate":
        of.makes[1].write_text(json.dumps({**RECORD, "commit": "abc-dirty", "device": "a processor"}))
    plans.record(of, plans.made_from(of))
    curves.finish(of.kind, of.key)


def opened(name: str = "repro", *tags: Any) -> Any:
    return tracking.opened(Settings.read(), params(), name, *tags)


def play(tracker: Any, of: Stage, status: str = "FINISHED", works: bool = True) -> None:
    """Track a stage from its start to its end; ``works``: it leaves its files."""
    tracker.started(of)
    if works:
        work(of)
    tracker.ended(of, status)


def runs(client: MlflowClient) -> dict[str, Any]:
    experiment = client.get_experiment_by_name(tracking.STAGES)
    assert experiment.artifact_location == Path("mlruns/artifacts").absolute().as_uri()
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def artifact(run: Any, name: str) -> Path:
    return Path("mlruns/artifacts", run.info.run_id, "artifacts", name)


class Fake:
    """A client that keeps a line for every request; ``before`` may refuse a request."""

    def __init__(self, before: Callable[[str], None] = lambda said: None) -> None:
        self.said, self._before = list[str](), before

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="1", artifact_location="", lifecycle_stage="active")

    def search_runs(self, *args: Any, **more: Any) -> list[Any]:
        return []

    def create_run(self, experiment: str, start_time: int | None, tags: dict[str, str], run_name: str) -> Any:
        self._say(f"create {run_name}")
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        self._say(f"log {run_id} {' '.join(f'{m.key}@{m.step}' for m in metrics)}".strip())

    def set_terminated(self, run_id: str, status: str, end_time: int | None = None) -> None:
        self._say(f"{status} {run_id}")

    def _say(self, said: str) -> None:
        self._before(said)
        self.said.append(said)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let trackers connect to this client."""
    return lambda client: monkeypatch.setattr(store, "connect", lambda: client)


def test_final_scores_are_averaged_and_named_by_set_and_metric() -> None:
    expected = {"test/accuracy": 0.85, "corrupted/accuracy": 0.4, "ood/mnist5k/auroc": 0.6, "cost/fit_seconds": 12.0}
    expected |= {"ood/mnist5k/auroc_refit_density": 0.3, "transfer/stl10/accuracy": 0.6}
    assert final_scores(RunScores(TABLE)) == pytest.approx(expected)


def test_stages_are_tracked_as_tagged_children_of_the_command(client: MlflowClient) -> None:
    fit, evaluate = stage(), stage("evaluate")
    with opened("repro", {"paper": "vbll:table2"}) as tracker:
        for each in (fit, evaluate):
            play(tracker, each)
        places.REPORT.mkdir()
        (places.REPORT / "pages").mkdir()
        (places.REPORT / "pages/vega.js").write_text("draw")
        for page, source in (("index.html", "pages/vega.js"), ("pages/trust.html", "vega.js")):
            (places.REPORT / page).write_text(f'the <script src="{source}"></script> report')
        tracker.ended(Stage("report", "", frozenset(), (), (), {}, {}), "FINISHED")
    children = runs(client)
    parent, child, scored = children["repro"], children["student toy-vbll"], children["evaluate toy-vbll"]
    assert {run.info.status for run in children.values()} == {"FINISHED"} and len(children) == 3
    assert parent.data.tags["paper"] == "vbll:table2"
    kept = [artifact(parent, page).read_text() for page in ("index.html", "pages/trust.html")]
    note = "<p>Its figures are in report/pages/trust.html.</p>"
    assert kept == ["the <script>draw</script> report", f"the {note} report"]
    with opened("repro again") as tracker:
        play(tracker, fit)
        tracker.ended(Stage("report", "", frozenset(), (), (), {}, {}), "FINISHED")
    again = runs(client)["repro again"]
    assert again.data.tags["report.run"] == parent.info.run_id and not artifact(again, "index.html").exists()
    expected = {"stage": "student", "key": "toy-vbll", "dataset": "toy", "method": "vbll", "setting": "small"}
    expected |= {"seed": "7", "git_commit": "abc-dirty", "mlflow.source.git.commit": "abc", "device": "a processor"}
    expected |= {"warnings": "chains disagree", "mlflow.parentRunId": parent.info.run_id}
    inputs = ("student/toy-vbll", "prepare/toy")
    digest, data = (hashlib.sha256(Path("work", p, "manifest.json").read_bytes()).hexdigest() for p in inputs)
    expected |= {"artifact": "work/student/toy-vbll", "artifact.sha256": digest, "sha256.work/prepare/toy": data}
    assert expected.items() <= child.data.tags.items()
    assert child.data.metrics == {"loss": 1.0, "rhat": 1.5, "fit_seconds": 5.0}
    assert len(child.data.params) == 150 and child.data.params["many.p149"] == "149"
    assert scored.data.metrics["corrupted/accuracy"] == pytest.approx(0.4) and scored.data.params["dataset"] == "toy"
    with sqlite3.connect("mlruns/mlflow.db") as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)


def test_stages_that_the_store_lacks_are_added_once(client: MlflowClient) -> None:
    plan: Plan = {each.name: each for each in (stage(), stage("evaluate"), stage(key="toy-stale"))}
    for each in list(plan.values())[:2]:
        work(each)
    for _ in range(2):
        with opened("dvc repro") as tracker:
            tracker.project(plan)
    first = runs(client)
    student = first["student toy-vbll"]
    assert len(client.search_runs(["1"])) == 3 and first.keys() == {
        "dvc repro",
        "student toy-vbll",
        "evaluate toy-vbll",
    }
    assert student.data.metrics["loss"] == 1.0 and student.info.start_time < student.info.end_time
    with opened() as tracker:  # another process has made the stage meanwhile
        play(tracker, stage(), works=False)
    assert runs(client).keys() == first.keys() | {"repro"}
    assert runs(client)["student toy-vbll"].info.run_id == student.info.run_id


def test_a_stage_that_another_command_has_made_is_not_shown_twice(client: MlflowClient) -> None:
    with opened() as tracker:  # the other command has not shown the result yet
        play(tracker, stage(), "SAME")
    assert runs(client).keys() == {"repro"}


def test_a_result_that_dvc_restored_is_added_without_the_curve_of_a_later_run(client: MlflowClient) -> None:
    work(stage())
    place = places.identity("student", "toy-vbll")
    first = place.read_bytes()
    place.write_text("a later run's")
    Curve("student", "toy-vbll").metrics({"loss": 0.5}, 1)
    curves.finish("student", "toy-vbll")
    place.write_bytes(first)
    with opened("dvc repro") as tracker:
        tracker.project({"student@toy-vbll": stage()})
    assert runs(client)["student toy-vbll"].data.metrics == {"rhat": 1.5, "fit_seconds": 5.0}


def test_failed_and_killed_stages_are_tracked_as_failed_and_killed(project: Path, connected: Any) -> None:
    fake = Fake()
    connected(fake)
    work(stage(key="a"))  # an earlier run's files: its curve must not be shown
    with pytest.raises(KeyboardInterrupt), opened() as tracker:
        tracker.started(stage(key="a"))
        tracker.started(stage(key="b"))
        tracker.ended(stage(key="a"), "FAILED", ["ValueError: no"])
        raise KeyboardInterrupt
    ends = [line for line in fake.said if line.split()[0].isupper()]
    assert ends == ["FAILED student a", "KILLED student b", "KILLED repro"]
    assert not any("loss@1" in message for message in fake.said)
    assert fake.said.index("create student b") < fake.said.index("FAILED student a")  # b was shown while it ran
    with opened("again") as tracker:
        play(tracker, stage(key="a"), "FAILED", works=False)
    assert fake.said[-1] == "FAILED again"


def test_the_curve_of_a_running_stage_is_shown(project: Path, connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Event()
    fake = Fake(lambda said: shown.set() if "loss@3" in said else None)
    connected(fake)
    monkeypatch.setattr("pipeline.tracking.tracker._FOLLOW_SECONDS", 0.01)
    with opened() as tracker:
        tracker.started(stage())
        Curve("student", "toy-vbll").metrics({"loss": 0.5}, 3)
        assert shown.wait(60)
        work(stage())
        tracker.ended(stage(), "FINISHED")
    assert "FINISHED student toy-vbll" in fake.said


def test_a_failing_store_gives_one_warning(project: Path, connected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    full = Mock(side_effect=OSError("the disk is full\nand more"))
    fake = Fake(lambda said: full() if said == "FINISHED student a" else None)
    connected(fake)
    with opened() as tracker:
        for key in ("a", "b"):
            play(tracker, stage(key=key))
    said = capsys.readouterr().err
    assert said.startswith("warning: no tracking (sqlite:///") and said.endswith("OSError: the disk is full\n")
    assert said.count("\n") == 1 and "FINISHED repro" not in fake.said


def test_a_slow_store_delays_neither_a_stage_nor_the_end_of_the_command(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free, fake = threading.Event(), Fake()
    monkeypatch.setattr(store, "connect", lambda: free.wait(60) and fake)
    monkeypatch.setattr("pipeline.tracking.tracker._CLOSE_SECONDS", 0.0)
    with opened() as tracker:
        play(tracker, stage(), "KILLED", works=False)
    assert "is slow: not all stages are tracked" in capsys.readouterr().err and fake.said == []
    free.set()
    tracker._thread.join(60)
    assert fake.said[-1] == "FINISHED repro"


@pytest.mark.parametrize("setting", ["off", "on"])
def test_without_mlflow_stages_run_with_at_most_one_warning(
    setting: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One warning says that MLflow is missing; with tracking off it is not even imported."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    monkeypatch.setenv("BDL_TRACKING", setting)
    with opened() as tracker:
        tracker.started(stage())
    warnings = capsys.readouterr().err
    with tracking.parent("search", {}) as parent:
        assert parent is None
    assert warnings.count("no tracking") == (setting == "on")
    assert setting == "on" or not (project / "mlruns").exists()


def test_a_resumed_search_continues_its_parent_run_in_the_store(client: MlflowClient) -> None:
    first = None
    for raised, status in ((KeyboardInterrupt, "KILLED"), (ZeroDivisionError, "FAILED"), (None, "FINISHED")):
        with pytest.raises(raised) if raised else nullcontext(), tracking.parent("tune toy", {}, first) as again:
            assert again == (first or again) and runs(client)["tune toy"].info.status == "RUNNING"
            first = again
            if raised:
                raise raised
        assert runs(client)["tune toy"].info.status == status


def test_the_runs_of_killed_processes_are_marked_as_killed(client: MlflowClient) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = provenance.process(dead.pid)
    assert not provenance.is_dead(name)
    place, _, start = name.rpartition("/")
    assert not provenance.is_dead(f"{place}/{float(start) + 1:.2f}")  # the time of the boot has moved
    assert provenance.is_dead(f"{place}/{float(start) - 100:.2f}")  # the pid has been reused
    dead.communicate()
    assert provenance.is_dead(name)
    assert not provenance.is_dead("elsewhere/1/0.00")  # a process of another machine, which may live
    for process, tags in (("lost", {"process": name}), ("alive", dict[str, str]())):
        store.create(client, EXPERIMENT(), process, tags)
    with opened():
        pass
    children = runs(client)
    assert {name: run.info.status for name, run in children.items()} == {"lost": "KILLED", "alive": "RUNNING"}


def test_the_store_and_the_experiment_are_made_under_the_lock(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that make MLflow's tables at once can leave a store that no process can open."""

    class Alone(Fake):
        def __init__(self, uri: str) -> None:
            super().__init__(self._check)
            self._say(f"open {uri}")

        def search_experiments(self, max_results: int) -> None:
            self._say("make tables")

        def get_experiment_by_name(self, name: str) -> None:
            self._say(f"look for {name}")

        def create_experiment(self, name: str, artifact_location: str, tags: Any) -> str:
            self._say(f"make {name} with {artifact_location}")
            names.extend(self.said)
            return "1"

        def _check(self, said: str) -> None:
            with pytest.raises(Timeout):
                store.lock().acquire(timeout=0)

    names = list[str]()
    monkeypatch.setattr("mlflow.tracking.MlflowClient", Alone)
    assert EXPERIMENT() == "1"
    place = f"make {tracking.STAGES} with {(project / 'mlruns/artifacts').as_uri()}"
    uri = f"open sqlite:///{project}/mlruns/mlflow.db"
    assert names == [uri, "make tables", f"look for {tracking.STAGES}", place]


def test_an_existing_experiment_refuses_another_place_for_its_files(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BDL_MLFLOW_ARTIFACTS", "s3://bucket/runs")
    experiment = EXPERIMENT()
    assert client.get_experiment(experiment).artifact_location == "s3://bucket/runs/bdl-pipe-stages"
    monkeypatch.setenv("BDL_MLFLOW_ARTIFACTS", "s3://bucket/others")
    assert EXPERIMENT() is None
    warnings = capsys.readouterr().err
    assert (
        warnings.count("\n") == 1
        and "keeps its files at s3://bucket/runs/bdl-pipe-stages; move mlruns away" in warnings
    )


def test_a_warning_of_tracking_holds_no_password(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:aSecretOfATest@127.0.0.1:9/")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert EXPERIMENT() is None
    warnings = capsys.readouterr().err
    assert "no tracking (http://127.0.0.1:9/)" in warnings and "aSecretOfATest" not in warnings
