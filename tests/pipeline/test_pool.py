"""The pool: order, failures, interrupts, and processes that end with the command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from pool_cases import UNTRACKED, plan_of, starter, waiting

from pipeline.plan.plan import ancestors, descendants
from pipeline.run import children, pool
from pipeline.run.pool import Outcome, priorities
from tests.pipeline import background

pytestmark = pytest.mark.process
GRAPH = plan_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": []})
CASES = Path(__file__).with_name("pool_cases.py")


@pytest.fixture(autouse=True)
def _no_preload(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(children, "PRELOAD", ("pool_work",))  # a stage here needs nothing else


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


def test_only_the_requested_stages_run_and_a_stage_that_was_up_to_date_is_listed_apart(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"e": "same"}, jobs=1, todo="de")
    assert sorted(order(tmp_path)) == ["d", "e"] and outcome.same == ["e"] and outcome.done == ["d"]
    tracker = Mock()
    pool.schedule(GRAPH, "e", starter(tmp_path, {"e": "same"}), tracker, jobs=1)
    tracker.ended.assert_called_once_with(GRAPH["e"], "SAME", [])


def test_only_the_descendants_of_a_failed_stage_are_skipped(tmp_path: Path) -> None:
    (tmp_path / ".state").touch()  # a history that cannot be written hides no failure
    outcome = run(tmp_path, {"b": "refuse"})
    assert sorted(outcome.done) == ["a", "c", "e"]
    assert outcome.failed == {"b": ["b speaks", "b: no such file"]}
    assert outcome.skipped == {"d"} and outcome.left({"b": "x", "c": "y"}) == {"b": "x"}


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_crash_is_a_failure_that_names_the_signal(tmp_path: Path, name: str) -> None:
    """An unexpected error has its traceback."""
    outcome = run(tmp_path, {"b": name, "e": "break"})
    assert order(tmp_path).count("b") == 1
    assert outcome.failed["b"][-1].startswith(f"ended by {name};") and outcome.skipped == {"d"}
    assert outcome.failed["e"][-1] == "ValueError: a bug" and "Traceback" in "".join(outcome.failed["e"])


def test_the_stage_with_the_longest_path_runs_first(tmp_path: Path) -> None:
    history = tmp_path / ".state/seconds.json"
    history.parent.mkdir()
    for seconds, first in ((1.0, "a"), (99.0, "e")):
        history.write_text(json.dumps({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": seconds}))
        (tmp_path / "order").unlink(missing_ok=True)
        run(tmp_path, jobs=1)
        assert order(tmp_path)[0] == first


def command(tmp_path: Path, act: str = "hang", jobs: int = 2, out: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    return background.start([sys.executable, str(CASES), str(tmp_path), act, str(jobs)], tmp_path, stdout=out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_ended_command_that_was_started_with_sigint_ignored_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The stages end although they wait and print nothing more; the processes that they started end, too."""
    started = command(tmp_path)
    with waiting(tmp_path, "a", "b") as pids:
        os.kill(started.pid, number)
        _, error = started.communicate()
    assert started.returncode != 0 and ("KeyboardInterrupt" in error or number == signal.SIGKILL)
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=60)  # all have time to end
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


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
