"""Checkpoints in storage that all machines share: past the driver, and gone on with on another machine."""

import logging
import os
import pickle
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from bdl_pipe.errors import ConfigError, UserError
from pipeline.core.settings import Settings
from pipeline.work import base as executors
from pipeline.work.base import Executor, Task
from pipeline.work.choose import choose
from pipeline.work.display import Display
from pipeline.work.store import Store
from tests.pipeline import fake_work

SECRET = "pSecretOfATest/wJalrXUtnFEMI"
BUCKET = "s3://checkpoints/ours"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An endpoint that this process, and the workers that it starts, know."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFATESTMACHINE99")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="checkpoints")
        yield BUCKET
    server.stop()


@pytest.fixture(scope="module")
def running(s3: str) -> Iterator[Executor]:
    """An executor that holds the embedded Ray of this file, whose workers have the bucket's keys."""
    executor = choose(Settings(executor="ray"))
    with Display("start") as display:
        executor.map(fake_work.square, [Task("a", 1)], shared={}, display=display)
    yield executor
    executor.close()


@pytest.fixture(params=["folder", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    (tmp_path / "network").mkdir()
    return str(tmp_path / "network")


def machine(folder: Path) -> Store:
    """The store of one stage in a project in ``folder``."""
    store = Store(folder / "teacher" / f"key-{folder.parent.name}", "identity")
    store.open()
    return store


def test_what_is_unfinished_lies_there_and_what_is_finished_here(address: str, tmp_path: Path) -> None:
    store = machine(tmp_path / "one")
    store.save("b", b"of a command without the setting")
    one = store.sharing(address)
    assert (one.load("a"), one.load("b")) == (None, b"of a command without the setting")
    one.save("a", b"1")
    one.save("a", b"22")
    one.save("b", b"newer")
    other = pickle.loads(pickle.dumps(machine(tmp_path / "two").sharing(address)))  # in a worker
    assert (other.load("a"), other.load("b"), other.finished("a")) == (b"22", b"newer", None)
    assert SECRET.encode() not in pickle.dumps(one)
    other.finish("a", b"333")
    assert (one.load("a"), one.finished("a"), other.finished("a")) == (None, None, b"333")
    other.discard("a")  # which is not there
    assert store.sharing("") is store


@pytest.mark.slow
def test_another_machine_goes_on_from_there(running: Executor, address: str, tmp_path: Path) -> None:
    """The first fails at step 50 of 100; the second has 200 to take, and loses a worker after 100."""
    executor = choose(Settings(executor="ray", checkpoint_seconds=0.0, checkpoints=address))
    stages = [machine(tmp_path / name) for name in ("one", "two")]
    task, fuse = Task("a", 100, ("stop",)), str(tmp_path / "fuse")
    with Display("steps") as display:
        with pytest.raises(UserError, match="stopped"):
            executor.map(fake_work.steps, [task], shared={"stop": True}, display=display, store=stages[0])
        assert not list((tmp_path / "one").rglob("*.part"))
        assert stages[1].sharing(address).load("a")
        shutil.rmtree(tmp_path / "one")
        (done,) = executor.map(
            fake_work.steps, [Task("a", 200, ("fuse",))], shared={"fuse": fuse}, display=display, store=stages[1]
        )
    assert done.result.tensors["sum"] == 20_100
    assert done.result.config["began_at"] == 101
    assert done.seconds < 60 and Path(fuse).exists()
    assert stages[1].sharing(address).load("a") is None, "a finished task's checkpoint is left"
    assert stages[1].finished("a")


def test_storage_that_cannot_be_used_is_one_line(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, rule in (
        ("checkpoints", "must be s3://bucket/path, or a folder from / on that is there"),
        (str(tmp_path / "none"), "or a folder from / on that is there"),
        ("s3://user:pass@bucket/x", "must hold no credential"),
    ):
        with pytest.raises(ConfigError, match=rule):
            Settings.read({"BDL_CHECKPOINTS": value})
    far = Settings.read({"BDL_CHECKPOINTS": "/of/the/cluster", "RAY_ADDRESS": "http://head:8265"})
    assert far.checkpoints == "/of/the/cluster"  # which the job's own process looks at
    with pytest.raises(UserError, match="BDL_CHECKPOINTS=/of/the/cluster: there is no such folder on "):
        machine(tmp_path / "one").sharing("/of/the/cluster")
    executors.preflight(Settings(checkpoints=s3))
    with pytest.raises(UserError, match=r"BDL_CHECKPOINTS=s3://none/x: there is no such bucket .*, or unset BDL_CHECK"):
        executors.preflight(Settings(checkpoints="s3://none/x"))
    with pytest.raises(UserError, match=r"BDL_CHECKPOINTS=s3://none/x: cannot be written: there is no such bucket"):
        machine(tmp_path / "one").sharing("s3://none/x")
    shared = machine(tmp_path / "two").sharing(s3)
    boto3.client("s3").create_bucket(Bucket="gone")
    lost = machine(tmp_path / "three").sharing("s3://gone/x")
    for each in boto3.client("s3").list_objects_v2(Bucket="gone").get("Contents", ()):
        boto3.client("s3").delete_object(Bucket="gone", Key=each["Key"])
    boto3.client("s3").delete_bucket(Bucket="gone")
    with pytest.raises(
        UserError, match=r"BDL_CHECKPOINTS=s3://gone/x: a checkpoint cannot be written: there is no such"
    ) as said:
        lost.save("a", b"1")
    assert SECRET not in str(said.value)
    monkeypatch.setattr(os, "replace", _full)
    shared.save("a", b"1")  # a bucket does not care
    with pytest.raises(UserError, match=r"a\.part: the disk is full; nothing was written"):
        machine(tmp_path / "four").sharing(str(tmp_path)).save("a", b"1")


class _ReadOnly(BaseHTTPRequestHandler):
    """A bucket that lets nobody write."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        body = b"" if self.command == "HEAD" else denied
        self.send_response(200 if self.command == "HEAD" else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_bucket_that_denies_writes_or_says_nothing_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any work starts; the client by itself waits three minutes for one that says nothing."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ReadOnly)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(UserError, match=r"it refuses these credentials \(ACCESS_DENIED\); give them .*, or unset"):
        executors.preflight(Settings(checkpoints=s3))
    server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=rf"^BDL_CHECKPOINTS={s3}: it does not answer within 15 s; correct"):
            executors.preflight(Settings(checkpoints=s3))


@pytest.mark.parametrize("text", ["endpoint_url = {}", "services = ours\n[services ours]\ns3 =\n  endpoint_url = {}"])
def test_the_endpoint_of_a_profile_is_taken(
    s3: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DVC and MLflow take it; pyarrow alone would write to AWS."""
    (tmp_path / "config").write_text("[profile ours]\n" + text.format(os.environ["AWS_ENDPOINT_URL"]))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "ours")
    executors.preflight(Settings(checkpoints=s3))
    store = machine(tmp_path / "one").sharing(s3)
    store.save("a", b"1")
    assert store.load("a") == b"1"


def _full(*paths: object) -> None:
    raise OSError(28, "No space left on device")
