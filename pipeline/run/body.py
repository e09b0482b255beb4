"""Bring one stage up to date: take its lock, see whether its result is up to date, do the work, record the result."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module

from filelock import FileLock, Timeout

from ..core import places
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

    A process that already works on the stage is waited for, and its result is taken.

    Args:
        settings: those of the command; the stage's own follow from its kind and method.
        head: returns the address of a Ray head that stages share.

    Raises:
        UserError: the stage cannot run, and says why.
    """
    with alone(stage):
        if plan.reason(stage) is None:
            print(f"{stage.name}: is up to date", flush=True)
            return False
        made_from = plan.made_from(stage)
        settings = settings.of(stage.kind, params.method_of(stage.kind, stage.key))
        with closing(choose(settings, head, shipped())) as executor:
            # The module of a stage kind is imported only here: preparing a data set needs no network.
            store = import_module(BODIES[stage.kind]).run(stage, params, executor, settings)
        plan.record(stage, made_from)
        if store is not None:  # Until the result is recorded, a kill would cost all the work without its checkpoints.
            store.clear()
    return True


@contextmanager
def alone(stage: Stage) -> Iterator[None]:
    """Hold the stage's file lock, and print which process is waited for. A crash releases the lock."""
    path = places.lock(stage.kind, stage.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(path), path.with_suffix(".pid")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        process = holder.read_text() if holder.is_file() else "unknown"
        print(f"{stage.name}: waiting for process {process}, which runs it", flush=True)
        lock.acquire()
    try:
        holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
