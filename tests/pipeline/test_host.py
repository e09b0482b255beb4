"""The host and its clients: what a fork answers, and that nothing outlives whoever asked for it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.core.settings import Settings
from pipeline.run import client, dvc
from pipeline.run import host as host_module
from pipeline.run.invocation import Invocation
from tests.end_to_end.conftest import PARAMS, ROOT, make

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="stages are forked on Linux alone"),
    pytest.mark.xdist_group("host"),  # which most of them share
]
LONG = PARAMS.replace("corrupted_images: 10", "corrupted_images: 0").replace("epochs: 3", "epochs: 30000")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose trajectory on boston takes minutes."""
    return make(tmp_path_factory.mktemp("host") / "tiny", LONG).folder


@pytest.fixture(scope="module")
def owner() -> Iterator[psutil.Process]:
    process = psutil.Process(subprocess.Popen(["sleep", "600"]).pid)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def host(folder: Path, owner: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket of a host that ends with a process of its own; the same one, until a test ends it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'src'}{os.pathsep}{folder}")
    monkeypatch.setenv("BDL_EXECUTOR", "inline")
    return client.start(owner.pid, owner.create_time())


def until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def asked(host: Path, kind: str, key: str, **more: Any) -> client.Piped:
    return client.Piped(host, {"kind": kind, "key": key, **more})


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_mistake_is_one_line_and_code_2_and_a_stage_is_run_once(host: Path) -> None:
    wrong = asked(host, "trajectory", "boston-sdg")
    assert list(wrong.lines()) == [
        "trajectory boston-sdg: trajectories.boston-sdg is not a run (did you mean boston-sgd?)\n"
    ]
    assert wrong.wait() == 2
    for times in (1, 2):
        stage = asked(host, "prepare", "boston")
        assert (list(stage.lines()) == ["prepare@boston: is up to date\n"]) == (times == 2)
        assert stage.wait() == 0
    forced = asked(host, "prepare", "boston", force=True)
    assert list(forced.lines()) == [] and forced.wait() == 0


def long_stage(host: Path) -> client.Piped:
    """A trajectory that is being made."""
    stage = asked(host, "prepare", "boston")
    _ = [*stage.lines()]
    assert stage.wait() == 0
    stage = asked(host, "trajectory", "boston-sgd")
    assert until(lambda: any(Path(".state/checkpoints/trajectory").rglob("*")))
    return stage


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_exit_code(host: Path, number: signal.Signals) -> None:
    """Or 130, where the stage could say that it was interrupted."""
    stage = long_stage(host)
    os.kill(stage.pid, number)
    said = "".join(stage.lines())
    code = stage.wait()
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130 and said.endswith("interrupted\n"), said


def test_a_stage_ends_with_whoever_asked_for_it(host: Path) -> None:
    text = f"""
import os, time
from pathlib import Path
from pipeline.graph import client
stage = client.Piped(Path({str(host)!r}), {{"kind": "trajectory", "key": "boston-sgd"}})
print(stage.pid, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert not gone(pid)
    process.kill()
    process.wait()
    assert until(lambda: gone(pid))


def test_stages_end_with_the_host_and_the_host_with_its_owner(host: Path) -> None:
    stage = long_stage(host)
    pid = psutil.Process(stage.pid).ppid()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(client.Lost, match="has ended"):
        stage.wait()
    assert until(lambda: gone(stage.pid))
    owner = psutil.Process(subprocess.Popen(["sleep", "600"]).pid)
    again = client.start(owner.pid, owner.create_time())
    stage = asked(again, "trajectory", "boston-sgd")
    pid = psutil.Process(stage.pid).ppid()
    owner.kill()
    owner.wait()
    assert until(lambda: gone(stage.pid) and gone(pid)) and not again.exists()


def in_session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


@pytest.mark.parametrize("waited_for", [True, False], ids=["gone", "zombie"])
def test_a_host_whose_owner_ends_while_it_imports_ends_before_the_next_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited_for: bool
) -> None:
    owner, steps = subprocess.Popen(["sleep", "600"]), []

    def imports() -> Iterator[None]:
        steps.append("with an owner")
        yield
        owner.kill()
        if waited_for:
            owner.wait()
        else:
            assert until(lambda: psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE)
        yield
        steps.append("without one")
        yield

    monkeypatch.setattr(host_module, "preload", imports)
    monkeypatch.setattr(host_module.signal, "signal", lambda *_: None)
    host_module.main(str(tmp_path / "host.sock"), owner.pid)
    assert steps == ["with an owner"] and list(tmp_path.iterdir()) == []
    owner.wait()
    host_module.main(str(tmp_path / "host.sock"), owner.pid)  # and one that was never there
    assert steps == ["with an owner"]


def test_what_a_child_starts_as_it_is_told_to_end_is_ended_too() -> None:
    """It is not yet among the child's children when they are counted, nor any more when the child is gone."""
    code = "trap 'sleep 601 & exit' TERM; echo ready; while :; do sleep 0.1; done"
    child = subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    host_module._end_groups([child.pid])
    child.wait()
    assert until(lambda: in_session(child.pid) == [], 5)


@pytest.mark.parametrize("processes", [2, 6])
def test_a_head_that_is_starting_when_its_owner_ends_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'src'}{os.pathsep}{folder}")
    owner = psutil.Process(subprocess.Popen(["sleep", "600"]).pid)
    path = client.start(owner.pid, owner.create_time())
    with client._ask(path, {"do": "ray"}, ()):
        servers = [p for p in psutil.process_iter(["cmdline"]) if str(path) in (p.info["cmdline"] or ())]
        server = next(p for p in servers if p.parent() not in servers)  # forks have its name
        assert until(lambda: bool(server.children()))
        (head,) = server.children()
        assert until(lambda: len(in_session(head.pid)) >= processes)
        owner.kill()
        owner.wait()
    assert until(lambda: gone(server.pid) and in_session(head.pid) == [], 25)


def test_a_host_imports_what_its_stages_will_and_nothing_else() -> None:
    whole, least = host_module.modules(Settings()), host_module.modules(Settings("inline", tracking=False))
    assert {"ray", "mlflow.tracking", "torch._dynamo"} <= {*whole} and "torch._dynamo" in least
    assert not {name.partition(".")[0] for name in least} & {"ray", "mlflow", "alembic", "git"}
    for settings in (Settings("inline"), Settings(tracking=False)):
        assert {*least} < {*host_module.modules(settings)} < {*whole}


def test_a_host_that_cannot_start_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(client.Lost, match=r"did not start \(see \.state/host\.log\)"):
        client.start(os.getpid(), 0.0)


@pytest.mark.parametrize(
    ("version", "said"), [("3.67.1", ""), ("3.68.0", "warning: dvc 3.68.0 is newer than the tested 3.67"), ("", None)]
)
def test_another_dvc_is_told(
    version: str, said: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def installed(name: str) -> str:
        if not version:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(dvc.metadata, "version", installed)
    assert dvc.installed() is (said is not None)
    error = capsys.readouterr().err
    assert error.startswith(said or "") and error.count("\n") == (1 if said else 0)


@pytest.mark.parametrize(
    ("words", "targets", "forced"),
    [
        ([], (), False),
        (["-v"], (), False),
        (["student@a", "report"], ("student@a", "report"), False),
        (["-f"], None, True),
        (["--force", "report"], None, True),
        (["-s", "report"], None, False),
        (["--dry"], None, False),
    ],
)
def test_what_a_dvc_repro_asks_for(words: list[str], targets: tuple[str, ...] | None, forced: bool) -> None:
    found = Invocation._of(1, 2.0, words)
    assert (found.targets, found.forced) == (targets, forced)


def test_a_stages_own_process_under_dvc_imports_little() -> None:
    """It asks the host, which has imported the rest; torch alone is two seconds of every stage."""
    code = "import sys, stages.prepare; from pipeline.graph import invocation; invocation.Invocation.above()\n"
    code += "print(*({'torch', 'numpy', 'yaml', 'ray', 'mlflow'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
