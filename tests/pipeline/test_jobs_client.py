"""This machine's end of a job, against dashboards that say one thing after the other, and addresses of other things."""

import argparse
import http.server
import importlib.util
import io
import json
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest
import ray
import requests

from bdl_pipe.errors import UserError
from pipeline.core.jobs import calls, client, dashboard, entry, following, sending
from pipeline.core.jobs.calls import Call
from pipeline.core.settings import Settings
from pipeline.verbs import attach
from tests.end_to_end.test_jobs import PARAMS, Heard


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
        following.follow(board, "bdl-a-1", "a", Heard(["r"]))  # type: ignore[arg-type]
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
