"""A whole command as one Ray job: with a fake client, and once with a real head."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from bdl_pipe.errors import UserError
from pipeline import job
from pipeline.core.settings import Settings

SETTINGS = Settings(jobs="http://head:8265", remote=True)
SECRET = "wJalrXUtnFEMI/K7MDENG"
Head = Callable[..., "Client"]


class Status(str):
    def is_terminal(self) -> bool:
        return self in ("SUCCEEDED", "FAILED", "STOPPED")


RUNNING, DONE = Status("RUNNING"), Status("SUCCEEDED")


@dataclass
class Job:
    submission_id: str
    metadata: dict[str, str]
    status: Status = RUNNING
    message: str = ""
    driver_exit_code: int | None = None
    start_time: int = 0


@dataclass
class Client:
    """The Jobs API of one head. ``script`` has what each look at a log does: text, an error, or a last status."""

    script: list[Any]
    jobs: dict[str, Job] = field(default_factory=dict)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def submit_job(self, **arguments: Any) -> None:
        self.submitted.append(arguments)
        name = arguments["submission_id"]
        self.jobs[name] = Job(name, arguments["metadata"])

    def list_jobs(self) -> list[Job]:
        return list(self.jobs.values())

    def delete_job(self, name: str) -> None:
        self.deleted.append(name)
        del self.jobs[name]

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def get_job_info(self, name: str) -> Job:
        return self.jobs[name]

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        for step in self.script.pop(0):
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, Status):
                self.jobs[name].status = step
            else:
                yield step


@pytest.fixture
def head(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """A function that makes the client of a head, by which jobs are sent from then on."""
    monkeypatch.setattr(job, "_RETRY_SECONDS", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def make(*script: Any) -> Client:
        client = Client(list(script))
        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda url, headers: client)
        return client

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the times that results are restored from the DVC remote, and restore none."""
    times: list[int] = []
    monkeypatch.setattr(job.dvc, "take", lambda: times.append(1))
    return times


def send(*words: str) -> int:
    return job.send(SETTINGS, words or ["repro"])


STATUS = "python -m pipeline status"
SENT = [(["repro", "-j", "2", "a b"], "python -m pipeline repro -j 2 'a b'"), (["dvc", "repro"], "dvc repro")]


@pytest.mark.parametrize(("words", "sent_as"), [*SENT, (STATUS.split(), STATUS)])
def test_the_whole_command_is_sent_as_one_job_with_its_environment(
    words: list[str],
    sent_as: str,
    head: Head,
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"AWS_SECRET_ACCESS_KEY": SECRET, "BDL_REMOTE": "on", "HOME_OF": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/home/me/.aws/credentials")
    client = head(["a line\n", DONE])
    assert send(*words) == 0
    (sent,) = client.submitted
    assert sent["entrypoint"].endswith(f"-m pipeline.job {sent['submission_id']} {sent_as}")
    environment = sent["runtime_env"]["env_vars"]
    assert environment["AWS_SECRET_ACCESS_KEY"] == SECRET and environment["BDL_REMOTE"] == "on"
    assert "AWS_SHARED_CREDENTIALS_FILE" not in environment and "HOME_OF" not in environment
    assert "RAY_ADDRESS" not in environment
    assert {"/.git", "/.venv", "/work", "/.state", "/report", "/.dvc/cache"} <= set(sent["runtime_env"]["excludes"])
    assert taken == [1]
    output = capsys.readouterr()
    assert "a line\n" in output.out and SECRET not in output.out + output.err


def test_the_results_of_a_failed_job_are_taken_and_its_exit_code_is_returned(
    head: Head, taken: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = head([Status("FAILED")], [Status("FAILED")])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    client.get_job_info = lambda name: Job(name, {}, Status("FAILED"), f"exit code 3 {SECRET}", 3)  # type: ignore[method-assign]
    assert send() == 3
    assert taken == [1]
    assert "FAILED: exit code 3 ***" in capsys.readouterr().err


def test_after_a_cut_connection_the_log_continues_without_repeated_lines(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head(["one\n", "tw", ConnectionError("cut")], ["one\n", "two\nthree\n", DONE])
    assert send() == 0
    output = capsys.readouterr()
    assert output.out.endswith("submitted\none\ntwo\nthree\n")
    assert output.err == "http://head:8265 does not answer (cut); the job continues\n"


def test_a_dashboard_that_does_not_answer_ends_the_command_but_not_the_job(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = head([ConnectionError("cut")])
    monkeypatch.setattr(job, "_PATIENCE_SECONDS", -1.0)
    with pytest.raises(UserError, match=r"has not answered for 0 s: once it answers, follow the job with python -m"):
        send()
    assert not client.stopped


def test_an_interrupt_stops_the_job(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = head(["a line\n", KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        send()
    (name,) = client.stopped
    assert f"job {name} has been stopped" in capsys.readouterr().err
    client = head([KeyboardInterrupt()])
    monkeypatch.setattr(client, "stop_job", lambda name: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        send()
    assert f"run ray job stop {name}" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_even_if_a_shell_ignores_sigint(number: signal.Signals, here: Path) -> None:
    """The shell starts a background process without job control, so Python finds SIGINT ignored."""
    code = """
import asyncio, types
from pipeline import job
from pipeline.core.settings import Settings

async def tail(name):
    print("FOLLOWS", flush=True)
    await asyncio.Event().wait()
    yield

client = types.SimpleNamespace(
    list_jobs=list, submit_job=dict, stop_job=lambda name: print("STOPPED", flush=True), tail_job_logs=tail
)
job._connect = lambda settings: client
job.send(Settings(jobs="http://head:8265", remote=True), ["repro"])
"""
    (here / "sends.py").write_text(code)
    command = ["sh", "-c", f"{sys.executable} sends.py & wait $!"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        while "FOLLOWS" not in (line := shell.stdout.readline()):
            assert line
        (sender,) = psutil.Process(shell.pid).children()
        sender.send_signal(number)
        assert "STOPPED" in shell.communicate()[0]


def test_a_running_job_of_a_command_is_followed_and_an_ended_job_is_replaced(head: Head) -> None:
    client = head([DONE], [DONE], [DONE])
    send()
    (name,) = client.jobs
    client.jobs[name].status = RUNNING
    send()
    assert len(client.submitted) == 1 and not client.deleted
    send()
    assert len(client.submitted) == 2 and client.deleted == [name]


def test_attach_finds_the_projects_running_job(
    head: Head, taken: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    client = head([DONE], [DONE], ["log\n", DONE])
    send("repro")
    send("status")
    running, ended = client.jobs.values()
    running.status, ended.start_time = RUNNING, 9
    client.jobs["other"] = Job("other", {"project": "another"})
    taken.clear()
    assert job.attach(SETTINGS) == 0
    assert taken == [1] and f"{running.submission_id}: python -m pipeline repro" in capsys.readouterr().out
    client.jobs = {"other": client.jobs["other"]}
    with pytest.raises(UserError, match="this project has no job there"):
        job.attach(SETTINGS)


def test_a_job_that_cannot_be_sent_is_an_error_with_its_cause(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^RAY_ADDRESS must be http://host:8265"):
        job.send(Settings(remote=True), ["repro"])
    with pytest.raises(UserError, match=r"^BDL_REMOTE must be on: "):
        job.send(Settings(jobs="http://head:8265"), ["repro"])
    for error, message in (
        (ConnectionError("Failed to connect to Ray at address: http://head:8265."), r"\(Failed to connect .*\)$"),
        (RuntimeError("Version check returned 404. Jobs API is not supported\nmore"), r"Jobs API is not supported\)$"),
        (RuntimeError("The SDK require the ray[default] installation"), r"; pip install 'ray\[default\]'$"),
    ):
        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Mock(side_effect=error))
        with pytest.raises(
            UserError, match=rf"^RAY_ADDRESS=http://head:8265: the Ray Jobs API cannot be used.*{message}"
        ):
            send()


def test_the_job_runs_in_a_folder_that_keeps_results_and_pushes_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def call(words: list[str], cwd: Path, env: dict[str, str]) -> int:
        commands.append([word for word in words if word != sys.executable] + [str(cwd)])
        return 4 if "fails" in words else 0

    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(job.tempfile, "gettempdir", lambda: str(here / "temporary"))
    monkeypatch.setattr(job.signal, "signal", lambda number, handler: None)
    monkeypatch.delenv("BDL_REMOTE", raising=False)
    folder = here / f"temporary/bdl-jobs-{os.getuid()}/bdl-1"
    (here / "sent/.dvc").mkdir(parents=True)
    (here / "sent/dvc.yaml").write_text("new")
    for path in ("work/result", ".state/checkpoint", ".dvc/cache/x", "plugins/gone.py", "dvc.yaml"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("old")
    monkeypatch.chdir(here / "sent")
    assert job.main(["bdl-1", "python", "-m", "pipeline", "repro"]) == 0
    assert all((folder / path).exists() for path in ("work/result", ".state/checkpoint", ".dvc/cache/x"))
    assert not (folder / "plugins").exists() and (folder / "dvc.yaml").read_text() == "new"
    dvc, push = ["-m", "dvc"], ["-m", "dvc", "push", "--run-cache", str(folder)]
    configured = [*dvc, "config", "--local", "core.no_scm", "true", str(folder)]
    assert commands == [configured, ["-m", "pipeline", "repro", str(folder)], push]
    assert job.main(["bdl-1", "dvc", "fails"]) == 4
    assert commands[-2:] == [[*dvc, "fails", str(folder)], push]


SQUARES = """
from pathlib import Path
import squaring
from pipeline.core.settings import Settings
from pipeline.work.executor import Task
from pipeline.work import choose
from pipeline.work.display import Display

settings, first = Settings.read(), int(Path("number").read_text())
assert settings.address and not settings.jobs, settings
executor = choose(settings)
with Display("squares") as display:
    tasks = [Task(str(number), number) for number in (first, first + 1)]
    done = executor.map(squaring.square, tasks, shared={}, display=display)
executor.close()
Path("squared").write_text(str([each.result for each in done]))
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_dvc_repro_runs_as_a_job_and_its_results_are_pulled_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage of DVC runs as a job, its tasks as tasks of the cluster; ``dvc repro --pull`` at home runs nothing."""
    home, remote = tmp_path / "home", tmp_path / "remote"
    (home / ".dvc").mkdir(parents=True)
    remote.mkdir()
    root = Path(job.__file__).parents[1]
    for name in ("pipeline", "stages", "src"):
        shutil.copytree(root / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    (home / ".dvc/config").write_text(f"[core]\n    remote = ours\n['remote \"ours\"']\n    url = {remote}\n")
    (home / "number").write_text("6")
    (home / "dvc.yaml").write_text("stages: {square: {cmd: python squares.py, deps: [number], outs: [squared]}}")
    (home / "squares.py").write_text(SQUARES)
    (home / "squaring.py").write_text("def square(payload, shared, report):\n    return payload * payload\n")
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    monkeypatch.chdir(home)
    url, log = f"http://127.0.0.1:{_free_port()}", tmp_path / "head.log"
    command = ["ray", "start", "--head", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1"]
    command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-port={url.rpartition(':')[2]}"]
    ports = ("port", "ray-client-server-port", "dashboard-agent-listen-port")
    command += [f"--{name}={_free_port()}" for name in ports]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "PYTHONPATH"}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the head serves 127.0.0.1 alone
    with log.open("w") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as head:
        try:
            settings = Settings(jobs=url, remote=True)
            while not _answers(url):
                assert head.poll() is None, log.read_text()
                job.time.sleep(0.5)
            while True:  # the head's agent starts after its dashboard
                with contextlib.suppress(UserError):
                    assert job.send(settings, ["dvc", "repro"]) == 0
                    break
            assert job.attach(settings) == 0
        finally:
            if head.poll() is None:
                for process in [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]:
                    process.kill()
    assert not (home / "squared").exists()
    pull = [sys.executable, "-m", "dvc", "repro", "--pull"]
    pulled = subprocess.run(pull, capture_output=True, text=True, check=True)
    assert "skipping run" in pulled.stdout, pulled.stdout
    assert (home / "squared").read_text() == "[36, 49]"


def _answers(url: str) -> bool:
    from ray.job_submission import JobSubmissionClient

    try:
        JobSubmissionClient(url).list_jobs()
    except (ConnectionError, RuntimeError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
