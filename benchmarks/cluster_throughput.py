"""The throughput of a cluster's driver on this machine.

    python -m benchmarks.cluster_throughput                # writes results/scale/throughput.json and .md
    python -m benchmarks.cluster_throughput --checkpoints  # checkpoints through the hub and past it: checkpoints.json

The script measures, mostly as a median of several runs: seconds to connect; progress messages and checkpoints a second
through the hub, and MB/s of checkpoints; the cost of a task among 10 to 10,000 tasks; ``ray.wait`` on as many results,
one at a time and all ready ones together, on the same cluster; seconds from submission to a task's first step, warm and
cold; the cost of a stage among 10, 100 and (``--stages``) more trivial stages, and the cost of recording them with DVC.
"""

import argparse
import contextlib
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
import torch

from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.progress import Report
from benchmarks.cluster_throughput_stages import stages
from pipeline.core import provenance, records
from pipeline.core.settings import Settings
from pipeline.work.cluster import Cluster, connected
from pipeline.work.display import Display
from pipeline.work.executor import Task
from pipeline.work.hub import HubStore, Progress, make_hub, with_plugins
from pipeline.work.store import Store

OUT: Final = Path("results/scale")
REPEATS: Final = 3
MESSAGES: Final = 2000
CHECKPOINTS: Final = {"10 kB": 10_000, "1 MB": 10**6, "30 MB": 30 * 10**6}


def nothing(payload: Any, shared: Mapping[str, Any], report: Report) -> State:
    """The work of a trivial task."""
    return State({"at": torch.tensor([time.time()], dtype=torch.float64)}, {})


def main() -> None:
    """Measure, and write the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--stages", type=int, nargs="*", default=[10, 100])
    parser.add_argument(
        "--checkpoints", action="store_true", help="compare the two ways of checkpoints, and nothing else"
    )
    asked = parser.parse_args()
    if asked.checkpoints:
        _two_ways()
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: dict[str, Any] = {"connect_seconds": _connect_seconds()}
    with connected(Settings()):
        found |= _hub() | {"tasks": [_tasks(count) for count in asked.tasks], "one_at_a_time": _waits(max(asked.tasks))}
        found |= {"first_step": _first_step(), "task_bytes": _bytes()}
    found["stages"] = [stages(count) for count in asked.stages]
    found["about"] = _about()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "throughput.json").write_text(json.dumps(found, indent=1) + "\n")
    text = page(found)
    (OUT / "throughput.md").write_text(text)
    print(text)


def _about() -> dict[str, Any]:
    return {
        "commit": provenance.commit(),
        "device": records.device_name("cpu"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "versions": f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}",
    }


def _median(measure: Callable[[], float], repeats: int = REPEATS) -> float:
    return statistics.median(measure() for _ in range(repeats))


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _connect_seconds() -> float:
    """Seconds to start Ray inside a process that has imported it."""

    def once() -> float:
        start = time.perf_counter()
        with connected(Settings()):
            return time.perf_counter() - start

    return _median(once)


def _hub() -> dict[str, Any]:
    """Messages and checkpoints a second through the hub, from one worker and from two."""

    @ray.remote(num_cpus=1)
    def report(hub: Any, store: Store, name: str, count: int) -> None:
        send = Progress(hub)
        for step in range(count):
            send(name, step, count, {"loss": 1.0 / (step + 1)})
        ray.get(hub.poll.remote())  # the hub answers after it has handled all messages

    @ray.remote(num_cpus=1)
    def save(hub: Any, store: Store, name: str, blob: bytes, count: int) -> None:
        kept = HubStore(hub, store)
        for _ in range(count):
            kept.save(name, blob)

    def rate(remote: Any, count: int, workers: int, *arguments: Any) -> float:
        """Calls a second of ``workers`` workers together, without the first call, which starts them."""
        with _store() as store:
            hub = make_hub(store)
            ray.get([remote.remote(hub, store, f"t{i}", *arguments, 1) for i in range(workers)])
            seconds = _median(
                lambda: _timed(
                    lambda: ray.get([remote.remote(hub, store, f"t{i}", *arguments, count) for i in range(workers)])
                )
            )
            ray.kill(hub)
        return workers * count / seconds

    found: dict[str, Any] = {"messages_per_second": {w: round(rate(report, MESSAGES, w)) for w in (1, 2)}}
    saves = {}
    for name, size in CHECKPOINTS.items():
        count = max(3, min(200, 10**8 // size))
        blob = os.urandom(size)
        per_second = rate(save, count, 2, blob)
        saves[name] = {"per_second": round(per_second, 1), "mb_per_second": round(per_second * size / 1e6, 1)}
    return {**found, "checkpoints": saves}


def _two_ways() -> None:
    """Measure checkpoints a second of two workers, in turn through the hub and directly to a folder."""
    rows = []

    @ray.remote(num_cpus=1)
    def save(kept: HubStore, name: str, blob: bytes, count: int) -> None:
        for _ in range(count):
            kept.save(name, blob)

    with connected(Settings()), _store() as store, tempfile.TemporaryDirectory(prefix="bdl-shared-") as folder:
        hub = make_hub(store)
        ways = {"hub": HubStore(hub, store), "folder": HubStore(hub, store.sharing(folder))}
        for name, size in CHECKPOINTS.items():
            count, blob = max(3, min(200, 10**8 // size)), os.urandom(size)

            def both(way: str, count: int, blob: bytes = blob) -> float:
                return _timed(lambda: ray.get([save.remote(ways[way], f"t{i}", blob, count) for i in range(2)]))

            for way in ways:
                both(way, 1)
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(2 * REPEATS):
                for way in ways:
                    seconds[way].append(both(way, count))
            rate = {way: 2 * count / statistics.median(each) for way, each in seconds.items()}
            row = {f"{way} a second": round(each, 1) for way, each in rate.items()}
            row |= {f"{way} MB/s": round(each * size / 1e6, 1) for way, each in rate.items()}
            rows.append({"checkpoint": name, **row, "folder over hub": round(rate["folder"] / rate["hub"], 2)})
            print(json.dumps(rows[-1]))
        ray.kill(hub)
    (OUT / "checkpoints.json").write_text(json.dumps({"rows": rows, "about": _about()}, indent=1) + "\n")


def _tasks(count: int) -> dict[str, float]:
    """Seconds of ``count`` trivial tasks, with results kept in a store or in memory."""

    def run(store: Store | None) -> float:
        executor = Cluster(Settings())
        tasks = [Task(f"t{number}", number) for number in range(count)]
        with Display("tasks") as display, contextlib.redirect_stdout(None):
            return _timed(lambda: executor.map(nothing, tasks, shared={}, display=display, store=store))

    plain = run(None) if count > 1000 else _median(lambda: run(None))
    with _store() as store:
        kept = run(store)
    return {"tasks": count, "ms_per_task": 1e3 * plain / count, "ms_per_task_with_store": 1e3 * kept / count}


def _waits(count: int) -> dict[str, float]:
    """Seconds of ``ray.wait`` on this many finished results, taken one at a time, and all that are ready together."""

    @ray.remote(num_cpus=0)
    def done(number: int) -> int:
        return number

    refs = [done.remote(number) for number in range(count)]
    ray.get(refs)

    def singly() -> None:
        pending = dict.fromkeys(refs)
        while pending:
            for ref in ray.wait(list(pending), num_returns=1, timeout=0.3)[0]:
                del pending[ref]

    def together() -> None:
        pending = dict.fromkeys(refs)
        while pending:
            for ref in ray.wait(list(pending), num_returns=len(pending), timeout=0.3)[0]:
                del pending[ref]

    return {"results": count, "one_at_a_time_seconds": _timed(singly), "all_ready_seconds": _timed(together)}


def _first_step() -> dict[str, float]:
    """Seconds from submission to a task's first step, in a running worker and in a worker that must start."""

    def once() -> float:
        executor, start = Cluster(Settings()), time.time()
        with Display("first") as display:
            (done,) = executor.map(nothing, [Task("a", 0)], shared={}, display=display)
        return float(done.result.tensors["at"][0]) - start

    cold = subprocess.run(
        [sys.executable, "-m", "benchmarks.cluster_throughput_cold"], capture_output=True, text=True, check=True
    )
    return {"warm_seconds": _median(once, 5), "cold_seconds": float(cold.stdout.split()[-1])}


def _bytes() -> dict[str, int]:
    """Bytes of a trivial task and of its result, without data and weights."""
    task = Task("0-0", 0)
    return {"task": len(pickle.dumps(with_plugins(task))), "result": len(to_bytes(nothing(None, {}, None)))}  # type: ignore[arg-type]


@contextlib.contextmanager
def _store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="bdl-store-") as folder:
        store = Store(Path(folder), "a")
        store.open()
        yield store


def page(found: Mapping[str, Any]) -> str:
    """Write the figures as a page."""
    about = found["about"]
    messages = ", ".join(f"{rate:,} ({w} workers)" for w, rate in found["messages_per_second"].items())
    waits = found["one_at_a_time"]
    ratio = waits["one_at_a_time_seconds"] / waits["all_ready_seconds"]
    return "\n".join(
        [
            "# What a driver can do",
            "",
            f"- commit {about['commit']}; {about['device']}, {about['cores']} cores; {about['versions']}",
            f"- Ray starts inside a process in {found['connect_seconds']:.1f} s.",
            f"- From submission to a task's first step: {found['first_step']['warm_seconds'] * 1e3:.0f} ms in a worker"
            f" that runs, {found['first_step']['cold_seconds']:.1f} s with Ray and the worker to be started.",
            f"- A task is {found['task_bytes']['task']:,} bytes, its result {found['task_bytes']['result']:,}; beside"
            " these the data, which go to each node once, and the weights.",
            f"- Progress messages a second through the hub: {messages}. A task sends two a second.",
            f"- `ray.wait` on {waits['results']:,} results: {waits['one_at_a_time_seconds']:.1f} s one at a time,"
            f" {waits['all_ready_seconds']:.2f} s all that are ready ({ratio:,.0f} times).",
            "",
            *_table(("Checkpoint", "a second", "MB/s"), [(k, *v.values()) for k, v in found["checkpoints"].items()]),
            *_table(("Tasks", "ms a task", "with a store"), [tuple(each.values()) for each in found["tasks"]]),
            *_table(
                ("Stages", "s a stage", "s a stage for the rest, DVC's record most of it"),
                [tuple(each.values()) for each in found["stages"]],
            ),
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[f"{c:,.3g}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else c for c in r] for r in rows]
    return [f"| {' | '.join(head)} |", f"|{' ---: |' * len(head)}", *(f"| {' | '.join(r)} |" for r in cells), ""]


if __name__ == "__main__":
    main()
