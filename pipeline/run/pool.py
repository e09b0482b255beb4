"""Run the stages of a plan, several at once, each in a process of its own (see ``children``).

The stage with the longest way to the end of the plan starts first; its length is what it took last time, or a guess
from its kind. An interrupt stops every process, and all that those have started.
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Protocol

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..core import places, signals
from ..core.load import typed
from ..core.model import Params
from ..core.settings import Settings
from ..plan import fresh
from ..plan.plan import Plan, Stage, descendants
from . import body, head
from .children import SAME, Child, stop
from .console import Lines

JOBS: Final = 3  # stages at once: two cores are busy while one stage waits for its data
_GUESS: Final = {"prepare": 30.0, "trajectory": 90.0, "teacher": 120.0, "coreset": 120.0, "student": 20.0}
_LOOK_SECONDS: Final = 0.5


@dataclass
class Outcome:
    """The stages of a plan by how they ended.

    Attributes:
        same: found up to date by their own process, since all that they need came out the same.
        failed: the last lines of each stage that failed.
        skipped: stages that need a failed one.
    """

    done: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def left(self, todo: Mapping[str, str]) -> dict[str, str]:
        """Return the stages of ``todo`` that are still out of date, with the reasons."""
        return {name: why for name, why in todo.items() if name not in self.done and name not in self.same}


class Watcher(Protocol):
    """An observer of a run of stages, such as ``tracking.Tracker``."""

    def started(self, stage: Stage) -> None: ...
    def ended(self, stage: Stage, status: str, lines: list[str]) -> None: ...


def stale(stages: Plan) -> dict[str, str]:
    """Return the stages that must run, with the reason: its own result is out of date, or something that it needs."""
    why: dict[str, str] = {}
    for name, stage in stages.items():
        reason = fresh.reason(stage)
        above = next((need for need in sorted(stage.needs) if need in why), None)
        if reason is not None:
            why[name] = reason
        elif above is not None:
            why[name] = f"{above} is to be run"
    return why


def priorities(stages: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return, for each stage, the length of the longest way from its start to the end of the plan."""
    longest = dict(seconds)
    for name in reversed(list(stages)):  # Each stage stands after what it needs.
        for need in stages[name].needs:
            longest[need] = max(longest[need], seconds[need] + longest[name])
    return longest


def run(
    stages: Plan,
    todo: Mapping[str, str],
    params: Params,
    settings: Settings,
    *,
    jobs: int,
    root: Path | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run the stages of ``todo``. A stage that fails stops what needs it, and nothing else.

    Args:
        stages: the plan, with all that ``todo`` needs.
        todo: the stages that must run, see :func:`stale`.
        jobs: how many run at once.
        root: in place of ``work``.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after all processes have been stopped.
    """

    def start(name: str) -> Child:
        return Child(name, _stage, (stages[name], params.raw, settings, root))

    return schedule(stages, todo, start, jobs=jobs, ray=head.SharedHead(settings), watcher=watcher)


def schedule(
    stages: Plan,
    todo: Collection[str],
    start: Callable[[str], Child],
    *,
    jobs: int,
    ray: head.SharedHead | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run the stages of ``todo`` in the order of their needs; :func:`run` says more.

    Args:
        start: starts the process of a stage.
        ray: answers stages that ask for a Ray head.
    """
    history = _History(places.STATE / "seconds.json")
    first, waiting, outcome, began = priorities(stages, history.of(stages)), set(todo), Outcome(), time.monotonic()
    children: dict[str, Child] = {}
    with signals.noted() as interrupt, Lines(len(todo)) as lines:
        try:
            while waiting or children:
                if interrupt.is_set():
                    raise KeyboardInterrupt
                ready = [n for n in waiting if not any(m in waiting or m in children for m in stages[n].needs)]
                for name in sorted(ready, key=lambda n: (-first[n], n))[: jobs - len(children)]:
                    waiting.discard(name)
                    children[name] = start(name)
                    lines.start(name)
                    if watcher is not None:
                        watcher.started(stages[name])
                for child in _look(children, ray, lines):
                    del children[child.name]
                    _ended(child, stages, waiting, outcome, lines, watcher)
                    if child.exit_code() == 0:
                        history.took[child.name] = child.seconds
        finally:
            for child in children.values():
                if watcher is not None:
                    watcher.ended(stages[child.name], "KILLED", [])
            stop([*children.values(), *([ray.child] if ray and ray.child else [])])
            history.write()
    outcome.seconds = time.monotonic() - began
    return outcome


def in_process(
    stages: Plan, todo: Mapping[str, str], params: Params, settings: Settings, watcher: Watcher | None = None
) -> Outcome:
    """Run the stages of ``todo`` one after the other in this process: no Ray, no DVC, no other process."""
    outcome, began = Outcome(), time.monotonic()
    for name in todo:
        stage = stages[name]
        if any(need in outcome.failed or need in outcome.skipped for need in stage.needs):
            outcome.skipped.add(name)
            continue
        if watcher is not None:
            watcher.started(stage)
        status = "FINISHED"
        try:
            ran = body.ensure(stage, params, settings)
            (outcome.done if ran else outcome.same).append(name)
            print(f"{name}: {'done' if ran else 'is up to date'}", flush=True)
        except UserError as error:
            outcome.failed[name], status = [str(error)], "FAILED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            if watcher is not None:
                watcher.ended(stage, status, outcome.failed.get(name, []))
    outcome.seconds = time.monotonic() - began
    return outcome


def _stage(stage: Stage, raw: Mapping[str, Any], settings: Settings, root: Path | None, requests: Connection) -> int:
    """Run one stage in its own process, and return the exit code.

    Args:
        raw: what params.yaml holds; a method may have functions that cannot be sent, so it is looked up here.
    """
    with places.rooted(root) if root else contextlib.nullcontext():
        ran = body.ensure(stage, typed(raw), settings, head=lambda: head.address(requests))
    return 0 if ran else SAME


def _look(children: Mapping[str, Child], ray: head.SharedHead | None, lines: Lines) -> Iterator[Child]:
    """Wait for output, requests and ends of processes for a moment, and yield the children that have ended."""
    watched = [waitable for child in children.values() for waitable in child.waitables]
    ready = set(map(id, wait([*watched, *(ray.waitables if ray else ())], timeout=_LOOK_SECONDS)))
    if ray is not None:
        ray.look()
    for child in list(children.values()):
        for text in child.lines():
            lines.say(child.name, text)
        if ray is not None and id(child.requests) in ready and child.exit_code() is None:
            ray.ask(child.requests)
        if child.exit_code() is not None:
            for text in child.close():
                lines.say(child.name, text)
            yield child
    lines.refresh()


def _ended(
    child: Child, stages: Plan, waiting: set[str], outcome: Outcome, lines: Lines, watcher: Watcher | None
) -> None:
    name, code = child.name, child.exit_code()
    if code == SAME:
        outcome.same.append(name)
    elif code == 0:
        outcome.done.append(name)
    else:
        outcome.failed[name] = child.why()
        lost = descendants(stages, {name}) & waiting
        outcome.skipped |= lost
        waiting -= lost
    how = {0: f"done, {child.seconds:.0f} s", SAME: "is up to date"}.get(code or 0, f"FAILED, {child.seconds:.0f} s")
    lines.end(name, how)
    if watcher is not None:
        watcher.ended(stages[name], "FAILED" if name in outcome.failed else "FINISHED", outcome.failed.get(name, []))


class _History:
    """A file of the seconds that each stage took last time."""

    def __init__(self, path: Path) -> None:
        self._path, self.took = path, dict[str, float]()
        try:
            self._known: dict[str, Any] = dict(json.loads(path.read_text()))
        except (OSError, ValueError):
            self._known = {}

    def of(self, stages: Plan) -> dict[str, float]:
        """Return the seconds of each stage, or else a guess from its kind."""
        return {name: self._known.get(name, _GUESS.get(stage.kind, 10.0)) for name, stage in stages.items()}

    def write(self) -> None:
        """Add what stages took now; where that fails, the next order is by an older guess."""
        text = json.dumps({**self._known, **self.took}, indent=1, sort_keys=True)
        with contextlib.suppress(OSError, UserError):  # A full disk must not hide what the stages said.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._path, text.encode())
