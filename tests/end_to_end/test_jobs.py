"""Ray jobs: a machine that reaches a cluster's dashboard alone, by a line that is cut.

The head is started from another folder, where our packages cannot be imported, and the project knows a proxy of its
dashboard's port, no other.
"""

import contextlib
import hashlib
import http.server
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import requests
import yaml
from ray import cloudpickle

from bdl_pipe.errors import UserError
from pipeline.core.jobs import away, client, dashboard, sending
from pipeline.core.jobs.calls import Call
from tests.end_to_end.conftest import Project, make

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("cluster")]
PARAMS: Final = """
seed: 0
datasets:
  digits: {source: {name: digits}, normalise: train, whiten: false, validation: 0.1, fit_rows: train_and_validation,
           splits: 1, ood: [], corrupted_images: 0, corruptions: made}
methods:
  sgd: {network: {name: mlp, hidden: [16]}, epochs: 600, snapshots: 1, batch: 32, optimiser: {name: adam, lr: 3e-3}}
  deterministic: {}
trajectories:
  digits-sgd: {dataset: digits, method: sgd, seeds: 2, input: prepare/digits}
teachers: {}
coresets: {}
runs:
  digits-one: {dataset: digits, method: deterministic, setting: small, seeds: 2, input: trajectory/digits-sgd}
evaluate: {calibration_bins: 15, batch: 1000, joint_pairs: 100}
report: {figures_dpi: 110}
"""


class Line:
    """A proxy of a port of this machine, that can be cut and mended; it counts who follows a job's output."""

    def __init__(self, port: int) -> None:
        self._to, self._pairs, self.followed = port, list[tuple[socket.socket, socket.socket]](), 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.mend()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mend(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, args=(self._door,), daemon=True).start()

    def cut(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for end in [end for pair in self._pairs for end in pair]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _serve(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = door.accept()[0]
                pair = near, socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append(pair)
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError, ValueError):
            while True:
                for end in select.select((near, far), (), ())[0]:
                    data = end.recv(2**16)
                    if not data:
                        return
                    self.followed += b"/api/v0/logs/" in data[:200]
                    (far if end is near else near).sendall(data)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a head's dashboard."""
    temporary = tempfile.mkdtemp(prefix="bdl-")  # a short path, for sockets
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port", "metrics-export-port")
    ports = dict(zip(names, _free(len(names)), strict=True))
    hidden = ("PYTHONPATH", "RAY_ADDRESS")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": temporary,
    }
    options = [f"--{name}={port}" for name, port in ports.items()]
    head = subprocess.Popen(
        ["ray", "start", "--head", "--block", "--num-cpus=2", f"--temp-dir={temporary}", *options],
        cwd=temporary,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _until(lambda: _answers(ports["dashboard-port"]), 120)
        yield ports["dashboard-port"]
    finally:
        everyone = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        for process in everyone:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.slow
def test_jobs_of_a_machine_that_loses_its_power_and_its_line(port: int, tmp_path: Path) -> None:
    """The job goes on, is found again, its line is cut and mended, and the bits are those of the machine itself."""
    line = Line(port)
    project = make(tmp_path / "far", PARAMS)
    project.env |= {"BDL_EXECUTOR": "ray", "RAY_ADDRESS": line.url, "BDL_CHECKPOINT_SECONDS": "2"}
    project.env["RAY_AUTH_MODE"] = "disabled"
    project.pipeline("run", "prepare", "digits", "--executor", "inline", env={"RAY_ADDRESS": ""})
    before = project.start(sys.executable, "-m", "pipeline", "repro", "trajectory")
    _until(lambda: _says(port, '"steps"'), 120)
    _power_off(project)
    before.communicate()
    (job,), followed = _jobs(port), line.followed
    assert job["status"] == "RUNNING"
    after = project.start(sys.executable, "-m", "pipeline", "attach")
    _until(lambda: line.followed > followed, 60)
    line.cut()
    time.sleep(3)
    line.mend()
    said, error = after.communicate(timeout=300)
    assert after.returncode == 0, said + error
    assert f"trajectory digits-sgd: RUNNING ({job['submission_id']})" in said
    assert "no answer from" in said and "answers again after" in said
    assert [each["submission_id"] for each in _jobs(port)] == [job["submission_id"]]
    assert not list(project.folder.glob(".state/jobs/*.json"))

    near = Project(tmp_path / "near")
    shutil.copytree(project.folder, near.folder, symlinks=True)
    for made_there in ("work/trajectory", "work/identity/trajectory", ".state"):
        shutil.rmtree(near.folder / made_there)
    near.pipeline("run", "prepare", "digits")
    near.pipeline("run", "trajectory", "digits-sgd")
    made = {path.name: path.read_bytes() for path in (near.folder / "work/trajectory").rglob("*.safetensors")}
    assert len(made) == 2
    for name, blob in made.items():
        (there,) = (project.folder / "work/trajectory").rglob(name)
        assert there.read_bytes() == blob

    project.edit("params.yaml", "epochs: 600", "epochs: 6000")  # and now Ctrl-C, beside somebody else's job
    requests.post(
        f"http://127.0.0.1:{port}/api/jobs/", json={"entrypoint": "sleep 600", "submission_id": "another"}
    ).raise_for_status()
    again = project.start(sys.executable, "-m", "pipeline", "repro", "trajectory")
    mine = lambda: [each for each in _jobs(port) if each["submission_id"] not in ("another", job["submission_id"])]  # noqa: E731
    _until(lambda: [each for each in mine() if each["status"] == "RUNNING"], 120)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    _until(lambda: mine()[0]["status"] == "STOPPED", 60)
    (other,) = (each for each in _jobs(port) if each["submission_id"] == "another")
    assert other["status"] in ("PENDING", "RUNNING")


@pytest.mark.slow
def test_a_search_is_a_job_with_the_scores_of_this_machine(port: int, tmp_path: Path) -> None:
    """Tune's process is there, and the trials' scores and MLflow's runs are here."""
    project = make(tmp_path / "far", PARAMS.replace("epochs: 600", "epochs: 4"))
    project.env |= {"RAY_AUTH_MODE": "disabled"}
    project.pipeline("run", "prepare", "digits", "--executor", "inline")
    command = ("tune", "sgd", "--dataset", "digits", "--samples", "2", "--max-concurrent", "1")
    found = {}
    for where, address in (("far", f"http://127.0.0.1:{port}"), ("near", "")):
        said = project.pipeline(*command, env={"BDL_EXECUTOR": "ray", "RAY_ADDRESS": address}).stdout
        overlay = project.folder / "params/tuned/sgd-digits.yaml"
        found[where] = yaml.safe_load(overlay.read_text()), sorted(re.findall(r"of 2: nll \S+", said))
        overlay.unlink()
    assert found["far"] == found["near"] and len(found["far"][1]) == 2
    assert any(job["submission_id"].startswith("bdl-search-sgd-digits") for job in _jobs(port))


@pytest.mark.slow
def test_what_fails_on_the_cluster_is_said_here(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    call = Call("bdl-wrong", "wrong", "", json.loads, {}, {})  # no function of three arguments
    with pytest.raises(RuntimeError, match="wrong: TypeError: loads\\(\\) takes 1 positional argument") as caught:
        client.perform(f"http://127.0.0.1:{port}", call, _Nobody())
    assert any("Traceback" in note for note in caught.value.__notes__)
    assert not list(tmp_path.glob(".state/jobs/*.json"))


@pytest.mark.slow
def test_a_value_that_is_too_large_goes_through_the_remote_once(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``print``, which the cluster has: a job that cannot read all of its values fails before it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(sending, "_MOST_BYTES", 1000)
    url, large = f"http://127.0.0.1:{port}", {"large": b"l" * 5000, "small": b"s"}
    call = Call("bdl-large", "large", "", print, {}, large)
    with pytest.raises(UserError, match="large: must be at most 0 MB to travel with a job, got 0 MB; set BDL_REMOTE"):
        client.perform(url, call, _Nobody())
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    remote = s\n['remote \"s\"']\n    url = ../store\n")
    subprocess.run(["git", "init", "-q"], check=True)
    for name in ("bdl-first", "bdl-second"):
        client.perform(url, replace(call, name=name), _Nobody(), "s")
    (kept,) = (tmp_path / "store/bdl-pipe/values").iterdir()
    blob = kept.read_bytes()
    assert 5000 < len(blob) < 6000 and kept.name == hashlib.sha256(blob).hexdigest()
    kept.write_bytes(b"another")
    with pytest.raises(UserError, match=r"large: what lies in the remote at .* is damaged; remove it there"):
        client.perform(url, replace(call, name="bdl-third"), _Nobody(), "s")
    kept.unlink()
    at = away.put("large", blob, "s")
    assert away.get(at) == blob
    kept.unlink()
    with pytest.raises(UserError, match="large: the cluster cannot read it from the remote"):
        away.get(at)


@pytest.mark.slow
def test_no_word_in_a_jobs_output_loses_a_result(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that do not end, that are no UTF-8, or are of 10 MB; behind a proxy that wants a header and a prefix."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"X-Me": "somebody"}')
    heard = Heard(["result"])
    with _proxy(port) as url, _by_value():
        dashboard.preflight(url)
        client.perform(url, Call("bdl-words", "words", "", _talk, 10**7, {}), heard)
        assert heard.files == {"result": b"result"} and [["t", 1, 1, {"loss": 0.5}]] in [
            event.get("steps") for event in heard.events
        ]
        again = Heard(["result", "more"])  # which the job of that name has not made: one that makes it is sent
        with pytest.raises(UserError, match=r"its job bdl-words-2 has ended without more: run the command once more"):
            client.perform(url, Call("bdl-words", "words", "", _talk, 1, {}), again)
        monkeypatch.setenv("RAY_JOB_HEADERS", "{}")
        with pytest.raises(UserError, match=r"access is refused \(401\)"):
            dashboard.preflight(url)


def _talk(size: int, values: Any, outlet: Any) -> None:
    os.write(1, b"\xff no text\n")
    outlet.tell(steps=[["t", 1, 1, {"loss": 0.5}]])
    os.write(1, b"x" * size + b"\r 3% |##")
    outlet.keep("result", b"result")


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Let functions of this module travel as they are: the cluster cannot import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@contextlib.contextmanager
def _proxy(port: int) -> Iterator[str]:
    """A proxy of a dashboard that knows its visitors by a header, has a prefix, and lets no websocket through."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            if self.headers.get("X-Me") != "somebody" or not self.path.startswith("/ray/"):
                self.send_error(401)
                return
            kept = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = f"http://127.0.0.1:{port}{self.path.removeprefix('/ray')}"
            with requests.request(self.command, url, headers=kept, data=body, stream=True, timeout=60) as answer:
                self.send_response(answer.status_code)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for chunk in answer.iter_content(None):
                        self.wfile.write(chunk)

        do_GET = do_PUT = do_POST = handle_one

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/ray"
        server.shutdown()


class _Nobody:
    def event(self, event: Any) -> None: ...

    def file(self, name: str, blob: bytes) -> None: ...

    def missing(self) -> list[str]:
        return []


class Heard:
    """A listener that wants some results."""

    def __init__(self, wanted: list[str]) -> None:
        self._wanted, self.events, self.files = wanted, list[Any](), dict[str, bytes]()

    def event(self, event: Any) -> None:
        self.events.append(event)

    def file(self, name: str, blob: bytes) -> None:
        self.files[name] = blob

    def missing(self) -> list[str]:
        return sorted(set(self._wanted) - self.files.keys())


def _free(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _answers(port: int) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"http://127.0.0.1:{port}/api/version", timeout=3).status_code == 200
    return False


def _jobs(port: int) -> list[dict[str, Any]]:
    """The jobs that were submitted, of whatever state."""
    found = requests.get(f"http://127.0.0.1:{port}/api/jobs/", timeout=30).json()
    return [each for each in found if each["type"] == "SUBMISSION"]


def _says(port: int, words: str) -> bool:
    """Whether a job's output has ``words``."""
    for job in _jobs(port):
        answer = requests.get(f"http://127.0.0.1:{port}/api/jobs/{job['submission_id']}/logs", timeout=30)
        if words in answer.text.replace("\\", ""):
            return True
    return False


def _processes(project: Project) -> list[psutil.Process]:
    """All processes in the project's folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == project.folder:
                found.append(process)
    return found


def _power_off(project: Project) -> None:
    for process in _processes(project):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _until(true: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)
