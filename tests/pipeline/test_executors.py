"""Every executor: the same results, errors as they were raised, checkpoints gone on from."""

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest
import torch

from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.errors import UserError
from bdl_pipe.progress import Report
from pipeline.core.settings import Settings
from pipeline.work import cluster, hub
from pipeline.work.base import Done, Executor, Task, Work
from pipeline.work.choose import choose
from pipeline.work.cluster import named, preflight
from pipeline.work.display import Display
from pipeline.work.inline import Inline, run_here
from pipeline.work.store import Store
from tests.pipeline import fake_work

EAGER = Settings(executor="inline", checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[Executor]:
    """One embedded Ray for this file; afterwards none of its processes is left."""
    executor = choose(Settings(executor="ray", checkpoint_seconds=0.0))
    before = set(psutil.Process().children(recursive=True))
    yield executor
    executor.close()
    left = set(psutil.Process().children(recursive=True)) - before
    psutil.wait_procs(list(left), timeout=10)
    assert [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.xdist_group(__name__))])  # with ray_executor's
def executor(request: pytest.FixtureRequest) -> Executor:
    return request.getfixturevalue("ray_executor") if request.param == "ray" else Inline(EAGER)


def opened(folder: Path, identity: str = "a") -> Store:
    store = Store(folder, identity)
    store.open()
    return store


def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    tasks = [Task(f"t{i}", i, ("one",) if i % 2 else ()) for i in range(5)]
    with Display("squares") as display:
        done = executor.map(fake_work.square, tasks, shared={"one": 1, "unused": 100}, display=display)
    assert [d.result for d in done] == [0, 2, 4, 10, 16]
    assert all(d.seconds >= 0 and d.peak_bytes > 2**20 for d in done)


def test_errors_surface_as_they_were_raised(executor: Executor) -> None:
    with Display("wrong") as display:
        with pytest.raises(UserError, match=r"^the number must not be 1$"):
            executor.map(fake_work.wrong, [Task("a", 1)], shared={}, display=display)
        with pytest.raises(ZeroDivisionError, match="by two"):
            executor.map(fake_work.wrong, [Task("a", 2)], shared={}, display=display)


def test_other_tasks_are_cancelled_when_one_fails(ray_executor: Executor) -> None:
    start = time.monotonic()
    with Display("wrong") as display, pytest.raises(UserError):
        ray_executor.map(fake_work.wrong, [Task("sleeps", 0), Task("fails", 1)], shared={}, display=display)
    assert time.monotonic() - start < 45, "the sleeper, who sleeps for 60 s, was waited for"


def test_finished_work_is_not_done_again(executor: Executor, tmp_path: Path) -> None:
    store = opened(tmp_path)
    with Display("steps") as display:
        first = executor.map(fake_work.steps, [Task("a", 10)], shared={}, display=display, store=store)
        again = executor.map(fake_work.wrong, [Task("a", 1)], shared={}, display=display, store=store)
    assert first[0].result.tensors["sum"] == again[0].result.tensors["sum"] == 55
    assert again[0].seconds == first[0].seconds


def test_a_checkpoint_is_gone_on_from_and_time_adds_up(executor: Executor, tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept = State({"sum": torch.tensor(15)}, {"state": {"step": 5}, "seconds": 100.0, "peak_bytes": 0})
    store.save("a", to_bytes(kept))
    with Display("steps") as display:
        (done,) = executor.map(fake_work.steps, [Task("a", 10)], shared={}, display=display, store=store)
    assert done.result.tensors["sum"] == 55
    assert done.result.config == {"began_at": 5}
    assert 100 <= done.seconds < 200
    assert store.load("a") is None, "the finished member's checkpoint is left"


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save("a", b"\x00\x01garbage")
    store.finish("b", to_bytes(State({"sum": torch.tensor(1)}, {"state": {}, "seconds": 1.0, "peak_bytes": 1}))[:-3])
    with Display("steps") as display:
        done = Inline(EAGER).map(fake_work.steps, [Task("a", 4), Task("b", 4)], shared={}, display=display, store=store)
    assert [(int(d.result.tensors["sum"]), d.result.config["began_at"]) for d in done] == [(10, 0), (10, 0)]


def test_other_identities_are_forgotten(tmp_path: Path) -> None:
    opened(tmp_path, "a").save("t", b"old")
    later = opened(tmp_path, "b")
    assert later.load("t") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "b.lock"]
    later.clear()
    assert not tmp_path.exists()


def test_work_that_a_process_is_at_is_never_forgotten(tmp_path: Path) -> None:
    """Another run of the same row with other numbers, and one with the same, begin and end meanwhile."""
    store = opened(tmp_path, "a")
    store.save("t", b"kept")
    for identity in ("b", "a"):
        other = opened(tmp_path, identity)
        other.save("u", b"other")
        other.clear()
        assert store.load("t") == b"kept"
        store.save("t", b"kept")
        store.finish("v", b"done")
    store.clear()
    assert not tmp_path.exists()


def test_work_of_a_process_that_was_killed_is_forgotten(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from pipeline.work.store import Store;"
    code += "store = Store(Path(sys.argv[1]), 'a'); store.open(); store.save('t', b'left'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        opened(tmp_path, "b")
        assert (tmp_path / "a/t.part").read_bytes() == b"left"
        process.kill()
    opened(tmp_path, "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "b.lock"]


def test_a_folder_that_is_forgotten_while_it_is_opened_is_made_again(tmp_path: Path) -> None:
    """Two processes that open and clear the same store all the time: neither ever loses its folder."""
    code = "import sys; from pathlib import Path; from pipeline.work.store import Store\n"
    code += "for k in range(300):\n    store = Store(Path(sys.argv[1]), 'a'); store.open(); store.save('t', b'x')\n"
    code += "    store.clear()"
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    ends = [process.wait() for process in [subprocess.Popen(command) for _ in range(3)]]
    assert ends == [0, 0, 0]


def test_checkpoints_lie_in_the_drivers_folder_wherever_ray_was_started(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Display("elsewhere") as display:
        ray_executor.map(fake_work.square, [Task("a", 3)], shared={}, display=display)  # Ray starts in this folder
        monkeypatch.chdir(tmp_path)
        ray_executor.map(fake_work.steps, [Task("a", 10)], shared={}, display=display, store=opened(Path("s")))
    assert (tmp_path / "s/a/a.done").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["head(Settings())", "nullcontext('')"], ids=["head", "executor"])
def test_a_ray_of_ours_serves_this_machine_alone(way: str) -> None:
    """Every socket that listens, of the driver and all that it starts, while there are workers."""
    code = f"""
import psutil
from contextlib import nullcontext
from pipeline.work.base import Task
from pipeline.work.cluster import Cluster, head
from pipeline.work.display import Display
from pipeline.core.machine import Needs
from pipeline.core.settings import Settings
from tests.pipeline import fake_work

with {way} as address, Display("listen") as display:
    executor = Cluster(Settings(address=address))
    executor.map(fake_work.square, [Task("a", 3)], shared={{}}, display=display)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for socket in process.net_connections():
            if socket.status == psutil.CONN_LISTEN:
                print("LISTENS", socket.laddr.ip)
    executor.close()
"""
    removed = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    hosts = [line.split()[1] for line in said.stdout.splitlines() if line.startswith("LISTENS")]
    assert len(hosts) >= 4, said.stderr
    assert {host.removeprefix("::ffff:") for host in hosts} <= {"127.0.0.1", "::1"}


def test_a_lost_worker_is_replaced_from_its_checkpoint(ray_executor: Executor, tmp_path: Path) -> None:
    """The worker kills itself at step 50 of 100; the next attempt starts where it was."""
    fuse = str(tmp_path / "fuse")
    with Display("steps") as display:
        (done,) = ray_executor.map(
            fake_work.steps,
            [Task("a", 100, ("fuse",))],
            shared={"fuse": fuse},
            display=display,
            store=opened(tmp_path / "s"),
        )
    assert os.path.exists(fuse), "no worker died"
    assert done.result.tensors["sum"] == 5050
    assert done.result.config["began_at"] >= 50


@pytest.mark.slow
def test_a_task_that_gets_on_may_be_lost_often(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives each attempt up at its first loss; what has kept no checkpoint since is given up by us, too."""
    monkeypatch.setattr(cluster, "RETRIES", 0)

    def run(name: str, keeps: bool) -> State:
        with Display(name) as display:
            tasks = [Task("a", (3, keeps))]
            (done,) = ray_executor.map(
                fake_work.doomed, tasks, shared={}, display=display, store=opened(tmp_path / name)
            )
        result: State = done.result
        return result

    assert run("on", True).config["step"] == 3
    with pytest.raises(UserError, match=r"^a worker was lost"):
        run("off", False)


def test_a_folder_that_is_removed_while_mkdir_looks_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, raised = Path.mkdir, []

    def removed(self: Path, **options: bool) -> None:
        if self.name == "s" and not raised:
            raised.append(self)
            raise FileExistsError(self)  # what mkdir raises where the folder is gone when it asks what is there
        mkdir(self, **options)

    monkeypatch.setattr(Path, "mkdir", removed)
    opened(tmp_path / "s", "a").save("t", b"x")
    assert raised and (tmp_path / "s/a/t.part").exists()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        opened(tmp_path / "file", "a")


def test_what_ray_cannot_do_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine with a hundred processes in the queue: no worker started in time, five times over."""
    import ray

    def cannot(ref: object) -> None:
        raise ray.exceptions.RaySystemError("Failed to startup worker after retrying 5 times.\nThis is most often ...")

    monkeypatch.setattr(ray, "get", cannot)
    with pytest.raises(UserError, match=r"^Ray could not run it: System error: Failed to startup .* 5 times\.$"):
        hub.get(None)


def test_whether_work_is_light_is_found_out_by_its_smallest_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 s at most of it all, by its size: a try of .1 s at size 1 stands for 30 s at 300 and 90 s at 900."""
    executor = choose(Settings(executor="ray", address="127.0.0.1:9"))
    sent = RuntimeError("sent to the cluster")
    monkeypatch.setattr(executor, "_connect", lambda _: (_ for _ in ()).throw(sent))
    for sizes, here in (((300.0, 1.0), True), ((1.0, 900.0), False)):
        tasks = [Task(str(k), (k, 0.1 if size == 1.0 else 0.0), size=size) for k, size in enumerate(sizes)]
        with Display("try") as display:
            if here:
                made = executor.map(fake_work.slow_square, tasks, shared={}, display=display, light=None)
                assert [done.result for done in made] == [0, 1]
            else:
                with pytest.raises(RuntimeError, match="sent"):
                    executor.map(fake_work.slow_square, tasks, shared={}, display=display, light=None)


def test_light_work_starts_no_ray() -> None:
    executor = choose(Settings(executor="ray", address="127.0.0.1:9"))  # where connecting would fail
    with Display("light") as display:
        (done,) = executor.map(fake_work.square, [Task("a", 3)], shared={}, display=display, light=True)
        assert done.result == 9
        assert executor.map(fake_work.square, [], shared={}, display=display) == []
    executor.close()


def test_a_dead_address_is_noticed_at_once() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        start = time.monotonic()
        with Display("dead") as display, pytest.raises(UserError, match="no Ray cluster answers there"):
            choose(Settings(executor="ray", address=address)).map(
                fake_work.square, [Task("a", 3)], shared={}, display=display
            )
    assert time.monotonic() - start < 20
    for wrong in ("auto", "ray://127.0.0.1:1", "127.0.0.1"):
        with pytest.raises(UserError, match="RAY_ADDRESS must be host:port"):
            preflight(wrong)


def test_our_code_is_sent_to_every_cluster_that_is_named() -> None:
    for other in ("127.0.0.1:6379", "localhost:6379", f"{socket.gethostname()}:6379", "10.0.0.1:6379"):
        modules = [Path(path) for path in named(other)["runtime_env"]["py_modules"]]
        assert [path.name for path in modules] == ["pipeline", "stages", "bdl_pipe"]
        assert all((path / "__init__.py").is_file() for path in modules)


def test_metrics_reach_the_sink() -> None:
    told: list[tuple[dict[str, float], int]] = []
    with Display("m", lambda values, step: told.append((dict(values), step))) as display:
        display.expect(1)
        display.step("0-0", 1, 2, {"loss": 3.0})
        display.step("0-0", 2, 2, {"accuracy": 0.5})
    assert told == [({"0-0/loss": 3.0, "0-0/accuracy": 0.5}, 2)]


@dataclasses.dataclass
class _Walk:
    """A fit of ``steps`` steps that can be gone on with after each, and how many steps each attempt took."""

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


@pytest.mark.parametrize(("seconds", "sent"), [(0.0, True), (60.0, False)])
def test_what_takes_long_is_handed_over_with_its_checkpoint(
    seconds: float, sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three fits the first is tried here: given no time it leaves one step, and the workers have all three."""
    executor, walk = choose(Settings(executor="ray", checkpoint_seconds=60.0)), _Walk(steps=3)
    monkeypatch.setattr(cluster, "_TRIED_SECONDS", seconds)
    tasks = [Task(str(k), k) for k in range(3)]
    store = Store(tmp_path, "walk")
    store.open()
    handed = []

    def run(work: Work, left: list[Task], *rest: Any) -> dict[str, Done]:
        handed.extend(task.name for task in left)
        return {task.name: run_here(work, task, *rest, EAGER) for task in left}

    monkeypatch.setattr(executor, "_connect", lambda _: None)
    monkeypatch.setattr(executor, "_run", run)
    with Display("try") as display:
        made = executor.map(walk, tasks, shared={}, display=display, store=store, light=None)
    assert [int(done.result.tensors["x"]) for done in made] == [0, 1, 2]
    assert handed == (["0", "1", "2"] if sent else [])
    assert walk.attempts == ([1, 2, 3, 3] if sent else [3, 3, 3])  # no step was taken twice
