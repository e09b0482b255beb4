"""The machinery of the stages that fit: which members are made, resumed and kept, and which files stay."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.errors import ArtifactError, Diverged, UserError
from bdl_pipe.fitting import RATE_SHARE, Fits, SeedFit
from bdl_pipe.method import StageSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import OptimiserConfig
from pipeline.core import places, records
from pipeline.core.load import load as load_params
from pipeline.core.settings import Settings
from pipeline.plan.plan import Stage, one, reason
from pipeline.run import body
from pipeline.stages import fit as fit_stage
from pipeline.work.executor import Done, Inline, Task
from tests.pipeline import walk
from tests.pipeline.fake_work import REGISTRY
from tests.pipeline.params_cases import params

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(executor="inline", checkpoint_seconds=0.0)
STEPS = 5 * 2 * 2  # steps of the walk, in two splits of two seeds
ROW = {"dataset": "boston", "method": "walk", "seeds": 2, "input": "prepare/boston"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with params.yaml and boston prepared."""
    raw = params("several", teachers={"b-walk": ROW}, coresets={"b-walk": ROW})
    return walk.prepared(tmp_path_factory.mktemp("stage"), raw, registry=REGISTRY)


@pytest.fixture
def there(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(prepared)
    return prepared


load = partial(load_params, registry=REGISTRY)


def fit(kind: str, key: str) -> None:
    loaded = load()
    fit_stage.run(one(kind, key, loaded), loaded, Inline(SETTINGS), SETTINGS).clear()


def bring_up_to_date(kind: str, key: str) -> None:
    """Run a stage as a command does, with the file of its identity."""
    loaded = load()
    body.ensure(one(kind, key, loaded), loaded, SETTINGS)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("text", ["[]", "[1", "3", "{}", '{"made": null}', '{"made": {}, "inputs": null}'])
def test_an_identity_that_is_no_record_of_a_result_is_damaged(here: Path, text: str) -> None:
    place = places.identity("prepare", "toy")
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert reason(Stage("prepare", "toy", frozenset(), (), (), {}, {})) == f"{place} is damaged"


def test_a_stage_makes_the_members_of_every_split_and_their_record(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit("trajectory", "b-walk")
    state = artifacts.load(places.artifact("trajectory", "b-walk"), "trajectory")
    assert state.names() == ["0-0", "0-1", "1-0", "1-1"]
    values = {tuple(state.state(name).tensors["x"].tolist()) for name in state.names()}
    assert len(values) == 4, "two members share a stream"
    record = records.read("trajectory", "b-walk")
    assert set(record["seconds"]) == set(state.names()) and record["metrics"]["spread"] > 0
    assert len(record["traces"]["first weight"]) == len(state.names()) // 2  # of the first of two splits
    remark = "they differ in 2 splits"
    assert f"warning: trajectory b-walk: {remark}\n" in capsys.readouterr().err and record["warnings"] == [remark]
    assert not places.checkpoints("trajectory", "b-walk").exists()


def test_a_student_gets_one_input_member_and_stores_its_schema_and_transforms(there: Path) -> None:
    fit("trajectory", "b-walk")
    fit("student", "b-run")
    state = artifacts.load(places.artifact("student", "b-run"), "student")
    assert state.names() == ["0-0", "0-1", "1-0", "1-1", "transform-0", "transform-1"]
    assert state.state("0-1").config["count"] == 1, "takes each: one input"
    assert state.json("schema.json")["task"] == "regression"
    above, record = records.read("trajectory", "b-walk"), records.read("student", "b-run")
    for name, total in record["total_seconds"].items():
        assert total == pytest.approx(record["seconds"][name] + above["seconds"][name])


def test_a_student_of_several_inputs_counts_the_seconds_of_each_input_once(there: Path) -> None:
    """Each of two members takes half of two trajectories; one that its coreset was made from, too, counts once."""
    stages = (("trajectory", "b-walk"), ("coreset", "b-pair"), ("student", "b-pair"))
    for kind, key in stages:
        fit(kind, key)
    trajectories, coresets, students = (artifacts.load(places.artifact(kind, key), kind) for kind, key in stages)
    assert students.manifest["about"]["input"] == {"trajectory": "trajectory/b-walk", "coreset": "coreset/b-pair"}
    steps, distilled, fitting = (records.read(kind, key)["seconds"] for kind, key in stages)
    assert len(fitting) == 4
    for name, seconds in fitting.items():
        student = students.state(name)
        assert student.config["kinds"] == ["coreset", "trajectory"]
        assert torch.equal(student.tensors["coreset"], coresets.state(name).tensors["x"])
        assert torch.equal(student.tensors["trajectories"], trajectories.state(name).tensors["x"][None])
        total = seconds + distilled[name] + steps[name]
        assert records.read("student", "b-pair")["total_seconds"][name] == pytest.approx(total)


KEYS = '{"seconds": {}, "peak_bytes": {}, "total_seconds": %s}'


def test_a_damaged_record_is_an_error_before_the_work(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit("trajectory", "b-walk")
    monkeypatch.setenv("WALK_LOG", str(tmp_path / "steps"))
    place = places.record("trajectory", "b-walk")
    whole = place.read_bytes()
    for text in ("", "{", "[]", "{}", KEYS % "{}", KEYS % "3", "\xff"):
        place.write_bytes(text.encode("latin-1"))
        with pytest.raises(ArtifactError, match=rf"^{place}: is .*; make the trajectory b-walk again$"):
            fit("student", "b-run")
    assert not (tmp_path / "steps").exists()
    place.write_bytes(whole)
    assert records.read("trajectory", "b-walk") == json.loads(whole)
    place.unlink()
    assert records.read("trajectory", "b-walk") == {}


def test_a_missing_input_is_refused(there: Path) -> None:
    os.rename("work/prepare", "work/elsewhere")
    try:
        with pytest.raises(ArtifactError, match="there is no prepare artifact here"):
            fit("teacher", "b-walk")
    finally:
        os.rename("work/elsewhere", "work/prepare")


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_full_disk_leaves_the_old_artifact_and_nothing_else(
    there: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    fit("teacher", "b-walk")
    place = places.artifact("teacher", "b-walk")
    before, beside = files(place), sorted(p.name for p in place.parent.iterdir())
    full = [None] * at + [OSError(errno.ENOSPC, "No space left on device")] * 99
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    monkeypatch.setattr(places, "STATE", there / "ample")
    quiet = Settings(executor="inline", checkpoint_seconds=1e6)
    with pytest.raises(UserError, match="the disk is full; nothing was written"):
        fit_stage.run(one("teacher", "b-walk", load()), load(), Inline(quiet), quiet)
    assert files(place) == before and sorted(p.name for p in place.parent.iterdir()) == beside
    assert not list(there.rglob("*.tmp"))


def test_a_checkpoint_depends_on_config_code_data_and_threads_not_on_the_seed_count(there: Path) -> None:
    run = load().run("teacher", "b-walk")
    about = fit_stage.facts(run, load())

    def identity(settings: Settings = SETTINGS, **changes: Any) -> str:
        return fit_stage.identity({**about, **changes}, settings, fit_stage.inputs_of(run))

    first = identity()
    assert identity(seeds=9) == first
    other = {identity(seed=1), identity(config={"steps": 6}), identity(code="b"), identity(Settings(threads=2))}
    place = places.artifact("prepare", "boston") / artifacts.MANIFEST
    kept = place.read_text()
    place.write_text(kept + " ")
    other.add(identity())
    place.write_text(kept)
    assert len(other) == 5 and first not in other


POINTS = {  # the path to which a file is about to be renamed at the kill, and its count; the steps of both attempts
    "first checkpoint": ("checkpoints/trajectory/b-walk/.*/0-0.part", 1, STEPS + 1),
    "second checkpoint": ("checkpoints/trajectory/b-walk/.*/0-0.part", 2, STEPS + 1),
    "last checkpoint": ("checkpoints/trajectory/b-walk/.*/1-1.part", 5, STEPS + 1),
    "a seed's result": ("checkpoints/trajectory/b-walk/.*/0-1.done", 1, STEPS),
    "the artifact": ("work/trajectory/b-walk", 1, STEPS),
    "between artifact and record": ("work/trajectory/b-walk.run.json", 1, STEPS),
    "between record and identity": ("work/identity/trajectory/b-walk.json", 1, STEPS),
}


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_stage_that_runs_again_makes_the_same_bits(
    there: Path, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL comes as a file is about to be renamed into its place; the same command then uses the finished work."""
    pattern, time, steps = POINTS[point]
    fit("trajectory", "b-walk")
    place = places.artifact("trajectory", "b-walk")
    undisturbed = files(place)
    shutil.rmtree(place)
    places.record("trajectory", "b-walk").unlink()
    places.identity("trajectory", "b-walk").unlink(missing_ok=True)
    monkeypatch.setenv("WALK_LOG", str(tmp_path / "steps"))
    kill_at(pattern, time, lambda: bring_up_to_date("trajectory", "b-walk"))
    bring_up_to_date("trajectory", "b-walk")
    assert files(place) == undisturbed and (tmp_path / "steps").read_text().count("\n") == steps
    assert places.record("trajectory", "b-walk").exists() and places.identity("trajectory", "b-walk").exists()
    assert not places.checkpoints("trajectory", "b-walk").exists() and not list(there.rglob("*.tmp"))


def kill_at(pattern: str, time: int, work: Callable[[], None]) -> None:
    """Do the work in a child that dies as it renames something to a path that matches for the ``time``-th time."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "os.rename" and re.search(f"{pattern}$", os.fsdecode(arguments[1])):
            count += 1
            if count == time:
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(watch)
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_stage_loads_its_data_for_a_final_fit(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A final fit uses training and validation rows, as fit_rows says; only a search holds validation rows apart."""
    watched = Mock(wraps=fit_stage.folders.load_fits)
    monkeypatch.setattr(fit_stage.folders, "load_fits", watched)
    fit("trajectory", "b-walk")
    assert [call.kwargs for call in watched.call_args_list] == [{"final": True}]


def test_every_file_of_the_data_and_the_inputs_is_hashed_once(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is not hashed again for each of the two splits."""
    fit("trajectory", "b-walk")
    monkeypatch.setattr(artifacts, "sha256", watched := Mock(wraps=artifacts.sha256))
    shared, tasks = fit_stage._plan(load().run("student", "b-run"), load(), SETTINGS)
    assert len(tasks) == 4 and sum(key.startswith("data-") for key in shared) == 2
    hashed = [call.args[0] for call in watched.call_args_list]
    assert len(hashed) == len(set(hashed)) > 8


@pytest.mark.parametrize(
    ("seeds", "tasks", "rows", "environment", "where"),
    [
        (5, 1, fit_stage.FEW_ROWS, {}, "here"),
        (0, 1, 100, {}, "here"),
        (5, 2, 100, {}, "try"),
        (0, 2, 100, {}, "try"),
        (0, 2, 100, {"workers": 2}, "workers"),
        (0, 2, 100, {"address": "head:6379"}, "workers"),
        (0, 1, 100, {"workers": 2}, "workers"),
        (5, 1, 100, {"address": "head:6379"}, "here"),
        (5, 1, fit_stage.FEW_ROWS, {"address": "head:6379"}, "workers"),
        (0, 1, 100, {"address": "head:6379"}, "workers"),
    ],
)
def test_the_place_of_tasks_follows_from_their_number_size_and_the_cluster(
    seeds: int, tasks: int, rows: int, environment: dict[str, Any], where: str
) -> None:
    """A group of ``seeds`` fits, or a single fit; one task or more; on this machine alone or on a cluster."""

    run, data = SimpleNamespace(stage=StageSpec(fit=lambda *a, **k: None)), SimpleNamespace(train=range(rows))  # type: ignore[arg-type,return-value]
    payload = Fits(run.stage.fit_one, None, (SeedFit("data-0", {}, Seed(0)),) * max(1, seeds))
    planned = [Task(f"{n}", payload, ("data-0",), data_parallel=True) for n in range(tasks)]
    settings = dataclasses.replace(SETTINGS, **environment)
    assert fit_stage._where(run, planned, {"data-0": data}, settings) == where  # type: ignore[arg-type]


def test_a_diverged_group_is_repeated_at_a_lower_rate_and_the_warning_names_it() -> None:
    config = OptimiserConfig("adam", lr=1.0, schedule="constant")

    def both(data: Any, inputs: Any, config: OptimiserConfig, *, rngs: Any, report: Any) -> list[State]:
        if config.lr > 0.1:
            raise Diverged("too fast")
        return [State({"rate": torch.tensor(config.lr)}, {}) for _ in rngs]

    group = Fits(both, config, (SeedFit("data", {}, Seed(0)),) * 2)  # type: ignore[arg-type]
    states = artifacts.unpack(fit_stage.make(group, {"data": None}, Silent()))
    assert [float(state.tensors["rate"]) for state in states] == pytest.approx([0.09, 0.09])
    whole, slowed = Done(State({}, {}), 1.0, 0), Done(states[0], 1.0, 0)
    assert states[0].config[RATE_SHARE] == pytest.approx(0.09)
    (text,) = fit_stage._slowed({"0-0": whole, "0-1": slowed})
    assert text == "rates: 1 of 2 fits diverged and had to be repeated at 0.09 of the learning rates; lower them"
    assert fit_stage._slowed({"0-0": whole}) == []


def test_the_report_names_the_hash_of_the_rows_that_fits_read(here: Path) -> None:
    manifest = places.artifact("prepare", "rows") / artifacts.MANIFEST
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b"the rows")
    assert records.data_hash("rows") == hashlib.sha256(b"the rows").hexdigest()[:16]
    assert records.data_hash("absent") == "—"
