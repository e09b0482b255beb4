"""Storage that machines share: the same behaviour in a folder and a file system of fsspec; each fault is one line."""

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import fsspec
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from bdl_pipe.errors import ConfigError, UserError
from pipeline.core import storage
from pipeline.core.settings import Settings
from pipeline.core.storage import Folder, hide, reason, require
from pipeline.work import preflight
from pipeline.work.store import Store

SECRET = "wJalrXUtnFEMI/K7MDENG"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "MLFLOW_TRACKING_PASSWORD": "correct horse",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/.aws/credentials",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture(params=["folder", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, and fsspec's file system in memory in place of S3 (test_shared_checkpoints.py has S3 itself)."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    (tmp_path / "network").mkdir()
    return str(tmp_path / "network")


def test_a_file_is_written_read_and_removed(address: str) -> None:
    require("BDL_X", address)
    folder = Folder("BDL_X", address, "teacher-key").make()
    assert folder.load("a") is None
    folder.save("a", b"1")
    folder.save("a", b"22")
    assert pickle.loads(pickle.dumps(folder)).load("a") == b"22"
    assert Folder("BDL_X", address, "other").load("a") is None
    folder.remove("a")
    folder.remove("a")
    assert folder.load("a") is None


def test_checkpoints_lie_in_shared_storage_and_results_in_the_project(address: str, tmp_path: Path) -> None:
    stores = [Store(tmp_path / name / "teacher" / "key", "identity") for name in ("one", "two")]
    for store in stores:
        store.open()
    stores[0].save("b", b"of a command without the setting")
    one = stores[0].sharing(address)
    assert (one.load("a"), one.load("b")) == (None, b"of a command without the setting")
    one.save("a", b"22")
    one.save("b", b"newer")
    other = pickle.loads(pickle.dumps(stores[1].sharing(address)))  # as a worker receives it
    assert (other.load("a"), other.load("b"), other.finished("a")) == (b"22", b"newer", None)
    other.finish("a", b"333")
    assert (one.load("a"), one.finished("a"), other.finished("a")) == (None, None, b"333")
    assert stores[0].sharing("") is stores[0]


@pytest.mark.parametrize("variable", ["BDL_CHECKPOINTS", "BDL_SEARCHES"])
def test_a_bad_address_of_storage_is_refused_without_showing_its_credentials(variable: str, tmp_path: Path) -> None:
    for value, rule in (
        ("relative", "must be s3://bucket/path, or the absolute path of a folder that exists, got 'relative'"),
        (str(tmp_path / "none"), "or the absolute path of a folder that exists"),
        ("s3://user:pass@bucket/x", "must hold no credential"),
        ("gs://bucket/x", "must be s3://bucket/path"),
    ):
        with pytest.raises(ConfigError, match=f"{variable}.*{rule}") as caught:
            Settings.read({variable: value})
        assert "pass" not in str(caught.value)


def test_the_error_names_a_missing_folder_or_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Settings.read({"BDL_CHECKPOINTS": "/of/the/cluster", "RAY_ADDRESS": "http://head:8265"})
    assert remote.checkpoints == "/of/the/cluster", "the job's own process looks for it"
    with pytest.raises(UserError, match=r"^BDL_CHECKPOINTS=/of/the/cluster: there is no such folder on "):
        preflight(Settings(checkpoints="/of/the/cluster"))

    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"a\.part: the disk is full; nothing was written"):
        Folder("BDL_CHECKPOINTS", str(tmp_path)).save("a.part", b"1")


def answering(monkeypatch: pytest.MonkeyPatch, pipe_file: Callable[..., object]) -> None:
    """Let storage answer a write in this way."""
    there = type("There", (fsspec.AbstractFileSystem,), {"pipe_file": lambda self, *value, **options: pipe_file()})
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda address, **options: (there(), address))


def test_an_error_of_storage_names_the_variable_the_endpoint_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError("no")
    denied.__cause__ = answered("AccessDenied")
    answering(monkeypatch, Mock(side_effect=denied))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secret@minio:9000")
    message = (
        r"^BDL_X=s3://b/x: cannot be written \(at http://minio:9000\): it refuses these credentials \(AccessDenied\)"
    )
    with pytest.raises(UserError, match=message):
        require("BDL_X", "s3://b/x")


def test_storage_that_never_answers_is_refused_after_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library itself may wait for minutes."""
    end, before = threading.Event(), set(threading.enumerate())
    answering(monkeypatch, end.wait)
    monkeypatch.setattr(storage, "_PROBE_SECONDS", 0.05)
    with pytest.raises(UserError, match=r"^BDL_X=s3://b/x: does not answer within 0 s"):
        require("BDL_X", "s3://b/x")
    end.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.endswith("(run)"):
            thread.join()  # it reads next: after the test it would ask the real storage, and wait for that


def test_only_credentials_are_removed_from_a_text() -> None:
    text = f"false: {SECRET} and correct horse of /home/me/.aws/credentials at https://me:pass@host/x"
    hidden = hide(text, ENVIRONMENT)
    assert hidden == "false: *** and *** of /home/me/.aws/credentials at https://host/x"
    assert hide("of AKIAOFATESTMACHINE99/x", {}) == "of ***/x", "also a key that the environment lacks"
    assert hide(text, {}) == text.replace("me:pass@", ""), "the environment tells what is secret"
    secret = ["AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "TOKENIZERS_PARALLELISM"]  # and no location
    assert [name for name in ENVIRONMENT if storage.is_secret(name)] == secret


def answered(code: str) -> Exception:
    return ClientError({"Error": {"Code": code, "Message": f"of {SECRET}"}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (answered("AccessDenied"), "it refuses these credentials (AccessDenied); give them the right"),
        (answered("InvalidAccessKeyId"), "it refuses these credentials (InvalidAccessKeyId)"),
        (answered("NoSuchBucket"), "there is no such bucket or folder; create it"),
        (OSError(30, "Read-only file system"), "its file system is mounted read-only; mount it for writing"),
        (PermissionError("denied"), "it refuses these credentials (permission denied)"),
        (FileNotFoundError("bucket"), "there is no such bucket or folder"),
        (NoCredentialsError(), "there are no credentials; export AWS_ACCESS_KEY_ID"),
        (EndpointConnectionError(endpoint_url="http://x"), "nothing answers there; correct its endpoint"),
        (ValueError(f"odd: {SECRET}\nand more"), "ValueError: odd: ***"),
    ],
)
def test_each_error_of_storage_has_its_own_line_without_secrets(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    try:
        raise OSError("of another library") from error
    except OSError as outer:
        plain, wrapped = reason(error), reason(outer)
    assert plain.startswith(said) and "\n" not in plain and SECRET not in plain
    assert wrapped == plain or isinstance(error, ValueError), "also behind the error of another library"
