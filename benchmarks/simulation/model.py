"""The inputs and outputs of the simulation: a driver, stages, a cluster, an outcome; and the assumed figures."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NETWORK: Final = 1.25e9  # bytes a second of a node, and of the driver's machine, each way: 10 Gbit/s, assumed
STORE: Final = 0.5e9  # bytes a second of a node to an object store, which itself has no limit; assumed
REPLACED: Final = 300.0  # seconds until a preempted node returns; assumed
MESSAGES: Final = 2.0  # per second of a task: the most that a worker's report sends
HOUR: Final = 3600.0


@dataclass(frozen=True)
class Driver:
    """The costs of a driver, in seconds.

    Attributes:
        task: a stage's driver needs this for each task, including result and store.
        message: the hub needs this for a progress message; a task sends ``MESSAGES`` a second.
        checkpoint, byte: the hub needs these for a checkpoint, and for each byte of a checkpoint or result.
        warm, cold: the time from submission to the first step, in a running worker and in a worker that must start.
        stage: the driver's machine needs this for a stage; record: it needs this to record a stage with DVC at the end.
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
    def measured(cls, path: Path) -> "Driver":
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
    """Tasks that can run in parallel when all of ``needs`` are done.

    Attributes:
        tasks: the seconds of each task.
        checkpoint: bytes of a checkpoint; with 0 the tasks keep no checkpoints.
        parts: the number of equal parts of a task that end with a checkpoint, as in a search's trial; with 0,
            checkpoints are kept at fixed intervals.
        data: bytes that a node needs once; result: bytes that a task sends to the driver.
        reports: its tasks send progress messages.
        here: it runs in the driver's process and takes no slot.
    """

    name: str
    tasks: tuple[float, ...]
    needs: frozenset[str] = frozenset()
    checkpoint: float = 0.0
    parts: int = 0
    data: float = 0.0
    result: float = 0.0
    reports: bool = True
    here: bool = False


@dataclass(frozen=True)
class Cluster:
    """A cluster of machines and its settings.

    Attributes:
        nodes, slots: the number of nodes, and of parallel tasks on each.
        every: seconds between checkpoints.
        checkpoints: ``driver`` sends them through the hub, ``store`` directly to an object store.
        data: ``wire`` sends them from the driver to one node after the other, ``tree`` from any node that has them;
            ``store``: each node reads an object store.
        preempted: preemptions of a node per hour; noticed: seconds until its tasks continue on other nodes.
        at_once: the number of parallel stages; stages with the longest remaining chain start first. 0 means no limit.
    """

    nodes: int
    slots: int = 8
    every: float = 15.0
    checkpoints: str = "driver"
    data: str = "wire"
    preempted: float = 0.0
    noticed: float = 75.0  # docs/internals/faults.md: a minute for Ray, and fifteen seconds for us
    at_once: int = 0


@dataclass
class Outcome:
    """The outcome of a simulated run, in seconds and bytes.

    Attributes:
        makespan: the seconds until DVC has recorded the last stage.
        busy: seconds of slots at work that was not lost; paid: seconds of existing slots.
        lost: seconds of slots at work that was lost; preemptions: the number of preempted nodes.
        given_up: how often a task was lost more often than Ray retries it, which fails its stage.
        hub: the share of the makespan during which the busiest hub was busy.
        into, out: bytes to and from the driver's machine; peak: the sum of both per second, in the busiest minute.
        stored: bytes to and from the store; store_peak: bytes per second in the busiest minute; writes: their number.
        stages: the most stages in parallel, each a process of the driver's machine; held: a stage's results in memory.
    """

    makespan: float = 0.0
    busy: float = 0.0
    paid: float = 0.0
    lost: float = 0.0
    preemptions: int = 0
    given_up: int = 0
    hub: float = 0.0
    into: float = 0.0
    out: float = 0.0
    peak: float = 0.0
    stored: float = 0.0
    store_peak: float = 0.0
    writes: int = 0
    stages: int = 0
    held: float = 0.0
