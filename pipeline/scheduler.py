"""Runs the stages of a graph, several at once, each in a process of its own.

The stage with the longest way still to go starts first; its length is what it took last time, or a
guess from its kind. On an interrupt every process is stopped, and all that those started.
A stage that crashes (native code, a library's threads at its exit) is run once more, from its checkpoints.
"""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from bdl_pipe.files import write_bytes

from .lines import Lines

_CRASH: Final = re.compile(r"exited with -(4|6|7|8|11)\b")  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, as dvc says it
Graph = Mapping[str, Collection[str]]  # stage -> what it needs
_GUESS: Final = {"prepare": 30.0, "trajectory": 90.0, "teacher": 120.0, "coreset": 120.0, "student": 20.0}
_GRACE_SECONDS: Final = 8.0  # between the polite signal and the last one
_KEPT_LINES: Final = 15


@dataclass(frozen=True)
class Plan:
    """What to run: the stages ``todo`` of ``graph``; ``history`` is a file of how long each took."""

    graph: Graph
    todo: frozenset[str]
    history: Path

    def seconds(self) -> dict[str, float]:
        try:
            known = json.loads(self.history.read_text())
        except (OSError, json.JSONDecodeError):
            known = {}
        return {name: known.get(name, _GUESS.get(name.split("@")[0], 10.0)) for name in self.graph}

    def remember(self, seconds: Mapping[str, float]) -> None:
        self.history.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.history, json.dumps({**self.seconds(), **seconds}, indent=1, sort_keys=True).encode())


@dataclass
class Outcome:
    """Stages by how they ended; of those that failed, the last lines."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0


class Process(Protocol):
    """A stage's process, the leader of a process group of its own."""

    @property
    def pid(self) -> int: ...

    def lines(self) -> Iterator[str]:
        """What it prints, until it closes its output."""

    def wait(self) -> int:
        """Its exit code; minus the number of the signal that ended it."""


class Command:
    """A process that runs a command line."""

    def __init__(self, line: list[str]) -> None:
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        yield from self._process.stdout

    def wait(self) -> int:
        return self._process.wait()


def descendants(graph: Graph, names: Collection[str]) -> set[str]:
    """Everything that needs one of ``names``, directly or not."""
    found: set[str] = set()
    while more := {n for n, needs in graph.items() if n not in found and any(m in found or m in names for m in needs)}:
        found |= more
    return found


def ancestors(graph: Graph, names: Collection[str]) -> set[str]:
    """Everything that ``names`` need, directly or not."""
    found: set[str] = set()
    new = set(names)
    while new := {need for name in new for need in graph[name]} - found:
        found |= new
    return found


def priorities(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """Stage -> the length of the longest way from its start to the end of the graph."""
    longest: dict[str, float] = {}

    def length(name: str) -> float:
        if name not in longest:
            after = [length(other) for other, needs in graph.items() if name in needs]
            longest[name] = seconds[name] + max(after, default=0.0)
        return longest[name]

    return {name: length(name) for name in graph}


def run(plan: Plan, jobs: int, start: Callable[[str], Process]) -> Outcome:
    """Run ``plan``, at most ``jobs`` stages at once, each in the process that ``start`` makes for it.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after all processes have been stopped.
    """
    outcome, began = Outcome(), time.monotonic()
    first = priorities(plan.graph, plan.seconds())
    waiting, again, took = set(plan.todo), set[str](), dict[str, float]()
    ended: queue.Queue[_Child] = queue.Queue()
    children: dict[str, _Child] = {}
    with _stop_signals() as stop, Lines(len(waiting)) as lines:
        try:
            while waiting or children:
                if stop.is_set():
                    raise KeyboardInterrupt
                ready = [n for n in waiting if not any(m in waiting or m in children for m in plan.graph[n])]
                for name in sorted(ready, key=lambda n: (-first[n], n))[: jobs - len(children)]:
                    waiting.discard(name)
                    children[name] = _Child(name, start, lines, ended)
                child = _next(ended)
                if child is None:
                    lines.refresh()
                    continue
                del children[child.name]
                if not child.crashed or child.name in again:
                    lines.end(child.name, child.code == 0, child.seconds)
                if child.code == 0:
                    outcome.done.append(child.name)
                    took[child.name] = child.seconds
                elif child.crashed and child.name not in again:
                    again.add(child.name)
                    waiting.add(child.name)
                    lines.say(child.name, "crashed: it is run once more")
                else:
                    outcome.failed[child.name] = list(child.last)
                    lost = descendants(plan.graph, {child.name}) & waiting
                    outcome.skipped |= lost
                    waiting -= lost
        finally:
            _stop(list(children.values()))
            plan.remember(took)
    outcome.seconds = time.monotonic() - began
    return outcome


class _Child:
    """A stage that is running."""

    def __init__(self, name: str, start: Callable[[str], Process], lines: Lines, ended: "queue.Queue[_Child]") -> None:
        self.name, self.code, self.seconds = name, 0, 0.0
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lines, self._ended, self._start = lines, ended, time.monotonic()
        self.process = start(name)
        lines.start(name)
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def crashed(self) -> bool:
        """Whether it, or the stage that it ran, was ended by a fault of native code."""
        return self.code != 0 and any(_CRASH.search(line) for line in [*self.last, f"exited with {self.code}"])

    def _read(self) -> None:
        for line in self.process.lines():
            if text := line.rstrip():
                self.last.append(text)
                self._lines.say(self.name, text)
        self.code = self.process.wait()
        self.seconds = time.monotonic() - self._start
        self._ended.put(self)


def _next(ended: "queue.Queue[_Child]") -> _Child | None:
    try:
        return ended.get(timeout=0.5)
    except queue.Empty:
        return None


def _stop(children: list[_Child]) -> None:
    """An interrupt for each group, and for all that is left after a while, SIGKILL."""
    if not children:
        return
    import psutil

    family = []
    for child in children:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(child.process.pid)
            family += [process, *process.children(recursive=True)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGINT)
    _, alive = psutil.wait_procs(family, timeout=_GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C, SIGTERM and a terminal that closes: no process is ever started and then forgotten."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
