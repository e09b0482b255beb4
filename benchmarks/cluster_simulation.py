"""How far one driver goes: a simulation of clusters that are not at hand, fed with what one driver was measured to do.

    python -m benchmarks.cluster_simulation --check    # two real runs of this machine beside what is simulated of them
    python -m benchmarks.cluster_simulation            # the scenarios: results/scale/simulation.{json,md,svg}

A discrete-event simulation (simpy). A task takes a slot of a node (a GPU), the driver's time, its data where its node
has none yet, and its own seconds, in which it sends a checkpoint each so often: through the driver's hub, one after the
other, or straight to a store. Nodes are preempted after exponential times; a task that is lost goes on from its last
checkpoint on another node. Figures of the driver are those of results/scale/throughput.json; those of networks, GPUs
and stores are stated below, and none of them was measured here.
"""

import argparse
import heapq
import itertools
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import simpy
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = Path("results/scale")
NETWORK: Final = 1.25e9  # bytes a second of a node, and of the driver: 10 Gbit/s, stated
STORE: Final = 0.5e9  # bytes a second of a node to an object store, which itself has no limit; stated
REPLACED: Final = 300.0  # seconds until a preempted node is there again; stated
HOUR: Final = 3600.0
_TICK: Final = 1e-6


@dataclass(frozen=True)
class Driver:
    """What a driver does, in seconds.

    Attributes:
        task: of its own for each task, result and store included.
        message: of the hub for a progress message; a task sends two a second.
        checkpoint, byte: of the hub for a checkpoint, and for each of its bytes.
        warm, cold: from submission to a first step, in a worker that runs and in one that has to start.
        stage: of its own for a stage; record: for DVC's record of it, after the last.
    """

    task: float
    message: float
    checkpoint: float
    byte: float
    warm: float
    cold: float
    stage: float
    record: float

    @classmethod
    def measured(cls, path: Path = OUT / "throughput.json") -> "Driver":
        """Read the figures of benchmarks/cluster_throughput.py."""
        found = json.loads(path.read_text())
        saves = {name: 1 / each["per_second"] for name, each in found["checkpoints"].items()}
        sizes = {"10 kB": 1e4, "1 MB": 1e6, "30 MB": 3e7}
        byte = (saves["30 MB"] - saves["10 kB"]) / (sizes["30 MB"] - sizes["10 kB"])
        most = max(found["tasks"], key=lambda each: each["tasks"])
        stages = max(found["stages"], key=lambda each: each["stages"])
        return cls(
            task=most["ms_per_task_with_store"] / 1e3,
            message=1 / max(found["messages_per_second"].values()),
            checkpoint=saves["10 kB"],
            byte=byte,
            warm=found["first_step"]["warm_seconds"],
            cold=found["first_step"]["cold_seconds"] - found["connect_seconds"],
            stage=stages["run_seconds"],
            record=stages["other_seconds"],
        )


@dataclass(frozen=True)
class Stage:
    """Tasks that can run at once, once all of ``needs`` are done.

    Attributes:
        tasks: seconds of each.
        checkpoint: bytes of one; 0: none is kept.
        data: bytes that a node needs once.
    """

    name: str
    tasks: tuple[float, ...]
    needs: frozenset[str] = frozenset()
    checkpoint: float = 0.0
    data: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Machines, and how they are used.

    Attributes:
        nodes, slots: how many nodes, and tasks at once of each.
        every: seconds between checkpoints.
        through: ``driver`` or ``store``: where checkpoints and data go.
        preempted: times an hour that a node is taken away.
        at_once: stages at once; 0: all that can run.
    """

    nodes: int
    slots: int = 8
    every: float = 15.0
    through: str = "driver"
    preempted: float = 0.0
    at_once: int = 0


@dataclass
class Outcome:
    """What a simulated run came to, in seconds and bytes.

    Attributes:
        makespan: until DVC has recorded the last stage.
        busy: seconds of slots at tasks that were not lost; paid: seconds of slots that were there.
        driver, hub: shares of the makespan that each was at work.
        moved: bytes through the driver; stored: bytes to and from the store.
        lost: seconds of slots at work that was lost; preemptions: how many nodes.
    """

    makespan: float = 0.0
    busy: float = 0.0
    paid: float = 0.0
    driver: float = 0.0
    hub: float = 0.0
    moved: float = 0.0
    stored: float = 0.0
    lost: float = 0.0
    preemptions: int = 0


@dataclass
class _Node:
    """A node, the tasks at it, and what it has."""

    number: int
    here: bool = True
    tasks: set[Any] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    warm: int = 0


class _Run:
    """A simulated run."""

    def __init__(self, stages: Sequence[Stage], cluster: Cluster, driver: Driver, seed: int) -> None:
        self.env, self.cluster, self.of, self.seed = simpy.Environment(), cluster, driver, seed
        self.came = Outcome()
        self.driver, self.hub = simpy.Resource(self.env), simpy.Resource(self.env)
        self.wire = simpy.Resource(self.env)  # the driver's
        self.nodes = [_Node(number) for number in range(cluster.nodes)]
        self.slots = simpy.Store(self.env)
        for _, node in itertools.product(range(cluster.slots), self.nodes):
            self.slots.put(node)
        self.ready: list[tuple[float, int, Any]] = []
        self.more = self.env.event()
        self.numbers = itertools.count()
        self.gates = simpy.Resource(self.env, cluster.at_once) if cluster.at_once else None
        self.stages = stages
        self.tails = _tails(stages)

    def run(self) -> Outcome:
        done = {stage.name: self.env.process(self._stage(stage)) for stage in self.stages}
        self.done = done
        self.env.process(self._dispatch())
        if self.cluster.preempted:
            for node in self.nodes:
                self.env.process(self._preempted(node))
        self.env.run(until=self.env.all_of(done.values()))
        self.came.makespan = self.env.now + self.of.record * len(self.stages)
        self.came.paid += (self.came.makespan) * self.cluster.nodes * self.cluster.slots
        self.came.driver /= self.came.makespan
        self.came.hub /= self.came.makespan
        return self.came

    def _stage(self, stage: Stage) -> Iterator[Any]:
        yield self.env.all_of([self.done[name] for name in stage.needs])
        gate = self.gates.request() if self.gates else None
        if gate:
            yield gate
        yield from self._turn(self.driver, self.of.stage, "driver")
        left = [self.env.process(self._task(stage, seconds)) for seconds in stage.tasks]
        yield self.env.all_of(left)
        if gate and self.gates:
            self.gates.release(gate)

    def _task(self, stage: Stage, seconds: float) -> Iterator[Any]:
        left, begun = seconds, self.env.now
        while left > 0:
            place = self.env.event()
            heapq.heappush(self.ready, (-self.tails[stage.name], next(self.numbers), place))
            if not self.more.triggered:
                self.more.succeed()
            node = yield place
            me = self.env.active_process
            node.tasks.add(me)
            begun = self.env.now
            try:
                yield from self._turn(self.driver, self.of.task, "driver")
                yield self.env.timeout(self.of.warm if node.warm else self.of.cold)
                node.warm += 1
                yield from self._data(stage, node)
                begun = self.env.now
                while left > 0:
                    step = min(self.cluster.every, left)
                    yield self.env.timeout(step)
                    if stage.checkpoint and left > step:
                        yield from self._save(stage, step)
                    left -= step
                    self.came.busy += step
                    begun = self.env.now
                node.tasks.discard(me)
                yield self.slots.put(node)
            except simpy.Interrupt:
                self.came.lost += self.env.now - begun
                node.tasks.discard(me)

    def _dispatch(self) -> Iterator[Any]:
        """Give free slots to the tasks with most work behind them."""
        while True:
            node = yield self.slots.get()
            yield self.env.timeout(_TICK)  # what ends at this moment may make others ready
            if not node.here:
                continue
            while not self.ready:
                self.more = self.env.event()
                yield self.more
            if not node.here:
                continue
            heapq.heappop(self.ready)[2].succeed(node)

    def _turn(self, what: simpy.Resource, seconds: float, name: str) -> Iterator[Any]:
        with what.request() as turn:
            yield turn
            yield self.env.timeout(seconds)
            setattr(self.came, name, getattr(self.came, name) + seconds)

    def _data(self, stage: Stage, node: _Node) -> Iterator[Any]:
        if not stage.data or stage.name in node.data:
            return
        if self.cluster.through == "store":
            yield self.env.timeout(stage.data / STORE)
            self.came.stored += stage.data
        else:
            with self.wire.request() as turn:
                yield turn
                if stage.name not in node.data:  # another task of this node has brought it meanwhile
                    yield self.env.timeout(stage.data / NETWORK)
                    self.came.moved += stage.data
        node.data.add(stage.name)

    def _save(self, stage: Stage, since: float) -> Iterator[Any]:
        told = 2 * since * self.of.message
        if self.cluster.through == "store":
            yield from self._turn(self.hub, told, "hub")
            yield self.env.timeout(stage.checkpoint / STORE)
            self.came.stored += stage.checkpoint
        else:
            yield from self._turn(self.hub, told + self.of.checkpoint + stage.checkpoint * self.of.byte, "hub")
            self.came.moved += stage.checkpoint

    def _preempted(self, node: _Node) -> Iterator[Any]:
        draws = random.Random(f"{self.seed}-{node.number}")
        while True:
            yield self.env.timeout(draws.expovariate(self.cluster.preempted / HOUR))
            node.here, node.warm = False, 0
            node.data.clear()
            self.came.preemptions += 1
            for task in list(node.tasks):
                task.interrupt()
            node.tasks.clear()
            self.came.paid -= REPLACED * self.cluster.slots
            self.slots.items[:] = [each for each in self.slots.items if each is not node]
            yield self.env.timeout(REPLACED)
            node.here = True
            for _ in range(self.cluster.slots):
                self.slots.put(node)


def simulate(stages: Sequence[Stage], cluster: Cluster, driver: Driver, seed: int = 0) -> Outcome:
    """Simulate a run."""
    return _Run(stages, cluster, driver, seed).run()


def _tails(stages: Sequence[Stage]) -> dict[str, float]:
    """Seconds of the longest chain from each stage on, as the scheduler orders them."""
    needed_by: dict[str, list[str]] = {stage.name: [] for stage in stages}
    for stage in stages:
        for need in stage.needs:
            needed_by[need].append(stage.name)
    longest, tails = {stage.name: max(stage.tasks) for stage in stages}, dict[str, float]()

    def tail(name: str) -> float:
        if name not in tails:
            tails[name] = longest[name] + max(map(tail, needed_by[name]), default=0.0)
        return tails[name]

    for stage in stages:
        tail(stage.name)
    return tails


# The scenarios: what is run, and the stated figures.

_UCI, _IMAGES, _RESNET, _CORESET = 60.0, 3 * HOUR, 6 * HOUR, 5.5 * HOUR
TABLES: Final[Mapping[str, Mapping[str, tuple[float, float, float]]]] = {
    # a task's seconds on a GPU by stage kind, bytes of a checkpoint, of the data; stated, but for the coreset's
    # 5.5 hours and the 165 s of its chain, which are the paper's (Lee et al. 2025, tables 5 and 12)
    **{
        name: {"trajectory": (_UCI, 1e5, 1e6), "student": (_UCI, 1e5, 1e6), "evaluate": (5.0, 0.0, 1e6)}
        for name in ("ciber-table1", "ciber-table2", "vbll-table2", "vbll-table3")
    },
    "ciber-table3": {
        "trajectory": (_IMAGES, 3e8, 2e8),
        "teacher": (_IMAGES, 3e8, 2e8),
        "student": (600.0, 3e8, 2e8),
        "evaluate": (120.0, 0.0, 2e8),
    },
    "inducing-table2": {
        "trajectory": (_RESNET, 2e8, 2e8),
        "student": (_RESNET, 2e8, 2e8),
        "evaluate": (120.0, 0.0, 2e8),
    },
    **{
        name: {"trajectory": (_IMAGES, 3e8, 2e8), "student": (_IMAGES, 3e8, 2e8), "evaluate": (120.0, 0.0, 2e8)}
        for name in ("vbll-table1", "vbll-table4")
    },
    **{
        name: {
            "trajectory": (1800.0, 3e6, 2e8),
            "coreset": (_CORESET, 3e7, 2e8),
            "student": (165.0, 3e6, 2e8),
            "evaluate": (60.0, 0.0, 2e8),
        }
        for name in ("vbpc-table1", "vbpc-table8", "vbpc-table9")
    },
}


def paper_tables() -> list[Stage]:
    """The stages of all tables of ``params/paper``, as the plan has them, at the stated seconds."""
    from pipeline.core.params import read_yaml, typed
    from pipeline.graph.plan import plan

    stages = []
    for table, costs in TABLES.items():
        params = typed(read_yaml(ROOT / f"params/paper/{table}.yaml"))
        for name, stage in plan(params).items():
            seconds, checkpoint, data = costs.get(stage.kind, (10.0, 0.0, 0.0))
            count = 1
            if stage.kind in ("trajectory", "teacher", "coreset", "student"):
                run = params.run(stage.kind, stage.key)
                count = run.spec.seeds * params.datasets[run.spec.dataset].splits
            needs = frozenset(f"{table}/{need}" for need in stage.needs)
            stages.append(Stage(f"{table}/{name}", (seconds,) * count, needs, checkpoint, data))
    return stages


def sweep(trials: int = 10_000, seed: int = 0) -> list[Stage]:
    """Trials of ten minutes in the mean, log-normal, with checkpoints of 30 MB and CIFAR's bytes."""
    draws = random.Random(seed)
    seconds = tuple(600.0 * draws.lognormvariate(-0.125, 0.5) for _ in range(trials))
    return [Stage("sweep", seconds, checkpoint=3e7, data=2e8)]


def imagenet(seeds: int = 64) -> list[Stage]:
    """Fits of twelve hours on 150 GB of images, checkpoints of 200 MB."""
    return [Stage("imagenet", (12 * HOUR,) * seeds, checkpoint=2e8, data=1.5e11)]


def scenarios(driver: Driver) -> list[dict[str, Any]]:
    """Simulate all of them."""
    found = []

    def add(name: str, stages: Sequence[Stage], cluster: Cluster) -> None:
        came = simulate(stages, cluster, driver)
        found.append({"scenario": name, **asdict(cluster), **asdict(came)})
        print(
            f"{name}: {cluster.nodes * cluster.slots} slots, {cluster.through}: {came.makespan / HOUR:.2f} h",
            flush=True,
        )

    tables = paper_tables()
    for through, gpus in itertools.product(("driver", "store"), (8, 16, 32, 64, 128, 256, 512, 1024)):
        add("tables", tables, Cluster(gpus // 8, every=60.0, through=through))
    for through, rate in itertools.product(("driver", "store"), (0.0, 0.05, 0.5)):
        add("sweep", sweep(), Cluster(1000, slots=1, every=60.0, through=through, preempted=rate))
    for nodes in (10, 30, 100, 300, 1000):
        add("sweep, nodes", sweep(), Cluster(nodes, slots=1, every=60.0, preempted=0.05))
    for through in ("driver", "store"):
        add("imagenet", imagenet(), Cluster(8, every=600.0, through=through))
    return found


# Two real runs, and what is simulated of them.


def work(payload: tuple[float, int], shared: Mapping[str, Any], report: Any) -> Any:
    """Sleep for so long, with checkpoints of so many bytes: a task that needs no core."""
    import torch

    from bdl_pipe.artifacts import State

    seconds, size = payload
    blob = State({"blob": torch.zeros(size, dtype=torch.uint8)}, {})
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.05, left))
        report(int(100 * (1 - left / seconds)), 100)
        if report.due():
            report.save(blob)
    return State({"done": torch.zeros(1)}, {})


def real_tasks(driver: Driver, count: int = 240, size: int = 10**6, every: float = 0.5) -> dict[str, float]:
    """Tasks of a second in the mean on Ray's two workers, through the executor and its hub."""
    from pipeline.core.executors import Task
    from pipeline.core.executors.cluster import Cluster as Executor
    from pipeline.core.executors.cluster import connected
    from pipeline.core.executors.display import Display
    from pipeline.core.executors.store import Store
    from pipeline.core.settings import Settings

    draws = random.Random(0)
    seconds = tuple(draws.lognormvariate(-0.125, 0.5) for _ in range(count))
    settings = Settings(checkpoint_seconds=every)
    with tempfile.TemporaryDirectory(prefix="bdl-real-") as folder, connected(settings), Display("tasks") as display:
        store = Store(Path(folder), "a")
        store.open()
        tasks = [Task(f"t{number}", (each, size)) for number, each in enumerate(seconds)]
        start = time.perf_counter()
        Executor(settings).map(work, tasks, shared={}, display=display, store=store)
        real = time.perf_counter() - start
    alone = replace(driver, stage=0.0, record=0.0)
    stages = [Stage("tasks", seconds, checkpoint=size)]
    came = simulate(stages, Cluster(os.cpu_count() or 1, slots=1, every=every), alone)
    return {"real": real, "simulated": came.makespan, "tasks": count}


def real_graph(driver: Driver) -> dict[str, float]:
    """Boston's rows of params.yaml: one stage at a time gives the seconds, with which two at a time are foretold."""
    from pipeline.core.params import read_yaml, typed
    from pipeline.graph.plan import plan

    raw = read_yaml(ROOT / "params.yaml")
    for section in ("trajectories", "teachers", "coresets", "runs"):
        raw[section] = {key: row for key, row in raw[section].items() if row["dataset"] == "boston"}
    raw["datasets"] = {"boston": raw["datasets"]["boston"]}
    stages = plan(typed(raw))
    seconds, walls = dict[str, float](), dict[int, float]()
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory(prefix="bdl-graph-") as folder:
            place = Path(folder)
            names = ("pipeline", "stages", "src", "plugins")
            for name in names:
                shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            (place / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
            environment = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{place / 'src'}", "BDL_TRACKING": "off"}
            environment |= {"BDL_EXECUTOR": "inline", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "pipeline", "repro", "-j", str(jobs)]
            said = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, check=True
            ).stdout
            (walls[jobs],) = (
                float(line.split(" in ")[1].split()[0]) for line in said.splitlines() if "stages done" in line
            )
            if jobs == 1:
                seconds = json.loads((place / ".state/seconds.json").read_text())
    jobs = [Stage(name, (seconds[name],), frozenset(stage.needs)) for name, stage in stages.items()]
    here = replace(driver, task=0.0, warm=0.0, cold=0.0, stage=0.0, record=0.0)  # in the stages' seconds already
    came = simulate(jobs, Cluster(1, slots=2), here)
    return {"real": walls[2], "simulated": came.makespan, "one at a time": walls[1], "stages": len(jobs)}


def main() -> None:
    """Check, or simulate, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="two real runs of this machine, instead of the scenarios")
    driver = Driver.measured()
    if parser.parse_args().check:
        checks: dict[str, Callable[[Driver], dict[str, float]]] = {"tasks": real_tasks, "graph": real_graph}
        found: Any = {name: check(driver) for name, check in checks.items()}
        (OUT / "simulation_check.json").write_text(json.dumps({**found, "about": _about()}, indent=1) + "\n")
        for name, each in found.items():
            off = each["simulated"] / each["real"] - 1
            print(f"{name}: real {each['real']:.1f} s, simulated {each['simulated']:.1f} s ({off:+.1%})")
        return
    found = {"driver": asdict(driver), "runs": scenarios(driver), "about": _about()}
    (OUT / "simulation.json").write_text(json.dumps(found, indent=1) + "\n")
    (OUT / "simulation.md").write_text(page(found["runs"]))
    draw(found["runs"])
    print(page(found["runs"]))


def _about() -> dict[str, Any]:
    from pipeline.stages import records
    from pipeline.tracking import provenance

    return {
        "commit": provenance.commit(),
        "device": records.device_name("cpu"),
        "cores": os.cpu_count(),
        "versions": f"Python {platform.python_version()}, simpy {simpy.__version__}",
    }


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Write the scenarios as a table."""
    head = ("scenario", "slots", "through", "preempted", "hours", "used", "driver", "hub", "GB/s", "lost", "slot hours")
    lines = [f"| {' | '.join(head)} |", f"| --- | ---: | --- |{' ---: |' * (len(head) - 3)}"]
    for run in runs:
        gone = 1e-9 * (run["moved"] + run["stored"]) / run["makespan"]
        cells = (
            run["scenario"],
            f"{run['nodes'] * run['slots']:,}",
            run["through"],
            f"{run['preempted']:g}",
            f"{run['makespan'] / HOUR:.2f}",
            f"{run['busy'] / run['paid']:.0%}",
            f"{run['driver']:.1%}",
            f"{run['hub']:.1%}",
            f"{gone:.3f}",
            f"{run['lost'] / max(run['busy'], 1.0):.2%}",
            f"{run['paid'] / HOUR:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw makespan and use against slots, of the tables and the sweep."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, through, label in (
        ("tables", "driver", "tables, by the driver"),
        ("tables", "store", "tables, by a store"),
        ("sweep, nodes", "driver", "10,000 trials"),
    ):
        of = [run for run in runs if run["scenario"] == name and run["through"] == through]
        slots = [run["nodes"] * run["slots"] for run in of]
        left.loglog(slots, [run["makespan"] / HOUR for run in of], marker="o", label=label)
        right.semilogx(slots, [100 * run["busy"] / run["paid"] for run in of], marker="o", label=label)
    left.set(xlabel="slots", ylabel="hours")
    right.set(xlabel="slots", ylabel="slots at work, %", ylim=(0, 105))
    left.legend(frameon=False)
    figure.savefig(OUT / "simulation.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
