"""Checkpoints in shared storage: workers write them, and another machine continues from them; S3 is moto's server."""

import logging
import os
import pickle
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from bdl_pipe.errors import UserError
from pipeline.core import storage
from pipeline.core.settings import Settings
from pipeline.work import choose, preflight
from pipeline.work.display import Display
from pipeline.work.executor import Executor, Task
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


def machine(folder: Path) -> Store:
    """The store of one stage in a project in ``folder``."""
    store = Store(folder / "teacher" / f"key-{folder.parent.name}", "identity")
    store.open()
    return store


@pytest.mark.ray
def test_another_machine_continues_from_a_shared_folder(ray_head: str, tmp_path: Path) -> None:
    (tmp_path / "network").mkdir()
    continues(lambda settings: choose(settings, lambda: ray_head), str(tmp_path / "network"), tmp_path)


@pytest.mark.soak
def test_another_machine_continues_from_a_bucket(s3: str, tmp_path: Path) -> None:
    """The embedded Ray has the bucket's keys by the environment."""
    continues(choose, s3, tmp_path)


def continues(start: Callable[[Settings], Executor], address: str, tmp_path: Path) -> None:
    """The first command fails at step 50 of 100; the second has 200 steps, and loses a worker after 100."""
    executor = start(Settings(executor="ray", checkpoint_seconds=0.0, checkpoints=address))
    stages = [machine(tmp_path / name) for name in ("one", "two")]
    task, fuse = Task("a", 100, ("stop",)), str(tmp_path / "fuse")
    try:
        with Display("steps") as display:
            with pytest.raises(UserError, match="stopped"):
                executor.map(fake_work.steps, [task], shared={"stop": True}, display=display, store=stages[0])
            assert not list((tmp_path / "one").rglob("*.part"))
            assert stages[1].sharing(address).load("a")
            shutil.rmtree(tmp_path / "one")
            (done,) = executor.map(
                fake_work.steps, [Task("a", 200, ("fuse",))], shared={"fuse": fuse}, display=display, store=stages[1]
            )
    finally:
        executor.close()
    assert done.result.tensors["sum"] == 20_100
    assert done.result.config["began_at"] == 101
    assert Path(fuse).exists(), "no worker died"
    assert stages[1].sharing(address).load("a") is None, "a finished task's checkpoint is left"
    assert stages[1].finished("a")


@pytest.mark.soak
def test_a_bucket_keeps_checkpoints_and_its_faults_are_one_line(s3: str, tmp_path: Path) -> None:
    preflight(Settings(checkpoints=s3))
    store = machine(tmp_path / "one").sharing(s3)
    store.save("a", b"1")
    assert pickle.loads(pickle.dumps(store)).load("a") == b"1" and SECRET.encode() not in pickle.dumps(store)
    at = re.escape(os.environ["AWS_ENDPOINT_URL"])
    with pytest.raises(
        UserError, match=rf"^BDL_CHECKPOINTS=s3://none/x: cannot be written \(at {at}\): there is no such bucket"
    ) as said:
        preflight(Settings(checkpoints="s3://none/x"))
    assert SECRET not in str(said.value)


class _ReadOnly(BaseHTTPRequestHandler):
    """A bucket that refuses all requests to read and write."""

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


@pytest.mark.soak
def test_a_bucket_that_denies_writes_or_is_silent_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any work starts; the client itself would wait minutes for a silent server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ReadOnly)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    _forget_clients()
    with pytest.raises(UserError, match=r"it refuses these credentials \(AccessDenied\); give them the right"):
        preflight(Settings(checkpoints=s3))
    server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(storage, "_PROBE_SECONDS", 2.0)
        _forget_clients()
        with pytest.raises(UserError, match=rf"^BDL_CHECKPOINTS={s3}: does not answer within 2 s \(at http"):
            preflight(Settings(checkpoints=s3))


@pytest.mark.soak
@pytest.mark.parametrize("text", ["endpoint_url = {}", "services = ours\n[services ours]\ns3 =\n  endpoint_url = {}"])
def test_the_endpoint_of_a_profile_is_used(s3: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile ours]\n" + text.format(os.environ["AWS_ENDPOINT_URL"]))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "ours")
    _forget_clients()
    preflight(Settings(checkpoints=s3))
    store = machine(tmp_path / "one").sharing(s3)
    store.save("a", b"1")
    assert store.load("a") == b"1"


def _forget_clients() -> None:
    """Make fsspec connect again, with the environment of now."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
