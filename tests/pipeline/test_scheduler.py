"""The scheduler: order, failures, interrupts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from scheduler_cases import Command, plan_of

from pipeline.plan.plan import ancestors, descendants
from pipeline.run.scheduler import Process, Todo, priorities, run

GRAPH = plan_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": []})

HERE = Path(__file__).parent
PATHS = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
}


def plan(tmp_path: Path, *todo: str) -> Todo:
    return Todo(GRAPH, frozenset(todo or GRAPH), tmp_path / "state" / "seconds.json")


def shell(tmp_path: Path, special: dict[str, str] | None = None) -> Callable[[str], Process]:
    """A stage writes its name to ``order``, at its end."""

    def start(name: str) -> Process:
        return Command(["sh", "-c", (special or {}).get(name, f"echo {name} >> {tmp_path}/order")])

    return start


def test_what_hangs_on_what() -> None:
    assert descendants(GRAPH, {"a"}) == {"b", "c", "d"}
    assert descendants(GRAPH, {"e"}) == set()
    assert ancestors(GRAPH, {"d"}) == {"a", "b", "c"}
    assert priorities(GRAPH, {"a": 1, "b": 10, "c": 2, "d": 1, "e": 5}) == {"a": 12, "b": 11, "c": 3, "d": 1, "e": 5}


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_stage_runs_after_what_it_needs(tmp_path: Path, jobs: int) -> None:
    outcome = run(plan(tmp_path), jobs, shell(tmp_path))
    order = (tmp_path / "order").read_text().split()
    assert sorted(order) == sorted(GRAPH) == sorted(outcome.done)
    assert all(order.index(need) < order.index(name) for name in GRAPH for need in GRAPH[name].needs)
    assert set(json.loads((tmp_path / "state/seconds.json").read_text())) == set(GRAPH)


def test_only_what_is_asked_for_runs(tmp_path: Path) -> None:
    run(plan(tmp_path, "d", "e"), 2, shell(tmp_path))
    assert sorted((tmp_path / "order").read_text().split()) == ["d", "e"]


def test_a_failure_stops_its_descendants_only(tmp_path: Path) -> None:
    outcome = run(plan(tmp_path), 2, shell(tmp_path, {"b": "echo first; echo no such file >&2; exit 3"}))
    assert sorted(outcome.done) == ["a", "c", "e"]
    assert outcome.failed == {"b": ["first", "no such file"]}
    assert outcome.skipped == {"d"}


@pytest.mark.parametrize("name", ["SEGV", "KILL"])
def test_a_crash_is_a_failure_that_says_how(tmp_path: Path, name: str) -> None:
    outcome = run(plan(tmp_path), 2, shell(tmp_path, {"b": f"echo b >> {tmp_path}/tries; kill -{name} $$"}))
    assert (tmp_path / "tries").read_text().split() == ["b"]
    assert outcome.failed["b"][-1].startswith(f"ended by SIG{name};") and outcome.skipped == {"d"}


def test_a_stage_whose_inputs_came_out_the_same_is_left_alone(tmp_path: Path) -> None:
    """It is asked for once all that it needs is there, and what needs it goes on."""
    asked = []

    def wanted(name: str) -> bool:
        asked.append(name)
        return name != "b"

    outcome = run(plan(tmp_path), 1, shell(tmp_path), wanted)
    assert outcome.same == ["b"] and sorted(outcome.done) == ["a", "c", "d", "e"]
    assert sorted(asked) == sorted(GRAPH) and asked.index("a") < asked.index("b") < asked.index("d")


def test_the_longest_way_goes_first(tmp_path: Path) -> None:
    history = tmp_path / "state" / "seconds.json"
    history.parent.mkdir()
    for seconds, first in ((1.0, "a"), (99.0, "e")):
        history.write_text(json.dumps({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": seconds}))
        (tmp_path / "order").unlink(missing_ok=True)
        run(plan(tmp_path), 1, shell(tmp_path))
        assert (tmp_path / "order").read_text().split()[0] == first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """Stages that start children, one of which ignores SIGINT's default handling by its shell."""
    text = f"""
import sys
from pathlib import Path
from pipeline.run.scheduler import Todo, run
from scheduler_cases import Command, plan_of
sleeper = ["sh", "-c", "sleep 300 & echo $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids; wait"]
todo = Todo(plan_of({{"a": [], "b": []}}), frozenset("ab"), Path("{tmp_path}/seconds.json"))
run(todo, 2, lambda name: Command(sleeper))
"""
    started = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True, env=PATHS)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 4:
        assert time.monotonic() < deadline and started.poll() is None
        time.sleep(0.05)
    os.kill(started.pid, number)
    _, said = started.communicate(timeout=60)
    assert started.returncode != 0 and "KeyboardInterrupt" in said
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


def test_the_work_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    text = f"""
from pathlib import Path
from pipeline.run.scheduler import Todo, run
from scheduler_cases import Command, plan_of
start = lambda name: Command(["sh", "-c", f"echo hello; echo {{name}} >> {tmp_path}/order"])
todo = Todo(plan_of({{"a": [], "b": ["a"]}}), frozenset("ab"), Path("{tmp_path}/seconds.json"))
print(run(todo, 1, start))
"""
    read, write = os.pipe()
    os.close(read)
    subprocess.run([sys.executable, "-c", text], stdout=write, check=True, env=PATHS)
    os.close(write)
    assert (tmp_path / "order").read_text().split() == ["a", "b"]


def test_a_history_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    outcome = run(plan(tmp_path), 2, shell(tmp_path, {"b": "echo no such file >&2; exit 3"}))
    assert outcome.failed == {"b": ["no such file"]} and sorted(outcome.done) == ["a", "c", "e"]
