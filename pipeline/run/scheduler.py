"""Runs the stages of a plan, several at once, each in a process of its own.

The stage with the longest way still to go starts first; its length is what it took last time, or a
guess from its kind. On an interrupt every process is stopped, and all that those started.
"""

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..plan.plan import Plan, descendants
from .client import Lost
from .console import Lines

_GUESS: Final = {"prepare": 30.0, "trajectory": 90.0, "teacher": 120.0, "coreset": 120.0, "student": 20.0}
_GRACE_SECONDS: Final = 8.0  # between the polite signal and the last one
_KEPT_LINES: Final = 15


@dataclass(frozen=True)
class Todo:
    """A plan with the ``names`` of its stages that are to be run; ``history`` is a file of how long each took."""

    plan: Plan
    names: frozenset[str]
    history: Path

    def seconds(self) -> dict[str, float]:
        """Return how long each stage of the plan took last time, or else a guess from its kind."""
        try:
            known = json.loads(self.history.read_text())
        except (OSError, json.JSONDecodeError):
            known = {}
        return {name: known.get(name, _GUESS.get(stage.kind, 10.0)) for name, stage in self.plan.items()}

    def remember(self, seconds: Mapping[str, float]) -> None:
        """Write into the history how long stages took; where that fails, the next order is by an older guess."""
        text = json.dumps({**self.seconds(), **seconds}, indent=1, sort_keys=True)
        with contextlib.suppress(OSError, UserError):  # a full disk must not hide what the stages said
            self.history.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.history, text.encode())


@dataclass
class Outcome:
    """All stages by how they ended, with the last lines of those that failed.

    Attributes:
        same: were found up to date when all that they need was there.
    """

    done: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0


class Process(Protocol):
    """A stage's process, the leader of a process group of its own."""

    @property
    def pid(self) -> int: ...

    def lines(self) -> Iterator[str]:
        """Yield the lines that the stage prints, until it closes its output."""

    def wait(self) -> int:
        """Wait for the exit code: minus the number of the signal, where one ended the process."""


def priorities(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return, for each stage, the length of the longest way from its start to the end of the plan."""
    longest = dict(seconds)
    for name in reversed(list(plan)):  # each stands after what it needs
        for need in plan[name].needs:
            longest[need] = max(longest[need], seconds[need] + longest[name])
    return longest


def run(
    todo: Todo, jobs: int, start: Callable[[str], Process], wanted: Callable[[str], bool] = lambda name: True
) -> Outcome:
    """Run ``todo``, at most ``jobs`` stages at once.

    Args:
        start: makes the process of a stage.
        wanted: asked when all that a stage needs is there: whether it has still to be run.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after all processes have been stopped.
    """
    outcome, began = Outcome(), time.monotonic()
    plan, first = todo.plan, priorities(todo.plan, todo.seconds())
    waiting, took = set(todo.names), dict[str, float]()
    ended: queue.Queue[_Child] = queue.Queue()
    children: dict[str, _Child] = {}
    with _stop_signals() as stop, Lines(len(waiting)) as lines:
        try:
            while waiting or children:
                if stop.is_set():
                    raise KeyboardInterrupt
                ready = [n for n in waiting if not any(m in waiting or m in children for m in plan[n].needs)]
                for name in sorted(ready, key=lambda n: (-first[n], n))[: jobs - len(children)]:
                    waiting.discard(name)
                    if wanted(name):
                        children[name] = _Child(name, start, lines, ended)
                    else:
                        outcome.same.append(name)
                        lines.skip(name)
                if not children:
                    continue
                child = _next(ended)
                if child is None:
                    lines.refresh()
                    continue
                del children[child.name]
                lines.end(child.name, child.code == 0, child.seconds)
                if child.code == 0:
                    outcome.done.append(child.name)
                    took[child.name] = child.seconds
                else:
                    outcome.failed[child.name] = [*child.last, *child.ending]
                    lost = descendants(plan, {child.name}) & waiting
                    outcome.skipped |= lost
                    waiting -= lost
        finally:
            _stop(list(children.values()))
            todo.remember(took)
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
    def ending(self) -> list[str]:
        """Say how the stage ended, where it could not say so itself."""
        if self.code >= 0:
            return []
        return [f"ended by {signal.Signals(-self.code).name}; the same command goes on from its last checkpoint"]

    def _read(self) -> None:
        for line in self.process.lines():
            if text := line.rstrip():
                self.last.append(text)
                self._lines.say(self.name, text)
        try:
            self.code = self.process.wait()
        except Lost as error:
            self.code = 1
            self.last.append(str(error))
        self.seconds = time.monotonic() - self._start
        self._ended.put(self)


def _next(ended: "queue.Queue[_Child]") -> _Child | None:
    try:
        return ended.get(timeout=0.5)
    except queue.Empty:
        return None


def _stop(children: list[_Child]) -> None:
    """Send each group an interrupt, and SIGKILL to all that is left after a while."""
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
    """Yield an event that Ctrl-C, SIGTERM and a terminal that closes set.

    So no process is ever started and then forgotten.
    """
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
