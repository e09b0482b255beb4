"""A discrete-event simulation (simpy) of stages on a cluster.

A task needs a slot of a node (a GPU), its stage's driver, a worker, its data if its node does not have them yet, and
its own seconds, in which it sends checkpoints; then its result is sent to the driver. Each process that serves one
request at a time is a queue: each stage has its own driver and hub, all of them share the two directions of one
machine's wire, and each node has a link to a store. Nodes are preempted after exponential times; once the loss of a
task is noticed, the task continues from its last checkpoint on another node.
"""

import collections
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import simpy

from benchmarks.simulation.bounds import tails
from benchmarks.simulation.model import HOUR, MESSAGES, NETWORK, REPLACED, STORE, Cluster, Driver, Outcome, Stage
from pipeline.work.hub import RETRIES

_MINUTE: Final = 60.0
_TICK: Final = 1e-6


class _Queue:
    """A server that handles one request after the other, in the order of arrival."""

    def __init__(self) -> None:
        self.free, self.busy = 0.0, 0.0

    def take(self, now: float, seconds: float) -> float:
        """Return the time at which a piece of work that arrives now is done."""
        self.free = max(now, self.free) + seconds
        self.busy += seconds
        return self.free


class _Load:
    """Bytes over time, by the minute in which they have arrived."""

    def __init__(self) -> None:
        self.minutes: dict[int, float] = collections.defaultdict(float)

    def add(self, when: float, count: float, seconds: float) -> None:
        """Add bytes that arrived during the last ``seconds`` before ``when``."""
        first, last = int((when - seconds) // _MINUTE), int(when // _MINUTE)
        for minute in range(first, last + 1):
            self.minutes[minute] += count / (last - first + 1)

    @property
    def peak(self) -> float:
        return max(self.minutes.values(), default=0.0) / _MINUTE


@dataclass
class _Node:
    """A node with its tasks and its data; ``life`` counts its preemptions, to distinguish it from its predecessors."""

    number: int
    life: int = 0
    tasks: dict[Any, None] = field(default_factory=dict)
    data: dict[str, float] = field(default_factory=dict)
    idle: collections.Counter[str] = field(default_factory=collections.Counter)
    store: _Queue = field(default_factory=_Queue)


@dataclass
class _Desk:
    """The driver and the hub of a stage, and the times at which the nodes with its data can send them."""

    driver: _Queue = field(default_factory=_Queue)
    hub: _Queue = field(default_factory=_Queue)
    holders: list[float] = field(default_factory=lambda: [0.0])


class _Run:
    """A simulated run."""

    def __init__(self, stages: Sequence[Stage], cluster: Cluster, driver: Driver, seed: int) -> None:
        self.env, self.cluster, self.of, self.seed = simpy.Environment(), cluster, driver, seed
        self.came = Outcome()
        self.machine, self.into, self.out = _Queue(), _Queue(), _Queue()
        self.desks = {stage.name: _Desk() for stage in stages}
        self.wires, self.stores = _Load(), _Load()
        self.nodes = [_Node(number) for number in range(cluster.nodes)]
        self.slots = simpy.Store(self.env)
        for _, node in itertools.product(range(cluster.slots), self.nodes):
            self.slots.put((node, node.life))
        self.ready = simpy.Store(self.env)
        self.free, self.waiting = cluster.at_once or len(stages), list[tuple[float, int, Any]]()
        self.numbers = itertools.count()
        self.stages, self.tails, self.running = stages, tails(stages), 0

    def run(self) -> Outcome:
        self.done = {stage.name: self.env.process(self._stage(stage)) for stage in self.stages}
        self.env.process(self._dispatch())
        if self.cluster.preempted:
            for node in self.nodes:
                self.env.process(self._preempted(node))
        self.env.run(until=self.env.all_of(self.done.values()))
        came = self.came
        came.makespan = self.env.now + self.of.record * len(self.stages)
        came.paid += came.makespan * self.cluster.nodes * self.cluster.slots
        came.hub = max(desk.hub.busy for desk in self.desks.values()) / came.makespan
        came.peak, came.store_peak = self.wires.peak, self.stores.peak
        came.held = max(stage.result * len(stage.tasks) for stage in self.stages)
        return came

    def _stage(self, stage: Stage) -> Iterator[Any]:
        yield self.env.all_of([self.done[name] for name in stage.needs])
        turn = self.env.event()
        heapq.heappush(self.waiting, (-self.tails[stage.name], next(self.numbers), turn))
        self.env.process(self._let_in())
        yield turn
        self.running += 1
        self.came.stages = max(self.came.stages, self.running)
        yield self._until(self.machine.take(self.env.now, self.of.stage))
        if stage.here:
            yield self.env.timeout(sum(stage.tasks))
        else:
            yield self.env.all_of([self.env.process(self._task(stage, seconds)) for seconds in stage.tasks])
        self.running -= 1
        self.free += 1
        self.env.process(self._let_in())

    def _let_in(self) -> Iterator[Any]:
        """Start the stages with the longest remaining path, as the scheduler does."""
        yield self.env.timeout(_TICK)  # first, all stages that become ready at this moment are queued
        while self.free and self.waiting:
            self.free -= 1
            heapq.heappop(self.waiting)[2].succeed()

    def _task(self, stage: Stage, seconds: float) -> Iterator[Any]:
        desk, left, losses, begun = self.desks[stage.name], seconds, 0, self.env.now
        every = seconds / stage.parts if stage.parts else self.cluster.every
        me = self.env.active_process
        is_done = False
        while not is_done:
            place = self.env.event()
            self.ready.put(place)
            node, life = yield place
            node.tasks[me] = None
            begun = self.env.now
            try:
                yield self._until(desk.driver.take(self.env.now, self.of.task))
                is_warm = node.idle[stage.name] > 0
                node.idle[stage.name] -= is_warm
                yield self.env.timeout(self.of.warm if is_warm else self.of.cold)
                yield from self._data(stage, desk, node)
                begun = self.env.now
                while left > 0:
                    step = min(every, left) if left > every * (1 + 1e-9) else left
                    yield self.env.timeout(step)
                    if stage.reports and desk.hub.free <= self.env.now:  # a hub with a backlog gets no message
                        desk.hub.take(self.env.now, MESSAGES * step * self.of.message)
                    if stage.checkpoint and left > step:
                        yield self._until(self._saved(stage, desk, node))
                    left -= step
                    self.came.busy += step
                    begun = self.env.now
                if stage.result:
                    yield self._until(self._home(stage.result, desk))
                del node.tasks[me]
                node.idle[stage.name] += 1
                self.slots.put((node, life))
                is_done = True
            except simpy.Interrupt:
                self.came.lost += self.env.now - begun
                losses += 1
                self.came.given_up += losses % (RETRIES + 1) == 0
                yield self.env.timeout(self.cluster.noticed)

    def _dispatch(self) -> Iterator[Any]:
        """Assign free slots to tasks in the order of submission, as Ray does."""
        while True:
            place = yield self.ready.get()
            while True:
                node, life = yield self.slots.get()
                if node.life == life:
                    break
            place.succeed((node, life))

    def _until(self, when: float) -> Any:
        return self.env.timeout(max(0.0, when - self.env.now))

    def _data(self, stage: Stage, desk: _Desk, node: _Node) -> Iterator[Any]:
        if not stage.data:
            return
        if stage.name not in node.data:
            node.data[stage.name] = self._brought(stage.data, desk, node)
        yield self._until(node.data[stage.name])

    def _brought(self, size: float, desk: _Desk, node: _Node) -> float:
        """Return the time at which a node has its data."""
        now = self.env.now
        if self.cluster.data == "store":
            when = node.store.take(now, size / STORE)
            self._to_store(size, when, size / STORE)
            return when
        if self.cluster.data == "tree":
            first = desk.holders[0] == 0.0 and len(desk.holders) == 1
            when = max(now, heapq.heappop(desk.holders)) + size / NETWORK
            for _ in range(2):  # the sending node and the receiving node
                heapq.heappush(desk.holders, when)
            if not first:
                return when
        else:
            when = self.out.take(now, size / NETWORK)
        self.came.out += size
        self.wires.add(when, size, size / NETWORK)
        return when

    def _saved(self, stage: Stage, desk: _Desk, node: _Node) -> float:
        """Return the time at which a checkpoint is kept."""
        if self.cluster.checkpoints == "store":
            seconds = stage.checkpoint / STORE
            when = node.store.take(self.env.now, seconds)
            self._to_store(stage.checkpoint, when, seconds)
            self.came.writes += 1
            return when
        arrived = self._arrived(stage.checkpoint)
        return desk.hub.take(arrived, self.of.checkpoint + stage.checkpoint * self.of.byte)

    def _home(self, size: float, desk: _Desk) -> float:
        """Return the time at which the hub has a result; the driver then fetches it a second time, from Ray."""
        when = desk.hub.take(self._arrived(size), size * self.of.byte)
        self._arrived(size)
        return when

    def _arrived(self, size: float) -> float:
        when = self.into.take(self.env.now, size / NETWORK)
        self.came.into += size
        self.wires.add(when, size, size / NETWORK)
        return when

    def _to_store(self, size: float, when: float, seconds: float) -> None:
        self.came.stored += size
        self.stores.add(when, size, seconds)

    def _preempted(self, node: _Node) -> Iterator[Any]:
        draws = random.Random(f"{self.seed}-{node.number}")
        while True:
            yield self.env.timeout(draws.expovariate(self.cluster.preempted / HOUR))
            node.life += 1
            node.data.clear()
            node.idle.clear()
            self.came.preemptions += 1
            for task in node.tasks:
                task.interrupt()
            node.tasks.clear()
            self.came.paid -= REPLACED * self.cluster.slots
            yield self.env.timeout(REPLACED)
            for _ in range(self.cluster.slots):
                self.slots.put((node, node.life))


def simulate(stages: Sequence[Stage], cluster: Cluster, driver: Driver, seed: int = 0) -> Outcome:
    """Simulate a run."""
    return _Run(stages, cluster, driver, seed).run()
