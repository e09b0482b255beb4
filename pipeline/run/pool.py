"""Run the stages of a plan, several at once, each in its own process (see ``children``).

The stage with the longest path to the end of the plan starts first; path lengths are the stages' seconds in their last
runs, or guesses from the stage kinds. An interrupt stops all processes and their descendants.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Self

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..core import places, signals
from ..core.load import typed
from ..core.model import Params
from ..core.settings import Settings
from ..plan import plan as plans
from ..plan.plan import Plan, Stage, descendants
from ..tracking import Tracker
from . import body, head
from .children import SAME, Child, stop

JOBS: Final = 3  # stages at once, so that two cores are busy while one stage waits for its data
_GUESS: Final = {"prepare": 30.0, "trajectory": 90.0, "teacher": 120.0, "coreset": 120.0, "student": 20.0}
_LOOK_SECONDS: Final = 0.5
_HISTORY: Final = places.STATE / "seconds.json"  # the seconds of the last run of each stage


@dataclass
class Outcome:
    """The outcome of each stage.

    Attributes:
        same: stages that their process found up to date, because their inputs came out unchanged.
        failed: the last lines of each stage that failed.
        skipped: stages that need a failed stage.
    """

    done: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def left(self, todo: Mapping[str, str]) -> dict[str, str]:
        """Return the stages of ``todo`` that are still out of date, with the reasons."""
        return {name: why for name, why in todo.items() if name not in self.done and name not in self.same}


def stale(stages: Plan) -> dict[str, str]:
    """Return the stages that must run, with the reason: the stage or one of its needs is out of date."""
    why: dict[str, str] = {}
    for name, stage in stages.items():
        reason = plans.reason(stage)
        above = next((need for need in sorted(stage.needs) if need in why), None)
        if reason is not None:
            why[name] = reason
        elif above is not None:
            why[name] = f"{above} has to run first"
    return why


def priorities(stages: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return, for each stage, the length in seconds of the longest path from its start to the end of the plan."""
    longest = dict(seconds)
    for name in reversed(list(stages)):  # each stage is after its needs
        for need in stages[name].needs:
            longest[need] = max(longest[need], seconds[need] + longest[name])
    return longest


def run(
    stages: Plan,
    todo: Mapping[str, str],
    params: Params,
    settings: Settings,
    tracker: Tracker,
    *,
    jobs: int,
    root: Path | None = None,
) -> Outcome:
    """Run the stages of ``todo``. A failed stage stops only the stages that need it.

    Args:
        stages: the plan, including everything that ``todo`` needs.
        todo: the stages that must run, see :func:`stale`.
        tracker: shows the stages while they run.
        jobs: the largest number of stages at once.
        root: a folder that replaces ``work``.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM was received; all processes have been stopped.
    """

    with signals.noted(), head.shared(settings) as place:  # so that the head is stopped after an interrupt, too

        def start(name: str) -> Child:
            return Child(name, _stage, (stages[name], params.raw, settings, root, place))

        return schedule(stages, todo, start, tracker, jobs=jobs)


def schedule(
    stages: Plan, todo: Collection[str], start: Callable[[str], Child], tracker: Tracker, *, jobs: int
) -> Outcome:
    """Run the stages of ``todo`` in the order of their needs; see :func:`run`.

    Args:
        start: starts the process of a stage.
    """
    seconds = places.kept(_HISTORY)
    first = priorities(stages, {name: seconds.get(name, _GUESS.get(s.kind, 10.0)) for name, s in stages.items()})
    waiting, outcome, began = set(todo), Outcome(), time.monotonic()
    children: dict[str, Child] = {}
    with signals.noted() as interrupt, _Lines() as lines:
        try:
            while waiting or children:
                if interrupt.is_set():
                    raise KeyboardInterrupt
                ready = [n for n in waiting if not any(m in waiting or m in children for m in stages[n].needs)]
                for name in sorted(ready, key=lambda n: (-first[n], n))[: jobs - len(children)]:
                    waiting.discard(name)
                    children[name] = start(name)
                    lines.started(name)
                    tracker.started(stages[name])
                for child in _look(children, lines):
                    del children[child.name]
                    ending = _ended(child, stages, waiting, outcome, tracker)
                    lines.say(f"[{len(todo) - len(waiting) - len(children)}/{len(todo)}] {child.name}: {ending}")
                    if child.exit_code() == 0:
                        seconds[child.name] = child.seconds
                lines.show(children.values())
        finally:
            for child in children.values():
                tracker.ended(stages[child.name], "KILLED")
            stop([*children.values()])
            with contextlib.suppress(OSError, UserError):  # A full disk must not hide the stages' messages.
                places.STATE.mkdir(parents=True, exist_ok=True)
                write_bytes(_HISTORY, json.dumps(seconds, indent=1, sort_keys=True).encode())
    outcome.seconds = time.monotonic() - began
    return outcome


def _stage(stage: Stage, raw: Mapping[str, Any], settings: Settings, root: Path | None, place: str) -> int:
    """Run one stage in its own process, and return the exit code.

    Args:
        raw: the content of params.yaml; methods are looked up here, since they may have functions that cannot be
        pickled.
        place: the socket path of :func:`.head.shared`.
    """
    with places.rooted(root) if root else contextlib.nullcontext():
        ran = body.ensure(stage, typed(raw), settings, head=lambda: head.address(place))
    return 0 if ran else SAME


def _look(children: Mapping[str, Child], lines: "_Lines") -> Iterator[Child]:
    """Wait briefly for output and ends of processes, print the output, and yield the children that have ended."""
    wait([waitable for child in children.values() for waitable in child.waitables], timeout=_LOOK_SECONDS)
    for child in list(children.values()):
        has_ended = child.exit_code() is not None
        for text in child.close() if has_ended else child.lines():
            lines.printed(child.name, text)
        if has_ended:
            yield child


def _ended(child: Child, stages: Plan, waiting: set[str], outcome: Outcome, tracker: Tracker) -> str:
    """Record the outcome of a stage, and return its description."""
    name, code = child.name, child.exit_code()
    if code == SAME:
        outcome.same.append(name)
    elif code == 0:
        outcome.done.append(name)
    else:
        outcome.failed[name] = child.why()
        skipped = descendants(stages, {name}) & waiting
        outcome.skipped |= skipped
        waiting -= skipped
    status = {0: "FINISHED", SAME: "SAME"}.get(code or 0, "FAILED")
    tracker.ended(stages[name], status, outcome.failed.get(name, []))
    return {0: f"done, {child.seconds:.0f} s", SAME: "is up to date"}.get(code or 0, f"FAILED, {child.seconds:.0f} s")


class _Lines:
    """The output of concurrent stages: a live line for each on a terminal, prefixed lines in a log file."""

    def __init__(self) -> None:
        self._live: Any = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, name: str) -> None:
        """Print that a stage has started; on a terminal its live line shows it."""
        if self._live is None:
            self.say(f"{name}: started")

    def printed(self, name: str, text: str) -> None:
        """Print a line of a stage; on a terminal only warnings, since the live line shows the last line."""
        if self._live is None or text.startswith("warning"):
            self.say(f"{name}: {text}")

    def show(self, running: Iterable[Child]) -> None:
        """Redraw the live lines, on a terminal only."""
        if self._live is None:
            return
        from rich.text import Text

        lines = [f"  {child.name}  {child.seconds:.0f} s  {child.last[-1] if child.last else ''}" for child in running]
        width = self._live.console.width
        self._live.update(Text("\n".join(line[: width - 1] for line in lines)))

    def say(self, text: str) -> None:
        """Print a line above the live lines."""
        if self._live is not None:
            self._live.console.print(text, markup=False)
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader of our output has ended; continue without output
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
