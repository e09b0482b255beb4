"""What a stage's process does: one lock, one question whether there is anything to do, the work, the record."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core import places, shell
from ..core.params import Params, load, typed
from ..core.settings import Settings
from ..plan import fresh, sources
from ..plan.plan import Stage, one
from ..work.base import Executor
from . import remote

_TELL_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Request:
    """A request to bring one stage up to date.

    Attributes:
        kind, key: of the stage.
        raw: what stands for params.yaml; null: that file.
        root: in place of ``work``; empty: that.
        executor: ``inline`` or ``ray``; null: as the environment says.
        force: run it though its result is up to date.
    """

    kind: str
    key: str
    raw: Mapping[str, Any] | None = None
    root: str = ""
    executor: str | None = None
    force: bool = False

    @property
    def title(self) -> str:
        """Return the stage's name in messages."""
        return f"{self.kind} {self.key}".strip()


def main(request: Request) -> int:
    """Run a stage, and return the exit code of its process; a user's mistake is one line on stderr and 2."""
    try:
        with rooted(request.root):
            params = load() if request.raw is None else typed(request.raw)
            if request.kind == "sources":
                sources.write(params)
            else:
                ensure(one(request.kind, request.key, params), params, request.executor, force=request.force)
    except UserError as error:
        print(f"{request.title}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{request.title}: interrupted", file=sys.stderr)
        return 130
    return 0


@contextmanager
def rooted(root: str) -> Iterator[None]:
    """Place artifacts in ``root`` within the block; where it is empty, in their usual place."""
    with ExitStack() as stack:
        if root:
            stack.enter_context(places.rooted(Path(root)))
        yield


def ensure(stage: Stage, params: Params, executor: str | None = None, *, force: bool = False) -> bool:
    """Run a stage unless its result is up to date or lies in the remote store, and say whether it was out of date.

    Another process that is at the same stage is waited for, and its result taken.

    Raises:
        UserError: what the stage raises.
    """
    with alone(stage):
        if not force and fresh.reason(stage) is None:
            print(f"{stage.name}: is up to date", flush=True)
            return False
        made_from, store = fresh.made_from(stage), Settings.read(executor=executor).remote
        if not force and remote.fetch(store, stage, made_from):
            print(f"{stage.name}: fetched from the remote", flush=True)
            return True
        method = params.method_of(stage.kind, stage.key)
        with shell.opened(executor, params, kind=stage.kind, method=method) as (_, running, settings):
            _work(stage, params, running, settings)
        fresh.record(stage, made_from)
        remote.push(store, stage)
    return True


def _work(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Do the work of a stage. Its module is imported only then: to prepare a data set needs no network."""
    if stage.kind == "prepare":
        from ..stages import prepare

        prepare.prepare_dataset(stage.key, params, executor)
    elif stage.kind == "inputs":
        from ..stages import inputs

        inputs.bundle(stage.key, params)
    elif stage.kind == "evaluate":
        from ..stages import evaluate

        evaluate.evaluate(stage.key, params, executor, settings)
    elif stage.kind == "report":
        from ..stages import report

        report.build(params, settings)
    else:
        from ..stages import fit as fitting

        fitting.fit(stage.kind, stage.key, params, executor, settings)


@contextmanager
def alone(stage: Stage) -> Iterator[None]:
    """Let one process at a time be at a stage. One that waits says for whom; one that dies loses its lock."""
    from filelock import FileLock, Timeout

    place = places.lock(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock, told = FileLock(place), -_TELL_SECONDS
    while True:
        try:
            lock.acquire(timeout=0.2)
            break
        except Timeout:
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                print(f"{stage.name}: waiting for process {_holder(place)}, which is at it", flush=True)
    try:
        place.with_suffix(".pid").write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _holder(place: Path) -> str:
    try:
        return place.with_suffix(".pid").read_text()
    except OSError:
        return "unknown"
