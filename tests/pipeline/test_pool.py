"""The pool: order, failures, interrupts, and processes that end with the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pool_cases import UNTRACKED, plan_of, starter, waiting

from pipeline.plan.plan import ancestors, descendants
from pipeline.run import children, pool
from pipeline.run.pool import Outcome, priorities

pytestmark = pytest.mark.process
GRAPH = plan_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": []})
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _no_preload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(children, "PRELOAD", ("pool_work",))  # a stage here needs nothing else
    monkeypatch.chdir(tmp_path)
    yield


def run(tmp_path: Path, acts: dict[str, str] | None = None, jobs: int = 2, todo: str = "") -> Outcome:
    return pool.schedule(GRAPH, todo or [*GRAPH], starter(tmp_path, acts or {}), UNTRACKED, jobs=jobs)


def order(tmp_path: Path) -> list[str]:
    return (tmp_path / "order").read_text().split()


def test_ancestors_descendants_and_priorities_follow_the_graph() -> None:
    assert descendants(GRAPH, {"a"}) == {"b", "c", "d"}
    assert descendants(GRAPH, {"e"}) == set()
    assert ancestors(GRAPH, {"d"}) == {"a", "b", "c"}
    assert priorities(GRAPH, {"a": 1, "b": 10, "c": 2, "d": 1, "e": 5}) == {"a": 12, "b": 11, "c": 3, "d": 1, "e": 5}


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_stage_runs_after_the_stages_that_it_needs(tmp_path: Path, jobs: int) -> None:
    outcome = run(tmp_path, jobs=jobs)
    ran = order(tmp_path)
    assert sorted(ran) == sorted(GRAPH) == sorted(outcome.done)
    assert all(ran.index(need) < ran.index(name) for name in GRAPH for need in GRAPH[name].needs)
    assert set(json.loads((tmp_path / ".state/seconds.json").read_text())) == set(GRAPH)


def test_only_the_requested_stages_run(tmp_path: Path) -> None:
    run(tmp_path, todo="de")
    assert sorted(order(tmp_path)) == ["d", "e"]


def test_only_the_descendants_of_a_failed_stage_are_skipped(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"b": "refuse"})
    assert sorted(outcome.done) == ["a", "c", "e"]
    assert outcome.failed == {"b": ["b speaks", "b: no such file"]}
    assert outcome.skipped == {"d"} and outcome.left({"b": "x", "c": "y"}) == {"b": "x"}


def test_an_unexpected_error_is_shown_with_its_traceback(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"b": "break"})
    assert outcome.failed["b"][-1] == "ValueError: a bug" and "Traceback" in "".join(outcome.failed["b"])


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_crash_is_a_failure_that_names_the_signal(tmp_path: Path, name: str) -> None:
    outcome = run(tmp_path, {"b": name})
    assert order(tmp_path).count("b") == 1
    assert outcome.failed["b"][-1].startswith(f"ended by {name};") and outcome.skipped == {"d"}


def test_a_stage_that_was_up_to_date_is_listed_apart_from_the_done_stages(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"b": "same"}, jobs=1)
    assert outcome.same == ["b"] and sorted(outcome.done) == ["a", "c", "d", "e"]


def test_the_stage_with_the_longest_path_runs_first(tmp_path: Path) -> None:
    history = tmp_path / ".state/seconds.json"
    history.parent.mkdir()
    for seconds, first in ((1.0, "a"), (99.0, "e")):
        history.write_text(json.dumps({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": seconds}))
        (tmp_path / "order").unlink(missing_ok=True)
        run(tmp_path, jobs=1)
        assert order(tmp_path)[0] == first


def test_an_unwritable_history_hides_no_failure(tmp_path: Path) -> None:
    (tmp_path / ".state").touch()
    assert run(tmp_path, {"b": "refuse"}).failed["b"][-1] == "b: no such file"


def command(tmp_path: Path, act: str = "hang", jobs: int = 2, out: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "src")])
    return subprocess.Popen(
        [sys.executable, str(HERE / "pool_cases.py"), str(tmp_path), act, str(jobs)],
        stderr=subprocess.PIPE,
        stdout=out,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def left(pids: list[int]) -> list[psutil.Process]:
    """The processes that still run after all have had time to end."""
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(found, timeout=60)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process_of_a_command_started_with_sigint_ignored(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = command(tmp_path)
    with waiting(tmp_path, "a", "b") as pids:
        os.kill(started.pid, number)
        _, said = started.communicate()
    assert started.returncode != 0 and "KeyboardInterrupt" in said
    assert left(pids) == []


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    """The stages end although they wait and print nothing more; the processes that they started end, too."""
    started = command(tmp_path)
    with waiting(tmp_path, "a", "b") as pids:
        os.kill(started.pid, signal.SIGKILL)
        started.communicate()
    assert left(pids) == []


def test_the_work_continues_when_the_reader_of_the_output_has_ended(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    started = command(tmp_path, act="", jobs=1, out=write)
    os.close(write)
    _, error = started.communicate()
    assert started.returncode == 0, error
    assert order(tmp_path) == ["a", "b"]


def test_linear_algebra_of_a_stage_has_the_threads_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In forks of the command and in ``python -m stages``, which set the variable before NumPy reads it."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    run(tmp_path, todo="e")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    script = """if True:
        import stages.__main__, sys
        assert "numpy" not in sys.modules
        stages.__main__.threads.limit()
        import numpy, threadpoolctl
        print({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for threads in ("", "2"):
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env={**environment, "BDL_THREADS": threads}, capture_output=True, text=True)
        assert done.stdout.strip() == f"{{{threads or 1}}}", done.stderr
