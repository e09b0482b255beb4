"""Machine settings from the environment, and where the parts of a run lie."""

from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from pipeline.core import places
from pipeline.core.settings import Needs, Settings, require_device


def test_settings_have_defaults_and_are_read_from_the_environment() -> None:
    assert Settings.read({}) == Settings("ray", "", "cpu", Needs(), 1, 15.0)
    assert Settings.read({}).workers == 1 and Settings.read({"BDL_WORKERS_PER_TASK": "4"}).workers == 4
    assert Settings.read({"BDL_DEVICE": "cuda"}).needs.gpus == 1.0
    assert Settings.read({"BDL_WAIT_FOR_NODES": "600"}).node_seconds == 600.0
    assert Settings.read({"RAY_ADDRESS": "http://head:8265/"}).jobs == "http://head:8265"
    assert Settings.read({"BDL_REMOTE": "on"}).remote and not Settings.read({"BDL_REMOTE": "off"}).remote
    assert Settings.read({"BDL_MLFLOW_ARTIFACTS": "s3://bucket/path/"}).artifacts == "s3://bucket/path"
    assert Settings.read({"BDL_EXECUTOR": "inline"}).executor == "inline"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("BDL_DEVICE", "gpu", "must be cpu or cuda, got 'gpu'"),
        ("BDL_EXECUTOR", "dask", "must be inline or ray, got 'dask'"),
        ("BDL_THREADS", "0", "must be >= 1, got '0'"),
        ("BDL_THREADS", "1.5", "must be a whole number, got '1.5'"),
        ("BDL_WORKERS_PER_TASK", "0", "must be >= 1, got '0'"),
        ("BDL_WORKERS_PER_TASK", "2.5", "must be a whole number, got '2.5'"),
        ("BDL_GPUS_PER_TASK", "half", "must be a number, got 'half'"),
        ("BDL_CHECKPOINT_SECONDS", "nan", "must be >= 0, got 'nan'"),
        ("BDL_WAIT_FOR_NODES", "-1", "must be >= 0, got '-1'"),
        ("BDL_TRACKING", "no", "must be on or off, got 'no'"),
        (
            "BDL_REMOTE",
            "s3://key:password@bucket/path",
            "must be on or off, got 's3://bucket",
        ),
        ("BDL_MLFLOW_ARTIFACTS", "bucket/path", "must be s3://bucket/path, got 'bucket/path'"),
        (
            "BDL_MLFLOW_ARTIFACTS",
            "s3://key:password@bucket/path",
            "must hold no credential; .*, got 's3://bucket/path'",
        ),
    ],
)
def test_a_wrong_setting_is_named_in_the_error(name: str, value: str, rule: str) -> None:
    with pytest.raises(UserError, match=f"{name} {rule}"):
        Settings.read({name: value})


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU"):
        require_device("cuda")
    require_device("cpu")


def test_places_have_another_root_only_within_the_block() -> None:
    before = places.artifact("student", "x"), places.record("student", "x"), places.checkpoints("student", "x")
    with places.rooted(Path("there")):
        assert places.artifact("student", "x") == Path("there/student/x")
        assert places.record("student", "x") == Path("there/student/x.run.json")
        assert places.checkpoints("student", "x") == Path(".state/checkpoints/there/student/x")
    assert before == (
        places.artifact("student", "x"),
        places.record("student", "x"),
        places.checkpoints("student", "x"),
    )
    assert before[0] == Path("work/student/x") and before[2] == Path(".state/checkpoints/student/x")


def test_a_sweep_removes_only_the_leftovers_of_killed_processes(tmp_path: Path) -> None:
    """Half an artifact is a folder; half a record or half an identity is a file."""
    place = tmp_path / "student" / "x"
    for folder in (place, place.with_name(".x.71.tmp"), place.with_name(".x.71.old.tmp")):
        folder.mkdir(parents=True)
        (folder / "0-0.json").write_text("{}")
    for file in (".x.run.json.71.tmp", ".x.identity.json.71.tmp", "x.run.json", ".x-2.run.json.71.tmp"):
        place.with_name(file).write_text("{}")
    places.sweep(place)
    assert {p.name for p in place.parent.iterdir()} == {"x", "x.run.json", ".x-2.run.json.71.tmp"}
    assert (place / "0-0.json").is_file()
