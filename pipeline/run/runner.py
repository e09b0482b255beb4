"""The runner: brings the stages of a plan up to date, several at once, each in a fork of the host.

``make repro``, ``dvc repro`` (which it runs ahead of), ``paper`` and ``run all`` are this one.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bdl_pipe.errors import UserError

from ..core import places
from ..core.params import Params, load
from ..plan import fresh, plan, sources
from ..plan.plan import Plan
from . import client, remote, scheduler
from .body import Request, alone, ensure
from .scheduler import Outcome, Process

JOBS = 3  # stages at once: two cores are busy while one stage waits for its data


def stale(stages: Plan) -> dict[str, str]:
    """Say of each stage that is to be run why: its own result is out of date, or something that it needs is."""
    why: dict[str, str] = {}
    for name, stage in stages.items():
        reason = fresh.reason(stage)
        above = next((need for need in sorted(stage.needs) if need in why), None)
        if reason is not None:
            why[name] = reason
        elif above is not None:
            why[name] = f"{above} is to be run"
    return why


def start_host() -> threading.Thread:
    """Start this process's host in a thread. Once that has ended, the host is there or cannot be."""

    def start() -> None:
        import psutil

        me = psutil.Process()
        with contextlib.suppress(client.Lost):  # whoever needs it tries again, and says so
            client.start(me.pid, me.create_time())

    thread = threading.Thread(target=start if sys.platform == "linux" else lambda: None, daemon=True)
    thread.start()
    return thread


def ensure_all(
    stages: Plan, params: Params, *, jobs: int, executor: str | None = None, own: bool = False, root: str = ""
) -> Outcome:
    """Bring ``stages`` up to date. A stage that fails stops what needs it, and nothing else.

    Args:
        stages: with all that they need.
        jobs: how many at once.
        executor: ``inline`` or ``ray``; null: as the environment says.
        own: ``params`` are not params.yaml's.
        root: in place of ``work``; empty: that.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after all processes have been stopped.
    """
    if executor == "inline" or sys.platform != "linux":
        return here(stages, params, executor)
    import psutil

    raw, me = params.raw if own else None, psutil.Process()

    def start(name: str) -> Process:
        path = client.start(me.pid, me.create_time())  # another one, should the first have been killed
        return client.Piped(path, asdict(Request(stages[name].kind, stages[name].key, raw, root, executor)))

    return _several(stages, jobs, start)


def push_rest(stages: Plan, setting: str) -> None:
    """Push the results of ``stages`` that are up to date and not pushed yet, and say which could not be.

    Args:
        setting: of ``BDL_REMOTE``; empty: off.
    """
    if not setting:
        return
    try:
        store, left = remote.connect(setting), list[str]()
    except UserError as error:  # its config has changed meanwhile; the results are there
        print(f"warning: BDL_REMOTE={setting}: {error}; nothing is pushed", file=sys.stderr)
        return
    remote.try_again()
    for name, stage in stages.items():
        if store.is_pushed(stage):
            continue
        with alone(stage):
            if fresh.reason(stage) is None and not remote.try_push(store, stage):
                left.append(name)
    if left:
        print(f"warning: not pushed to {store.name}: {', '.join(left)}; the same command pushes them", file=sys.stderr)


def ahead(path: Path, targets: Sequence[str]) -> int:
    """Run ``targets`` (none: all) ahead of a plain ``dvc repro``, which finds them up to date when it comes to them."""
    try:
        params = load()
        sources.write(params)
        stages = plan.matching(targets, plan.plan(params))

        def start(name: str) -> Process:
            return client.Piped(path, asdict(Request(stages[name].kind, stages[name].key)))

        _several(stages, JOBS, start)
    except (UserError, client.Lost) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _several(stages: Plan, jobs: int, start: Callable[[str], Process]) -> Outcome:
    def wanted(name: str) -> bool:  # now that all it needs is there: an input may have come out the same
        return fresh.reason(stages[name]) is not None

    todo = scheduler.Todo(stages, frozenset(stale(stages)), places.STATE / "seconds.json")
    return scheduler.run(todo, jobs, start, wanted)


def here(stages: Plan, params: Params, executor: str | None) -> Outcome:
    """Bring ``stages`` up to date one after the other in this process, with neither DVC nor a host."""
    outcome, began = Outcome(), time.monotonic()
    todo = stale(stages)
    for name, stage in stages.items():
        if name not in todo:
            continue
        if any(need in outcome.failed or need in outcome.skipped for need in stage.needs):
            outcome.skipped.add(name)
            continue
        try:
            if ensure(stage, params, executor):
                outcome.done.append(name)
                print(f"{name}: done", flush=True)
        except UserError as error:
            outcome.failed[name] = [str(error)]
    outcome.seconds = time.monotonic() - began
    return outcome
