"""Ray jobs: a machine that reaches a cluster's dashboard alone, by a line that is cut.

The head is started from another folder, where our packages cannot be imported, and the project knows a proxy of its
dashboard's port, no other.
"""

import argparse
import contextlib
import hashlib
import http.server
import importlib.util
import io
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
import ray
import requests
import yaml
from ray import cloudpickle

from bdl_pipe.errors import UserError
from pipeline import attach
from pipeline.core.jobs import away, calls, client, dashboard, entry, following, sending
from pipeline.core.jobs.calls import Call
from pipeline.core.settings import Settings
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
    heard = _Heard(["result"])
    with _proxy(port) as url, _by_value():
        dashboard.preflight(url)
        client.perform(url, Call("bdl-words", "words", "", _talk, 10**7, {}), heard)
        assert heard.files == {"result": b"result"} and [["t", 1, 1, {"loss": 0.5}]] in [
            event.get("steps") for event in heard.events
        ]
        again = _Heard(["result", "more"])  # which the job of that name has not made: one that makes it is sent
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


class _Board:
    """A dashboard by its answers: what it says of a job, one answer after the other, and the job's output."""

    url: Final = "http://board"
    headers: Final[dict[str, str]] = {}

    def __init__(self, known: list[Any], output: bytes = b"", status: int = 200) -> None:
        self._known, self._output, self._status, self.stopped = known, output, status, list[str]()
        self.asked = list[int]()

    def job(self, name: str, seconds: float = 0.0) -> Any:
        found = self._known.pop(0) if len(self._known) > 1 else self._known[0]
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self, name: str, seconds: float) -> None:
        self.stopped.append(name)

    def log(self, path: str, node: str | None, lines: int) -> requests.Response:
        self.asked.append(lines)
        output = b"".join(self._output.splitlines(keepends=True)[0 if lines < 0 else -lines :])
        answer = requests.Response()
        answer.status_code, answer.raw = self._status, io.BytesIO(output)
        return answer


def _known(status: str, sender: str = "") -> dict[str, Any]:
    return {"status": status, "driver_node_id": "node", "message": "", "metadata": {"sender": sender}}


@pytest.mark.parametrize(
    ("board", "kind", "said"),
    [
        (_Board([None]), following.Gone, "the cluster at http://board has forgotten bdl-a-1"),
        (_Board([_known("SUCCEEDED")], status=500), following.Gone, "the output of its job bdl-a-1 is not there"),
        (_Board([_known("SUCCEEDED")], b'@bdl {"ended": true, "n": 1}\n'), following.Gone, "has ended without r"),
        (_Board([_known("FAILED")], b"ValueError: 3 is not 4\n"), UserError, "ended as FAILED (ValueError: 3 is not"),
    ],
)
def test_what_a_job_cannot_give_any_more_is_sent_for_anew(board: _Board, kind: type[UserError], said: str) -> None:
    """And no other failure is: it would fail again."""
    with pytest.raises(UserError) as error:
        following.follow(board, "bdl-a-1", "a", _Heard(["r"]))  # type: ignore[arg-type]
    assert type(error.value) is kind and said in str(error.value)


@pytest.mark.parametrize("words", [0, 3, 1000])
def test_of_a_long_output_the_last_lines_are_asked_for_and_no_event_is_missed(words: int) -> None:
    lines = [f"@bdl {json.dumps({'n': n, 'is': n})}\n" + "word\n" * (words if n == 400 else 0) for n in range(1, 501)]
    board = _Board([_known("RUNNING")], "".join(lines).encode())
    for heard, all_of_them in ((0, True), (250, True), (490, words == 1000), (500, words == 1000)):
        board.asked.clear()
        events, _ = following._said(board, "a", _known("RUNNING"), heard)  # type: ignore[arg-type]
        assert [event["is"] for event in events] == list(range(heard + 1, 501))
        assert heard >= 490 or board.asked == ([200, -1] if all_of_them else [200])


def test_an_event_is_found_behind_somebodys_words() -> None:
    assert calls.event('\r 3% |##@bdl {"file": "r", "n": 1}') == {"file": "r", "n": 1}
    assert calls.event("@bdl half of {") is None and calls.event("words") is None


@pytest.mark.parametrize(
    ("known", "stops", "stays"),
    [
        ([_known("RUNNING", "me")], True, False),
        ([_known("RUNNING", "another")], False, False),
        ([_known("SUCCEEDED", "me")], False, False),
        ([None, _known("PENDING", "me")], True, False),  # it was on its way
        ([None], False, False),
        ([dashboard.Cut("Network is unreachable")], False, True),
    ],
)
def test_an_interrupt_stops_the_job_that_this_clone_has_sent(
    known: list[Any], stops: bool, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody answers, the job stays noted, so that it is found again."""
    monkeypatch.chdir(tmp_path)
    note = client.folder() / "bdl-a-1.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"title": "a", "stage": "a", "url": "http://board", "sender": "me"}))
    board = _Board(known)
    client._stop(board, "bdl-a-1", "a")  # type: ignore[arg-type]
    assert (board.stopped == ["bdl-a-1"]) is stops and note.exists() is stays


def test_attach_runs_what_stages_ask_for_and_forgets_what_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job of another cluster, of a stage that is no more, or of a search is told of, and stops nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    stage, url = "trajectory@digits-sgd", "http://here:8265"
    jobs = {
        "a-at-work": (stage, url, "RUNNING"),
        "b-of-old-numbers": (stage, url, "SUCCEEDED"),
        "c-elsewhere": (stage, "http://there:8265", "OUT OF REACH"),
        "d-no-stage": ("teacher@gone", url, "RUNNING"),
        "e-no-stage-ended": ("teacher@gone", url, "FAILED"),
        "f-search": ("", url, "SUCCEEDED"),
    }
    client.folder().mkdir(parents=True)
    for job, (of, at, _) in jobs.items():
        note = {"title": job[2:], "stage": of, "url": at, "sender": "me"}
        (client.folder() / f"{job}.json").write_text(json.dumps(note))
    asked = list[Any]()
    monkeypatch.setenv("RAY_ADDRESS", url)
    monkeypatch.setattr(attach, "preflight", lambda url: None)
    monkeypatch.setattr(client, "status", lambda url, job: jobs[job][2])
    monkeypatch.setattr(attach.repro, "main", lambda args: asked.append(args) or 0)
    assert attach.main(argparse.Namespace(jobs=1)) == 0
    assert asked[0].targets == [stage, stage] and asked[0].jobs == 2
    assert [job for job, _ in client.noted()] == ["a-at-work", "c-elsewhere", "d-no-stage", "f-search"]
    said = capsys.readouterr().err
    assert "at-work has other work by now; ray job stop a-at-work ends the old" in said
    assert "elsewhere goes on with RAY_ADDRESS=http://there:8265" in said
    assert "no-stage is no stage of params.yaml any more; ray job stop d-no-stage ends it" in said
    assert "search goes on when its own command is run again" in said


@pytest.mark.parametrize(("theirs", "mine"), [("another", False), ("", True)])
def test_a_job_that_another_clone_has_just_sent_is_taken(
    theirs: str, mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*_: Any) -> None:
        raise UserError("a job of that name exists")

    monkeypatch.setattr(sending, "send", refused)
    board, call = _Board([None, _known("PENDING", theirs)]), Call("bdl-a", "a", "", print, {}, {})
    assert client._send(board, call, "") == "bdl-a-1"  # type: ignore[arg-type]
    assert [job for job, _ in client.noted()] == (["bdl-a-1"] if mine else [])


def test_a_token_is_looked_for_where_ray_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_JOB_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("of the home\n")
    (tmp_path / "token").write_text("of the file\n")
    sent = lambda: dashboard.Dashboard("http://a")._all  # noqa: E731
    assert sent() == {}
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert sent() == {"Authorization": "Bearer of the home"}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert sent() == {"Authorization": "Bearer of the file"}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "itself")
    assert sent() == {"Authorization": "Bearer itself"}
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"authorization": "Basic b"}')
    assert sent() == {"authorization": "Basic b"}
    for wrong in ("secret", "[]", '{"a": 1}'):
        monkeypatch.setenv("RAY_JOB_HEADERS", wrong)
        with pytest.raises(UserError, match="RAY_JOB_HEADERS must be JSON such as") as error:
            sent()
        assert "secret" not in str(error.value)


def test_ray_without_its_extra_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"jobs need ray\[default\], and ray is here without it: pip install"):
        dashboard.preflight("http://127.0.0.1:1")


def test_an_address_of_another_cluster_for_rays_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs would be sent there, and looked for here."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://another:8265")
    with pytest.raises(UserError, match="RAY_API_SERVER_ADDRESS=http://another:8265 must be RAY_ADDRESS="):
        dashboard.preflight("http://127.0.0.1:1")


def test_a_call_of_another_python_is_refused(tmp_path: Path) -> None:
    entry._check_versions(entry.versions())
    with pytest.raises(UserError, match=r"the cluster runs Python 3\.\d+, this machine 3\.8: give both the same"):
        entry._check_versions({"Python": "3.8"})


CLUSTER = 'File "/tmp/ray/session/py_modules_files/_ray_pkg_1/bdl_pipe/training/fit.py", line 20, in <module>'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["Traceback (most recent call last):", "OSError: [Errno 28] No space left on device", ".", ""],
            "a disk there is full",
        ),
        (["Failed to set up runtime environment: tar: No space left on device"], "make space in the folder of Ray's"),
        ([CLUSTER, "ImportError: cannot import name 'distributed' from 'bdl_pipe' (/tmp)"], "has half of our code"),
        (
            ["python: Error while finding module (ModuleNotFoundError: No module named 'pipeline.core')"],
            "start it anew",
        ),
        (
            [CLUSTER, "ModuleNotFoundError: No module named 'safetensors'", "; more"],
            "'safetensors': install constraints",
        ),
        ([CLUSTER, "ValueError: 3 is not 4"], "ValueError: 3 is not 4"),
        (["the driver was killed", "."], "the driver was killed"),
        (["Job entrypoint command failed with exit code 137", "Killed"], "goes on from the last checkpoints"),
        (["Request failed with status code 413: <html>", "</html>"], "nginx: client_max_body_size"),
        (["."], "no reason is given"),
    ],
)
def test_rays_words_for_a_failure_are_one_line_with_the_cure(words: list[str], said: str) -> None:
    """As Ray 2.60 wrote them on a head whose disk was full, or became so as our code was unpacked."""
    found = dashboard.bottom("\n".join(words))
    assert said in found and "\n" not in found and "Traceback" not in found


class _Fake(http.server.BaseHTTPRequestHandler):
    """Whatever answers at an address: the path's first word says how."""

    answers: Final = {
        "other": (200, {"ray_version": "1.2.3"}),
        "denied": (403, {}),
        "page": (200, "<html>"),
        "moved": (301, {}),
        "python": (200, {"ray_version": ray.__version__, "data": {"pythonVersion": "3.8.1"}}),
    }

    def do_GET(self) -> None:
        status, body = self.answers[self.server.kind]  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Location", "https://elsewhere/")
        self.end_headers()
        self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("other", f"the cluster runs Ray 1.2.3, this machine {ray.__version__}: give both the same"),
        ("denied", "access is refused (403); set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"),
        ("page", "what answers there is no Ray dashboard"),
        ("moved", "it sends on to https://elsewhere/; set it to where that leads"),
        ("python", "the cluster runs Python 3.8, this machine 3."),
    ],
)
def test_addresses_of_other_things(kind: str, rule: str) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Fake) as server:
        server.kind = kind  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(UserError) as error:
            dashboard.preflight(url)
        server.shutdown()
    assert rule in str(error.value) and url in str(error.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://127.0.0.1:1", "no Ray dashboard answers there"),
        ("http://somebody:secret@127.0.0.1:1", "must have no user or password in it"),
        ("http://127.0.0.1:1/path", "no Ray dashboard answers there"),
        ("http://127.0.0.1:1?a=b", "must be http://host:port"),
        ("http://127.0.0.1:1#a", "must be http://host:port"),
        ("http://127.0.0.1:port", "must be http://host:port"),
        ("http://127.0.0.1:99999", "must be http://host:port"),
        ("http://[::1", "must be http://host:port"),
        ("http://", "must be http://host:port"),
    ],
)
def test_wrong_addresses(url: str, rule: str) -> None:
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        dashboard.preflight(Settings.read({"RAY_ADDRESS": url}).jobs or url)
    assert rule in str(error.value) and "secret" not in str(error.value)
    assert time.monotonic() - start < 10


class _Nobody:
    def event(self, event: Any) -> None: ...

    def file(self, name: str, blob: bytes) -> None: ...

    def missing(self) -> list[str]:
        return []


class _Heard:
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
