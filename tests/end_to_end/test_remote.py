"""Machines that share a store on S3: what one leaves, another goes on from; what the store refuses, work survives.

Each machine is a working copy of its own with an empty cache; the store is moto's server in this process.
"""

import hashlib
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import boto3
import psutil
import pyarrow.parquet
import pytest
from moto.server import ThreadedMotoServer

from tests.end_to_end.conftest import PARAMS, Project, make
from tests.end_to_end.test_runner import artifacts

pytestmark = pytest.mark.slow
BUCKET: Final = "bdl"
IDENTIFIER, SECRET = "AKIAOFATESTMACHINE99", "pSecretOfATest/wJalrXUtnFEMI"
KEYS: Final = {"AWS_ACCESS_KEY_ID": IDENTIFIER, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
BOSTON: Final = ("evaluate@boston-deterministic",)
NEEDED: Final = ("prepare@boston", "trajectory@boston-sgd", "student@boston-deterministic")
PLANTED: Final = "second/mlruns/planted"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=IDENTIFIER,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    return client


def machine(folder: Path, endpoint: str, path: str) -> Project:
    """A clone with an empty cache; the store's address and a pair of keys lie in a file that git does not track."""
    project = make(folder, PARAMS)
    options = f"url = s3://{BUCKET}/{path}\n    endpointurl = {endpoint}\n    region = us-east-1\n"
    keys = f"    access_key_id = {IDENTIFIER}\n    secret_access_key = {SECRET}\n"
    config = f"[core]\n    remote = store\n['remote \"store\"']\n    {options}{keys}"
    (project.folder / ".dvc/config.local").write_text(config)
    project.env |= {"BDL_REMOTE": "store", "HOME": str(folder)}
    return project


def objects(s3: Any, prefix: str = "") -> dict[str, bytes]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    names = [found["Key"] for page in pages for found in page.get("Contents", ())]
    return {name: s3.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}


def pushed(s3: Any, path: str) -> set[str]:
    """The stages that can be found in a store."""
    return {json.loads(text)["stage"] for text in objects(s3, f"{path}/bdl-pipe/").values()}


def fetched(said: str) -> set[str]:
    return set(re.findall(r"(\S+): fetched from the remote", said))


def leaks(secrets: tuple[str, ...], folder: Path, texts: dict[str, bytes]) -> list[str]:
    """The files below a folder, and the texts, that hold a secret; what Parquet compresses is read."""
    found = [name for name, text in texts.items() if any(secret.encode() in text for secret in secrets)]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            if path.suffix == ".parquet":
                text += str(pyarrow.parquet.read_table(path).to_pylist()).encode()
            found += [str(path.relative_to(folder))] if any(secret.encode() in text for secret in secrets) else []
    return found


def test_a_second_machine_goes_on_where_the_first_was_killed(
    finished: Project, tmp_path: Path, endpoint: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes what the first had not finished, and what is damaged since, with the bits of an undisturbed run.

    No key is told to anything that either wrote.
    """
    first, second = (machine(tmp_path / name, endpoint, "kill") for name in ("first", "second"))
    first.env["BDL_TEST"] = str(first.folder)
    process = first.start(sys.executable, "-m", "pipeline", "repro", "-j", "1", *BOSTON)
    assert process.stdout is not None and process.stderr is not None
    before = ""
    for line in process.stdout:
        before += line
        if line.startswith("[2/4]"):
            os.killpg(process.pid, signal.SIGKILL)
            break
    before += process.stdout.read() + process.stderr.read()
    wait_for_the_end(first)
    left, whole = pushed(s3, "kill"), objects(s3, "kill/files/")
    assert {"prepare@boston", "trajectory@boston-sgd"} <= left < {*BOSTON, *NEEDED}
    manifest = (first.folder / "work/prepare/boston/manifest.json").read_bytes()
    damaged = next(name for name, text in whole.items() if text == manifest)
    s3.put_object(Bucket=BUCKET, Key=damaged, Body=manifest.replace(b"boston", b"bosten"))

    tracking = {"BDL_TRACKING": "on", "BDL_MLFLOW_ARTIFACTS": f"s3://{BUCKET}/runs", "MLFLOW_S3_ENDPOINT_URL": endpoint}
    done = second.pipeline("repro", *BOSTON, env={**KEYS, **tracking})
    assert fetched(done.stdout) == left - {"prepare@boston"} and "4 stages done" in done.stdout
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "warning" in line]
    assert "work/prepare/boston of prepare@boston is damaged" in line and line.endswith("it is made here")
    undisturbed = artifacts(finished)
    assert len(artifacts(second)) == 4 and artifacts(second).items() <= undisturbed.items()
    assert pushed(s3, "kill") == {*BOSTON, *NEEDED}
    assert objects(s3, "kill/files/").items() >= whole.items(), "what was damaged is whole again"
    assert list((second.folder / "work").rglob(".*.tmp")) == []
    assert "1 file pushed" in second.dvc("push"), "the file of hashes alone: the others are DVC's own objects already"

    for name, value in {**KEYS, "MLFLOW_S3_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    (weights,) = [name for name in objects(s3, "runs/bdl-pipe-stages/models/") if name.endswith("/0-0.safetensors")]
    from mlflow.artifacts import download_artifacts

    back = Path(download_artifacts(f"s3://{BUCKET}/{weights}", dst_path=str(tmp_path)))
    assert back.read_bytes() == (second.folder / "work/student/boston-deterministic/0-0.safetensors").read_bytes()
    assert not (second.folder / "mlruns/artifacts").exists()

    for project in (first, second):
        (project.folder / ".dvc/config.local").unlink()  # where they were put
    said = {"what the first said": before.encode(), "what the second said": (done.stdout + done.stderr).encode()}
    assert leaks((IDENTIFIER, SECRET), tmp_path, said | objects(s3)) == []
    (tmp_path / PLANTED).write_text(f"key={SECRET}")
    assert leaks((IDENTIFIER, SECRET), tmp_path, {"line": IDENTIFIER.encode()}) == ["line", PLANTED]


def wait_for_the_end(project: Project) -> None:
    """Until no process of a killed machine is left."""
    until = time.monotonic() + 60
    while any(_environment(p).get("BDL_TEST") == str(project.folder) for p in psutil.process_iter()):
        assert time.monotonic() < until
        time.sleep(0.2)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except psutil.Error:
        return {}


def test_two_machines_at_once_push_the_same_without_harm(tmp_path: Path, endpoint: str, s3: Any) -> None:
    """Each makes it, and ends well with the same bits; each object is what its name says."""
    both = [machine(tmp_path / name, endpoint, "two") for name in ("first", "second")]
    processes = [one.start(sys.executable, "-m", "pipeline", "run", "prepare", "boston") for one in both]
    for process in processes:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0 and "prepare@boston: done" in out and "warning" not in error
    assert len(artifacts(both[0])) == 2 and artifacts(both[0]) == artifacts(both[1])
    assert pushed(s3, "two") == {"prepare@boston"}
    for name, text in objects(s3, "two/files/md5/").items():
        assert name.removesuffix(".dir").replace("/", "").endswith(hashlib.md5(text).hexdigest())


class Refusing(BaseHTTPRequestHandler):
    """A store that answers 403: to everything, or to all but the probe where ``probed`` is set."""

    protocol_version = "HTTP/1.1"
    probed = False
    kept: bytes = b""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        listing = self.command == "GET" and "list-type" in self.path
        if self.probed and (listing or "probe-" in self.path + body.decode(errors="replace")):
            if self.command == "PUT":
                type(self).kept = body
            empty = b"<ListBucketResult></ListBucketResult>" if listing else b"<DeleteResult></DeleteResult>"
            self._send(200, self.kept if self.command == "GET" and not listing else empty)
        elif self.probed and self.command == "HEAD":
            self._send(404, b"")
        else:
            self._send(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def _send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Refusing.probed = False
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_store_that_cannot_be_used_is_refused_before_any_work(tmp_path: Path, refusing: str) -> None:
    """One line with the cure, in seconds: without rights, or without a server; so for MLflow's files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{free.getsockname()[1]}"
    project = machine(tmp_path / "machine", refusing, "x")
    local = project.folder / ".dvc/config.local"
    whole = local.read_text()
    runs = {"BDL_REMOTE": "off", "BDL_TRACKING": "on", "BDL_MLFLOW_ARTIFACTS": "s3://bdl/runs", **KEYS}
    runs["MLFLOW_S3_ENDPOINT_URL"] = refusing
    rights = r"it refuses these credentials \(AccessDenied\); give them the right to list, read, write and delete there"
    for config, environment, rule in (
        (whole, {}, rf"BDL_REMOTE=store: s3://bdl/x: {rights}, or unset BDL_REMOTE$"),
        (whole.replace(refusing, silent), {}, "s3://bdl/x: nobody answers there; correct its endpoint, .* unset"),
        (whole, runs, rf"BDL_MLFLOW_ARTIFACTS=s3://bdl/runs: {rights}, or unset BDL_MLFLOW_ARTIFACTS$"),
    ):
        local.write_text(config)
        began = time.monotonic()
        said = project.pipeline("repro", env=environment, code=2).stderr
        assert time.monotonic() - began < 60  # of which a busy machine imports half a minute
        assert re.search(rule, said) and said.count("\n") == 1
        assert SECRET not in said and IDENTIFIER not in said
    assert not (project.folder / "work/prepare").exists() and not (project.folder / "mlruns").exists()


def test_a_push_that_fails_fails_no_stage_and_is_made_up_for(
    tmp_path: Path, endpoint: str, s3: Any, refusing: str
) -> None:
    """It is one line where it happens and one at the end; the next command pushes what is left, and runs nothing."""
    Refusing.probed = True
    project = machine(tmp_path / "machine", refusing, "late")
    done = project.pipeline("repro", "prepare@boston")
    assert "1 stages done" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "warning" in line]
    assert "is not pushed: BDL_REMOTE=store: it refuses these credentials (AccessDenied)" in line
    assert "not pushed to store: prepare@boston; the same command pushes them" in done.stderr
    local = project.folder / ".dvc/config.local"
    local.write_text(local.read_text().replace(refusing, endpoint))
    again = project.pipeline("repro", "prepare@boston")
    assert "nothing to do" in again.stdout and "warning" not in again.stderr
    assert pushed(s3, "late") == {"prepare@boston"}
