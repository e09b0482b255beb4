"""Bring one stage up to date: take its lock, check its result, do the work if needed, and record the result."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module

from filelock import FileLock, Timeout

from ..core import curves, places
from ..core.model import Params
from ..core.settings import Settings
from ..plan import plan
from ..plan.code import BODIES, shipped
from ..plan.plan import Stage
from ..work import choose


def ensure(
    stage: Stage,
    params: Params,
    settings: Settings,
    *,
    head: Callable[[], str] | None = None,
) -> bool:
    """Run a stage unless its result is up to date, and return True if it ran.

    If another process already runs the stage, wait for it and use its result.

    Args:
        settings: the command's settings; the stage's settings follow from its kind and method.
        head: returns the address of a Ray head that stages share.

    Raises:
        UserError: the stage cannot run; the message has the reason.
    """
    with alone(stage):
        if plan.reason(stage) is None:
            print(f"{stage.name}: is up to date", flush=True)
            return False
        made_from = plan.made_from(stage)
        for path in stage.makes:  # a killed process may have left temporary files
            places.sweep(path)
        settings = settings.of(stage.kind, params.method_of(stage.kind, stage.key))
        with closing(choose(settings, head, shipped())) as executor:
            # Only this stage kind's module is imported: preparing a data set needs no neural networks.
            store = import_module(BODIES[stage.kind]).run(stage, params, executor, settings)
        plan.record(stage, made_from)
        curves.finish(stage.kind, stage.key)
        if store is not None:  # A kill before the result is recorded must not lose the checkpoints.
            store.clear()
    return True


@contextmanager
def alone(stage: Stage) -> Iterator[None]:
    """Hold the stage's file lock, and print which process holds it while waiting. A crash releases the lock."""
    path = places.lock(stage.kind, stage.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(path), path.with_suffix(".pid")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        process = holder.read_text(encoding="utf-8") if holder.is_file() else "unknown"
        print(f"{stage.name}: waiting for process {process}, which runs this stage", flush=True)
        lock.acquire()
    try:
        holder.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        lock.release()
