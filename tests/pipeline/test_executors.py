"""Every executor: the same results, errors as they were raised, and work that continues from checkpoints."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.checkpoints import Checkpointed
from bdl_pipe.errors import UserError
from bdl_pipe.progress import Report
from pipeline.core.settings import Settings
from pipeline.work import choose, cluster, hub, preflight
from pipeline.work.cluster import named
from pipeline.work.display import Display
from pipeline.work.executor import Batch, Done, Executor, Inline, Task, run_here
from pipeline.work.nodes import require_head
from pipeline.work.store import Store
from tests.pipeline import fake_work
from tests.pipeline.fake_work import run

EAGER = Settings(executor="inline", checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def ray_executor(ray_head: str) -> Iterator[Executor]:
    """A Ray executor that joins the tests' head."""
    executor = choose(Settings(executor="ray", checkpoint_seconds=0.0), lambda: ray_head)
    yield executor
    executor.close()


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def executor(request: pytest.FixtureRequest) -> Executor:
    return request.getfixturevalue("ray_executor") if request.param == "ray" else Inline(EAGER)


def opened(folder: Path, identity: str = "a") -> Store:
    store = Store(folder, identity)
    store.open()
    return store


def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    tasks = [Task(f"t{i}", i, ("one",) if i % 2 else ()) for i in range(5)]
    done = run(executor, fake_work.square, *tasks, shared={"one": 1, "unused": 100})
    assert [d.result for d in done] == [0, 2, 4, 10, 16]
    assert all(d.seconds >= 0 and d.peak_bytes > 2**20 for d in done)


def test_errors_of_tasks_are_raised_unchanged(executor: Executor) -> None:
    with pytest.raises(UserError, match=r"^the number must not be 1$"):
        run(executor, fake_work.wrong, Task("a", 1))
    with pytest.raises(ZeroDivisionError, match="by two"):
        run(executor, fake_work.wrong, Task("a", 2))


@pytest.mark.ray
def test_other_tasks_are_cancelled_when_one_task_fails(ray_executor: Executor, tmp_path: Path) -> None:
    """One task waits for a file that never comes: the test ends only if that task is cancelled."""
    with pytest.raises(UserError):
        run(ray_executor, fake_work.waits_or_fails, Task("waits", str(tmp_path / "never")), Task("fails", ""))


def test_a_finished_task_is_not_run_again(executor: Executor, tmp_path: Path) -> None:
    store = opened(tmp_path)
    (first,) = run(executor, fake_work.steps, Task("a", 10), store=store)
    (again,) = run(executor, fake_work.wrong, Task("a", 1), store=store)
    assert first.result.tensors["sum"] == again.result.tensors["sum"] == 55
    assert again.seconds == first.seconds


def test_a_task_continues_from_its_checkpoint_and_its_seconds_add_up(executor: Executor, tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept = State({"sum": torch.tensor(15)}, {"state": {"step": 5}, "seconds": 100.0, "peak_bytes": 0})
    store.save("a", to_bytes(kept))
    (done,) = run(executor, fake_work.steps, Task("a", 10), store=store)
    assert done.result.tensors["sum"] == 55 and done.result.config == {"began_at": 5}
    assert 100 <= done.seconds < 200
    assert store.load("a") is None, "the finished member's checkpoint is left"


@pytest.mark.ray
def test_results_lie_in_the_drivers_folder_wherever_ray_was_started(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ray_executor, fake_work.square, Task("a", 3))  # Ray starts in this folder
    monkeypatch.chdir(tmp_path)
    run(ray_executor, fake_work.steps, Task("a", 10), store=opened(Path("s")))
    assert (tmp_path / "s/a/a.done").is_file()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("way", ["head(Settings())", pytest.param("nullcontext('')", marks=pytest.mark.soak)])
def test_a_ray_that_we_start_listens_on_this_machine_only_and_ends(way: str) -> None:
    """All listening sockets of the driver and its processes are checked while workers run; no process is left."""
    code = f"""
import psutil
from contextlib import nullcontext
from pipeline.work.executor import Task
from pipeline.work.cluster import Cluster, head
from pipeline.work.display import Display
from pipeline.core.settings import Needs, Settings
from tests.pipeline import fake_work

with {way} as address, Display("listen") as display:
    executor = Cluster(Settings(address=address))
    executor.map(fake_work.square, [Task("a", 3)], shared={{}}, display=display)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for socket in process.net_connections():
            if socket.status == psutil.CONN_LISTEN:
                print("LISTENS", socket.laddr.ip)
    executor.close()
psutil.wait_procs(psutil.Process().children(recursive=True), timeout=30)
for process in psutil.Process().children(recursive=True):
    if process.status() != psutil.STATUS_ZOMBIE:
        print("LEFT", process.cmdline())
"""
    removed = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    hosts = [line.split()[1] for line in process.stdout.splitlines() if line.startswith("LISTENS")]
    assert len(hosts) >= 4, process.stderr
    assert "LEFT" not in process.stdout, process.stdout
    assert {host.removeprefix("::ffff:") for host in hosts} <= {"127.0.0.1", "::1"}


@pytest.mark.ray
def test_a_task_that_loses_its_worker_continues_from_its_checkpoint(ray_executor: Executor, tmp_path: Path) -> None:
    """The worker kills itself at step 50 of 100; the next attempt starts where it was."""
    task, fuse, store = Task("a", 100, ("fuse",)), tmp_path / "fuse", opened(tmp_path / "s")
    (done,) = run(ray_executor, fake_work.steps, task, shared={"fuse": str(fuse)}, store=store)
    assert fuse.exists(), "no worker died"
    assert done.result.tensors["sum"] == 5050
    assert done.result.config["began_at"] >= 50


@pytest.mark.ray
def test_a_task_that_loses_every_worker_fails_and_keeps_its_checkpoint(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are kept, so that the same command continues from the last checkpoint."""
    monkeypatch.setattr(cluster, "RETRIES", 1)
    again = partial(run, ray_executor, fake_work.doomed, Task("a", 3), store=opened(tmp_path))
    with pytest.raises(UserError, match=r"^a worker was lost"):
        again()
    assert opened(tmp_path).load("a") is not None
    assert again()[0].result.config["step"] == 3


def test_an_error_of_the_ray_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine with a hundred processes in the queue: no worker started in time, five times over."""
    import ray

    error = ray.exceptions.RaySystemError("Failed to startup worker after retrying 5 times.\nThis is most often ...")
    monkeypatch.setattr(ray, "get", Mock(side_effect=error))
    with pytest.raises(UserError, match=r"^Ray could not run the task: System error: Failed to startup .* 5 times\.$"):
        hub.get(None)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that a Ray executor sends to workers; they run in this process."""
    names = list[str]()

    def send(self: object, batch: Batch, tasks: list[Task]) -> dict[str, Done]:
        names.extend(task.name for task in tasks)
        return {task.name: run_here(batch, task, EAGER) for task in tasks}

    monkeypatch.setattr(cluster, "connected", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr(cluster.Cluster, "_run_on_workers", send)
    return names


@pytest.mark.parametrize(("sizes", "expected"), [((300.0, 1.0), []), ((1.0, 900.0), ["1"])])
def test_the_smallest_task_decides_where_the_others_run(
    sizes: tuple[float, ...], expected: list[str], sent: list[str]
) -> None:
    """Up to 60 s of work run here, estimated by size: .1 s at size 1 stands for 30 s at 300 and for 90 s at 900."""
    executor = choose(Settings(executor="ray", address="127.0.0.1:9"))
    tasks = [Task(str(k), (k, 0.1 if size == 1.0 else 0.0), size=size) for k, size in enumerate(sizes)]
    assert [done.result for done in run(executor, fake_work.slow_square, *tasks, where="try")] == [0, 1]
    assert sent == expected


def test_work_that_runs_here_starts_no_ray() -> None:
    executor = choose(Settings(executor="ray", address="127.0.0.1:9"))  # where connecting would fail
    assert [done.result for done in run(executor, fake_work.square, Task("a", 3), where="here")] == [9]
    assert run(executor, fake_work.square) == []
    executor.close()


def test_a_dashboards_address_is_refused_for_single_stages() -> None:
    settings = Settings(executor="ray", jobs="http://head:8265")
    for refused in (choose, preflight):
        with pytest.raises(UserError, match=r"^RAY_ADDRESS=http://head:8265 takes whole commands .* pipeline job -- "):
            refused(settings)
    choose(dataclasses.replace(settings, executor="inline"))


def test_a_dead_address_is_refused_before_ray_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would wait for minutes."""
    monkeypatch.setitem(sys.modules, "ray", None)  # any import of it fails
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match="no Ray cluster answers there"):
            run(choose(Settings(executor="ray", address=address)), fake_work.square, Task("a", 3))
    for wrong in ("auto", "ray://127.0.0.1:1", "127.0.0.1"):
        with pytest.raises(UserError, match="RAY_ADDRESS must be host:port"):
            require_head(wrong)


def test_our_code_and_plugins_are_sent_to_every_named_cluster(tmp_path: Path) -> None:
    for other in ("127.0.0.1:6379", "localhost:6379", f"{socket.gethostname()}:6379", "10.0.0.1:6379"):
        modules = [Path(path) for path in named(other, [tmp_path])["runtime_env"]["py_modules"]]
        assert [path.name for path in modules] == ["bdl_pipe", "bdl_report", "bdl_decisions", "pipeline", tmp_path.name]
        assert all((path / "__init__.py").is_file() for path in modules[:4])


def test_metrics_reach_the_sink_with_their_task_and_step() -> None:
    reports: list[tuple[dict[str, float], int]] = []
    with Display("m", lambda values, step: reports.append((dict(values), step))) as display:
        display.expect(1)
        display.step("0-0", 1, 2, {"loss": 3.0})
        display.step("0-0", 2, 2, {"accuracy": 0.5})
    assert reports == [({"0-0/loss": 3.0, "0-0/accuracy": 0.5}, 2)]


def test_a_curve_has_the_mean_of_the_first_reports_in_each_fiftieth_whatever_the_clock_says() -> None:
    with Display("m") as display:
        display.expect(2)
        for task in ("0-0", "0-1"):
            report = Checkpointed(task, None, display.step)
            for step in range(1, 201 if task == "0-0" else 101):
                report(step, 200, {"loss": step + 2.0 * (task == "0-1")})
    curve = display.curve()
    assert curve == [(step, step + (step <= 100)) for step in (1, *range(4, 201, 4))]


@dataclasses.dataclass
class _Walk:
    """A fit of ``steps`` steps that can continue after each step, and the number of steps of each attempt."""

    steps: int
    attempts: list[int] = dataclasses.field(default_factory=list)

    def __call__(self, payload: int, shared: object, report: Report) -> State:
        last = report.load()
        first = last.config["step"] if last else 0
        self.attempts.append(0)
        for step in range(first, self.steps):
            self.attempts[-1] += 1
            report(step + 1, self.steps)
            if report.due():
                report.save(State({"x": torch.tensor([payload])}, {"step": step + 1}))
        return State({"x": torch.tensor([payload])}, {})


@pytest.mark.parametrize(("seconds", "is_sent"), [(0.0, True), (60.0, False)])
def test_only_a_long_task_continues_on_workers_from_its_checkpoint(
    seconds: float, is_sent: bool, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three fits is tried here; without time it stops after a step, and workers run all three fits."""
    executor, walk = choose(Settings(executor="ray", checkpoint_seconds=60.0)), _Walk(steps=3)
    monkeypatch.setattr(cluster, "_TRY_SECONDS", seconds)
    tasks, store = [Task(str(k), k) for k in range(3)], opened(tmp_path)
    results = run(executor, walk, *tasks, store=store, where="try")
    assert [int(done.result.tensors["x"]) for done in results] == [0, 1, 2]
    assert sent == (["0", "1", "2"] if is_sent else [])
    assert walk.attempts == ([1, 2, 3, 3] if is_sent else [3, 3, 3])  # no step was taken twice


@pytest.mark.parametrize(("address", "cores", "seconds"), [("", 2, 300), ("", 4, 150), ("", 64, 60), ("head:1", 2, 60)])
def test_on_few_cores_more_seconds_of_work_run_without_workers(
    address: str, cores: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert cluster.few_seconds(address) == seconds


def test_a_busy_hub_gets_all_skipped_metrics_with_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, read = list[tuple[Any, ...]](), set[int]()
    report = SimpleNamespace(remote=lambda *message: sent.append(message) or len(sent) - 1)
    monkeypatch.setattr("ray.wait", lambda refs, timeout: ([ref for ref in refs if ref in read], []))
    send = hub.Progress(SimpleNamespace(report=report))
    for step in range(1, 4):
        send("a", step, 10, {"loss": float(step), f"only-{step}": 1.0})
    assert sent == [("a", 1, 10, {"loss": 1.0, "only-1": 1.0})]
    read.add(0)
    send("a", 4, 10, {"loss": 4.0})
    assert sent[1:] == [("a", 4, 10, {"loss": 4.0, "only-2": 1.0, "only-3": 1.0})]
    send("a", 10, 10, {"loss": 5.0})  # the last step is always sent
    assert sent[2:] == [("a", 10, 10, {"loss": 5.0})]
