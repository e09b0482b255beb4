"""Lower bounds of the makespan of stages on a cluster, in closed form."""

import math
from collections.abc import Sequence

from benchmarks.simulation.model import NETWORK, Cluster, Driver, Stage


def tails(stages: Sequence[Stage]) -> dict[str, float]:
    """Return the seconds of the longest chain from each stage on; the scheduler orders stages by these."""
    needed_by: dict[str, list[str]] = {stage.name: [] for stage in stages}
    for stage in stages:
        for need in stage.needs:
            needed_by[need].append(stage.name)
    longest = {stage.name: sum(stage.tasks) if stage.here else max(stage.tasks) for stage in stages}
    found = dict[str, float]()

    def tail(name: str) -> float:
        if name not in found:
            found[name] = longest[name] + max(map(tail, needed_by[name]), default=0.0)
        return found[name]

    for stage in stages:
        tail(stage.name)
    return found


def bounds(stages: Sequence[Stage], cluster: Cluster, driver: Driver) -> dict[str, float]:
    """Return lower bounds of the makespan in closed form, in seconds, by the name of the limit.

    No bound includes preemption, the driver's own time, the start of workers, or messages, which yield.
    """
    slots = cluster.nodes * cluster.slots
    away = [stage for stage in stages if not stage.here]
    found = {
        "work": sum(sum(stage.tasks) for stage in away) / slots,
        "longest chain": max(tails(stages).values()),
        "hub": max((_hub_seconds(stage, cluster, driver) for stage in away), default=0.0),
        "wire": sum(_saves(s, cluster) * s.checkpoint + 2 * len(s.tasks) * s.result for s in away) / NETWORK,
    }
    if cluster.data == "wire":
        found["data"] = max((_data_seconds(stage, cluster) for stage in away), default=0.0)
    if cluster.at_once:
        found["stages at once"] = sum(max(stage.tasks) for stage in stages) / cluster.at_once
    return found


def _data_seconds(stage: Stage, cluster: Cluster) -> float:
    """Return the bound for the best number of nodes: with more nodes, the last node waits longer for its data."""
    work = sum(stage.tasks) / cluster.slots
    return min(max(nodes * stage.data / NETWORK, work / nodes) for nodes in range(1, cluster.nodes + 1))


def _saves(stage: Stage, cluster: Cluster) -> int:
    if not stage.checkpoint or cluster.checkpoints == "store":
        return 0
    if stage.parts:
        return (stage.parts - 1) * len(stage.tasks)
    return sum(math.ceil(seconds / cluster.every - 1e-9) - 1 for seconds in stage.tasks)


def _hub_seconds(stage: Stage, cluster: Cluster, driver: Driver) -> float:
    saves = _saves(stage, cluster) * (driver.checkpoint + stage.checkpoint * driver.byte)
    return saves + len(stage.tasks) * stage.result * driver.byte
