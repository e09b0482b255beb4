"""The machinery of the stages that fit: what is made, resumed, kept and left behind."""

import dataclasses
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError, UserError
from bdl_pipe.method import StageSpec
from bdl_pipe.seeds import Seed
from pipeline.core import params, places, records
from pipeline.core.settings import Settings
from pipeline.stages import fit as fit_stage
from pipeline.stages import prepare
from pipeline.work.base import Task
from pipeline.work.inline import Inline
from tests.pipeline.fake_work import REGISTRY
from tests.pipeline.test_params import several

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(executor="inline", checkpoint_seconds=0.0)
ROW = {"dataset": "boston", "method": "walk", "seeds": 2, "input": "prepare/boston"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with params.yaml and boston prepared."""
    folder = tmp_path_factory.mktemp("stage")
    raw = several()
    raw |= {"teachers": {"b-walk": ROW}, "coresets": raw["coresets"] | {"b-walk": ROW}}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    before = Path.cwd()
    os.chdir(folder)
    try:
        prepare.prepare_dataset("boston", load(), Inline(SETTINGS))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def there(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(prepared)
    return prepared


def load() -> params.Params:
    return params.load(Path("params.yaml"), REGISTRY)


def fit(kind: str, key: str) -> None:
    fit_stage.fit(kind, key, load(), Inline(SETTINGS), SETTINGS)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_members_of_every_split_and_their_records(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit("trajectory", "b-walk")
    made = artifacts.load(places.artifact("trajectory", "b-walk"), "trajectory")
    assert made.names() == ["0-0", "0-1", "1-0", "1-1"]
    values = {tuple(made.state(name).tensors["x"].tolist()) for name in made.names()}
    assert len(values) == 4, "two members share a stream"
    record = records.read("trajectory", "b-walk")
    assert set(record["seconds"]) == set(made.names()) and record["metrics"]["spread"] > 0
    said = "they differ (in 2 of 2 splits; the first of them)"
    assert f"warning: trajectory b-walk: {said}\n" in capsys.readouterr().err and record["warnings"] == [said]
    assert not places.checkpoints("trajectory", "b-walk").exists()


def test_equal_runs_give_equal_bytes(there: Path) -> None:
    fit("trajectory", "b-walk")
    first = files(places.artifact("trajectory", "b-walk"))
    fit("trajectory", "b-walk")
    assert files(places.artifact("trajectory", "b-walk")) == first


def test_a_student_gets_its_member_and_can_stand_alone(there: Path) -> None:
    fit("trajectory", "b-walk")
    fit("student", "b-run")
    made = artifacts.load(places.artifact("student", "b-run"), "student")
    assert made.names() == ["0-0", "0-1", "1-0", "1-1", "transform-0", "transform-1"]
    assert made.state("0-1").config["count"] == 1, "takes each: one input"
    assert made.json("schema.json")["task"] == "regression"
    above, own = records.read("trajectory", "b-walk"), records.read("student", "b-run")
    for name, total in own["total_seconds"].items():
        assert total == pytest.approx(own["seconds"][name] + above["seconds"][name])


def test_a_student_of_several_inputs_gets_and_is_charged_for_what_it_takes(there: Path) -> None:
    """All trajectories, and coreset i mod 2; a trajectory that the coreset was made from counts once."""
    for kind, key in (("trajectory", "b-walk"), ("coreset", "b-pair"), ("student", "b-pair")):
        fit(kind, key)
    trajectories, coresets, students = (
        artifacts.load(places.artifact(kind, key), kind)
        for kind, key in (("trajectory", "b-walk"), ("coreset", "b-pair"), ("student", "b-pair"))
    )
    assert students.manifest["about"]["input"] == {"trajectory": "trajectory/b-walk", "coreset": "coreset/b-pair"}
    steps, distilled, own = (
        records.read(kind, key)["seconds"]
        for kind, key in (("trajectory", "b-walk"), ("coreset", "b-pair"), ("student", "b-pair"))
    )
    assert len(own) == 6
    for name, seconds in own.items():
        split, member = map(int, name.split("-"))
        made, coreset = students.state(name), f"{split}-{member % 2}"
        assert made.config["kinds"] == ["coreset", "trajectory"]
        assert torch.equal(made.tensors["coreset"], coresets.state(coreset).tensors["x"])
        every = [trajectories.state(f"{split}-{m}").tensors["x"] for m in range(2)]
        assert torch.equal(made.tensors["trajectories"], torch.stack(every))
        total = seconds + distilled[coreset] + steps[f"{split}-0"] + steps[f"{split}-1"]
        assert records.read("student", "b-pair")["total_seconds"][name] == pytest.approx(total)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"seconds": {}, "peak_bytes": {}, "total_seconds": {}}',
        '{"seconds": {}, "peak_bytes": {}, "total_seconds": 3}',
        "\xff",
    ],
)
def test_a_damaged_record_is_an_error_before_the_work(
    there: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit("trajectory", "b-walk")
    monkeypatch.setenv("WALK_LOG", str(tmp_path / "steps"))
    place = places.record("trajectory", "b-walk")
    whole = place.read_bytes()
    place.write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=rf"^{place}: is .*; make the trajectory b-walk again$"):
        fit("student", "b-run")
    assert not (tmp_path / "steps").exists()
    place.write_bytes(whole)
    assert records.read("trajectory", "b-walk") == json.loads(whole)
    place.unlink()
    assert records.read("trajectory", "b-walk") == {}


def test_a_missing_input_is_one_line(there: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no prepare artifact here"):
        os.rename("work/prepare", "work/elsewhere")
        try:
            fit("teacher", "b-walk")
        finally:
            os.rename("work/elsewhere", "work/prepare")


def test_an_artifact_of_another_schema_version(there: Path) -> None:
    fit("trajectory", "b-walk")
    place = places.artifact("trajectory", "b-walk") / artifacts.MANIFEST
    place.write_text(json.dumps({**json.loads(place.read_text()), "schema": 999}))
    with pytest.raises(ArtifactError, match=r"manifest\.json: schema version must be 2, got 999; make it again"):
        fit("student", "b-run")


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_full_disk_leaves_the_old_artifact_and_nothing_else(
    there: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    fit("teacher", "b-walk")
    place = places.artifact("teacher", "b-walk")
    before, beside = files(place), sorted(p.name for p in place.parent.iterdir())
    fsync, count = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > at:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(places, "STATE", there / "ample")
    quiet = Settings(executor="inline", checkpoint_seconds=1e6)
    with pytest.raises(UserError, match="the disk is full; nothing was written"):
        fit_stage.fit("teacher", "b-walk", load(), Inline(quiet), quiet)
    assert files(place) == before and sorted(p.name for p in place.parent.iterdir()) == beside
    assert not list(there.rglob("*.tmp"))


def test_identity_depends_on_numbers_and_data_not_on_the_count(there: Path) -> None:
    row = load().run("teacher", "b-walk")
    about = fit_stage.facts(row, load())
    first = fit_stage.identity(about, SETTINGS, fit_stage.inputs_of(row))
    assert fit_stage.identity({**about, "seeds": 9}, SETTINGS, fit_stage.inputs_of(row)) == first
    assert fit_stage.identity({**about, "seed": 1}, SETTINGS, fit_stage.inputs_of(row)) != first
    assert fit_stage.identity({**about, "config": {"steps": 6}}, SETTINGS, fit_stage.inputs_of(row)) != first
    assert fit_stage.identity(about, Settings(threads=2), fit_stage.inputs_of(row)) != first
    place = places.artifact("prepare", "boston") / artifacts.MANIFEST
    kept = place.read_text()
    place.write_text(kept + " ")
    assert fit_stage.identity(about, SETTINGS, fit_stage.inputs_of(row)) != first
    place.write_text(kept)


DRIVER = """
import os, sys, traceback
from pathlib import Path
from pipeline.core import params
from pipeline.stages import fit as fit_stage
from pipeline.work.choose import choose
from pipeline.core.settings import Settings
from tests.pipeline.fake_work import REGISTRY

for line in sys.stdin:
    kind, log = line.rstrip("\\n").split(" ", 1)
    pid = os.fork()
    if pid == 0:
        os.environ["WALK_LOG"], settings, code = log, Settings.read(), 1
        try:
            fit_stage.fit(kind, "b-walk", params.load(Path("params.yaml"), REGISTRY), choose(settings), settings)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """Stages in processes of their own, forks of one that has imported everything, as the host's are."""

    def __init__(self, folder: Path) -> None:
        settings = {"BDL_EXECUTOR": "inline", "BDL_CHECKPOINT_SECONDS": "0", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, kind: str, log: Path | str = "") -> int:
        """The process that fits; ``log``: the file of its steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {log}\n")
        self._process.stdin.flush()
        return self._said()

    def wait(self) -> int:
        """The exit code of what was started last."""
        return self._said()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait() == 0

    def _said(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def forks(prepared: Path) -> Iterator[Forks]:
    made = Forks(prepared)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trajectory", "teacher", "coreset"])
def test_killed_at_random_points_ends_with_the_same_bits(there: Path, forks: Forks, kind: str, tmp_path: Path) -> None:
    """kill -9 at four random moments of the work; the members' checkpoints and finished members are used."""
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["methods"]["walk"] = {"steps": 60, "pause": 0.01}
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    steps, log = 60 * 2 * 2, tmp_path / "log"
    chance = random.Random(f"kill {kind}")
    for target in sorted(chance.sample(range(1, steps - 1), 4)):
        process = forks.start(kind, log)
        deadline = time.monotonic() + 120
        while not log.exists() or log.read_text().count("\n") < target:
            assert psutil.pid_exists(process) and time.monotonic() < deadline
            time.sleep(0.003)
        os.kill(process, signal.SIGKILL)
        assert forks.wait() == -signal.SIGKILL
    forks.start(kind, log)
    assert forks.wait() == 0
    resumed = files(places.artifact(kind, "b-walk"))
    done = log.read_text().count("\n")
    assert steps <= done <= steps + 4, f"{done} steps were done: work was lost or never done"
    assert not places.checkpoints(kind, "b-walk").exists()
    forks.start(kind)
    assert forks.wait() == 0
    assert files(places.artifact(kind, "b-walk")) == resumed
    assert not list(Path("work").rglob("*.tmp"))


def test_a_fit_of_the_graph_is_a_final_one(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and validation rows together, as fit_rows says; a search alone holds validation rows apart."""
    asked = []
    load = fit_stage.prepared.load_fits
    monkeypatch.setattr(fit_stage.prepared, "load_fits", lambda *a, **k: asked.append(k) or load(*a, **k))
    fit("trajectory", "b-walk")
    assert asked == [{"final": True}]


def test_every_file_of_the_data_and_of_the_inputs_is_hashed_once(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a split, of which there are two."""
    fit("trajectory", "b-walk")
    hashed = []
    sha256 = artifacts.sha256
    monkeypatch.setattr(artifacts, "sha256", lambda path: hashed.append(path) or sha256(path))
    shared, tasks = fit_stage._plan(load().run("student", "b-run"), load(), SETTINGS)
    assert len(tasks) == 4 and sum(key.startswith("data-") for key in shared) == 2
    assert len(hashed) == len(set(hashed)) > 8


@pytest.mark.parametrize(
    ("seeds", "tasks", "rows", "environment", "here"),
    [
        (5, 1, fit_stage.FEW_ROWS, {}, True),
        (0, 1, 100, {}, True),
        (5, 2, 100, {}, None),
        (0, 2, 100, {}, None),
        (0, 2, 100, {"workers": 2}, False),
        (0, 2, 100, {"address": "head:6379"}, False),
        (0, 1, 100, {"workers": 2}, False),
        (5, 1, 100, {"address": "head:6379"}, True),
        (5, 1, fit_stage.FEW_ROWS, {"address": "head:6379"}, False),
        (0, 1, 100, {"address": "head:6379"}, False),
    ],
)
def test_a_worker_is_started_where_it_has_something_to_give(
    seeds: int, tasks: int, rows: int, environment: dict[str, Any], here: bool | None
) -> None:
    """A group of ``seeds`` or a single one; one task or more; on this machine alone or on a cluster."""

    class Data:
        train = range(rows)

    class Run:
        stage = StageSpec(fit=lambda *a, **k: None)  # type: ignore[arg-type,return-value]

    one = fit_stage.SeedTask(Run.stage.fit_one, None, "data-0", {}, Seed(0))
    payload = fit_stage.GroupTask(("0-0",) * seeds, (one,) * seeds, lambda *a, **k: []) if seeds else one
    planned = [Task(f"{n}", payload, ("data-0",), data_parallel=True) for n in range(tasks)]
    settings = dataclasses.replace(SETTINGS, **environment)
    assert fit_stage._light(Run(), planned, {"data-0": Data()}, settings) is here  # type: ignore[arg-type]


def test_a_checkpoint_belongs_to_the_code_of_its_own_method(there: Path) -> None:
    """Another family's code leaves it in place; that of the method, a number or the device does not."""
    from pipeline.plan import sources

    ours = params.load(Path(__file__).parents[2] / "params.yaml")
    runs = {key: ours.run("student", key) for key in ("boston-vbll", "boston-gp")}
    codes = {key: fit_stage.code_of(run, ours) for key, run in runs.items()}
    assert codes == {key: sources.fit_digest(run.method.name, ours) for key, run in runs.items()}
    assert codes["boston-vbll"] != codes["boston-gp"]
    about = {"config": 1, "code": "a"}
    identities = [
        fit_stage.identity(about, SETTINGS, []),
        fit_stage.identity({**about, "code": "b"}, SETTINGS, []),
        fit_stage.identity({**about, "config": 2}, SETTINGS, []),
        fit_stage.identity(about, dataclasses.replace(SETTINGS, threads=2), []),
    ]
    assert len(set(identities)) == 4 and identities[0] == fit_stage.identity(dict(about), SETTINGS, [])
