"""The Ray executor: started inside this process, or a cluster that RAY_ADDRESS names.

Shared data go to the workers through the object store, checkpoints and progress come back through
an actor on the driver's node, so no shared disk is assumed; our code travels with the connection, so no
node needs it. A worker that is lost is replaced and its task goes on from the last checkpoint.
"""

import contextlib
import dataclasses
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from .base import Done, Task, Work
from . import room, train
from .display import Display
from .hub import RETRIES, ActorChannel, Lost, NullChannel, first_line, get, make_hub
from .lost import Losses, Silent, Watch, explained, silence
from .sealed import sealed
from .store import Store

_POLL_SECONDS: Final = 0.3
_CONNECT_SECONDS: Final = 3.0
_FEW_SECONDS: Final = 60.0  # of one core: two workers need ten to start, and each their share of the data
_TRIED_SECONDS: Final = 10.0  # in which a task that can be gone on with shows whether it takes long
_STORE_BYTES: Final = 2 * 1024**3  # an embedded object store's limit; it is taken only as it fills
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # or Ray may write a token under the home folder, and other clients then fail
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    # Several drivers share a head: without this their idle workers are killed in turn, and torch imported anew.
    "RAY_num_workers_soft_limit": "4",
}
_LOOPBACK: Final = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # makes a head of ours serve 127.0.0.1 alone


class Cluster:
    """An executor that runs tasks as Ray tasks. It connects when there is work for it."""

    def __init__(self, settings: Settings, head: Callable[[], str] | None = None) -> None:
        self._settings, self._head, self._connection = settings, head, contextlib.ExitStack()

    def map(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        shared: Mapping[str, Any],
        display: Display,
        store: Store | None = None,
        light: bool | None = False,
    ) -> list[Done]:
        from .inline import run_here
        from .worker import finished

        display.expect(len(tasks))
        store = store and store.sharing("" if self._settings.jobs else self._settings.checkpoints)  # a job's workers do
        results: dict[str, Done] = {}
        for task in tasks:
            before = store.finished(task.name) if store else None
            done = finished(before, task.name) if before else None
            if done is not None:
                results[task.name] = done
                display.done(task.name)
        left = [task for task in tasks if task.name not in results]
        here = self._settings.device == "cpu" and light is not False
        if here and light is None and left:
            first = min(left, key=lambda task: task.size)
            start = time.monotonic()
            tried = self._try(work, first, shared, display, store)
            taken = time.monotonic() - start
            results |= {first.name: tried} if tried else {}
            left = [task for task in left if task.name not in results]
            here = tried is not None and taken * sum(task.size for task in left) <= _FEW_SECONDS * first.size
        if here:
            results |= {task.name: run_here(work, task, shared, display, store, self._settings) for task in left}
        elif left:
            self._connect(display)
            with explained(self._settings.address):
                results |= self._run(work, left, shared, display, store)
        return [results[task.name] for task in tasks]

    def _try(
        self, work: Work, task: Task, shared: Mapping[str, Any], display: Display, store: Store | None
    ) -> Done | None:
        """Run a task here to know how long it takes; None: too long, and what it has done is in its checkpoint."""
        from .inline import run_here
        from .worker import HandedOver

        limit = math.inf if store is None else _TRIED_SECONDS
        try:
            return run_here(work, task, shared, display, store, self._settings, limit)
        except HandedOver:
            return None

    def close(self) -> None:
        self._connection.close()

    def _connect(self, display: Display) -> None:
        self._connection.enter_context(connected(self._settings, display.say, self._head))

    def _run(
        self, work: Work, tasks: Sequence[Task], shared: Mapping[str, Any], display: Display, store: Store | None
    ) -> dict[str, Done]:
        import ray

        from .remote_files import through_hub

        hub = make_hub(store)
        used = {key for task in tasks for key in task.needs}
        kept = {key: ray.put(through_hub(shared[key], hub)) for key in shared if key in used}
        waiting, pending, results = list(tasks), dict[Any, Task](), dict[str, Done]()
        most, submit = self._at_once(tasks, display), self._submitter(work, hub, store)
        watch, losses = Watch(self._settings.address), Losses(hub)
        silent = Silent(self._settings.address, hub, losses)
        try:
            while waiting or pending:
                watch.look()
                for ref in silent.look(pending):  # whose last checkpoint is here
                    waiting.insert(0, pending.pop(ref))
                while waiting and len(pending) < most:
                    task = waiting.pop(0)
                    pending[submit(task, [kept[k] for k in task.needs])] = task
                count = 1 if waiting else len(pending)  # one result at a time is quadratic in their number
                ready, _ = ray.wait(list(pending), num_returns=count, timeout=_POLL_SECONDS)
                for progress in ray.get(hub.poll.remote()):
                    display.step(*progress)
                for ref in ready:
                    task = pending.pop(ref)
                    try:
                        results[task.name] = get(ref)
                    except Lost:
                        if not losses.has_got_on(task.name):
                            raise
                        waiting.insert(0, task)
                    else:
                        display.done(task.name)
            return results
        finally:
            for ref in pending:
                with contextlib.suppress(Exception):
                    ray.cancel(ref, force=True)
            ray.kill(hub)

    def _at_once(self, tasks: Sequence[Task], display: Display) -> int:
        """Count the tasks to hand over: all, for Ray to queue, but of groups of workers those that have room."""
        import ray

        if self._settings.workers == 1 or not any(task.data_parallel for task in tasks):
            return len(tasks)
        workers, needs = self._settings.workers, self._settings.needs
        room.ensure(self._settings.address, needs, workers, display.say)
        return room.places(ray.nodes(), needs) // workers

    def _submitter(self, work: Work, hub: Any, store: Store | None) -> Callable[[Task, list[Any]], Any]:
        """Return what hands a task and its parts to Ray, which is sent each of our functions once."""
        import ray

        settings, keeps = self._settings, store is not None
        channel = ActorChannel(hub, store.shared if store else None)
        group = ray.remote(train.group).options(num_cpus=0, max_retries=RETRIES)
        single = ray.remote(_remote).options(**settings.needs.options, max_retries=RETRIES)

        def submit(task: Task, parts: list[Any]) -> Any:
            if task.data_parallel and settings.workers > 1:
                return group.remote(work, sealed(task), hub, (channel, NullChannel()), settings, keeps, parts)
            return single.remote(work, sealed(task), hub, channel, settings, keeps, *parts)

        return submit


@contextlib.contextmanager
def connected(
    settings: Settings, say: room.Say = print, head: Callable[[], str] | None = None
) -> Iterator[None]:
    """Connect this process to Ray: a cluster that is named, the head that stages share, or one for this block alone.

    A connection that is there is kept. A node that a cluster is to add is waited for, and ``say`` told of it.

    Raises:
        UserError: the cluster does not answer, Ray does not start, or no node has what a task needs.
    """
    prepare_environment()
    preflight(settings.address)
    import ray

    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            shared = "" if settings.address or head is None else head()
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="bdl-ray-", ignore_cleanup_errors=True))
            stack.callback(ray.shutdown)
            own = {"address": shared} if shared else _local(temporary)  # whose workers find our code by PYTHONPATH
            options = named(settings.address) if settings.address else own
            try:
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
            except ray.exceptions.RuntimeEnvSetupError as error:  # a full disk of the head, for one
                raise UserError(f"Ray ({settings.address}) could not be sent our code: {error}") from None
            except Exception as error:  # that very class, where the machine is too busy for Ray's patience
                where = settings.address or "inside this process"
                raise UserError(f"Ray ({where}) did not start: {first_line(error)}") from None
        room.ensure(settings.address, settings.needs, say=say)
        yield


def as_driver(settings: Settings) -> Settings:
    """Return the settings of a job: a process of the cluster's own, which has joined it."""
    import ray

    return dataclasses.replace(settings, jobs="", address=ray.get_runtime_context().gcs_address)


@contextlib.contextmanager
def head(settings: Settings) -> Iterator[str]:
    """Start a head for other processes of this machine, which ends with the block, and yield its address.

    Raises:
        UserError: as :func:`connected`.
    """
    with connected(settings):
        import ray

        yield ray.get_runtime_context().gcs_address


def _local(temporary: str) -> dict[str, Any]:
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": temporary,
    }


def named(address: str) -> dict[str, Any]:
    """Say how to connect to a cluster whose nodes were started anywhere: they are sent our code, and plugins'."""
    root = Path(__file__).resolve().parents[2]
    from ..plan.code import shipped

    modules = [str(place) for place in (root / "pipeline", root / "stages", root / "src" / "bdl_pipe", *shipped())]
    return {"address": address, "runtime_env": {"py_modules": modules, "excludes": ["__pycache__"]}}


def prepare_environment() -> None:
    """Set what Ray reads as it is imported: switches, and where workers find our code."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.update([_LOOPBACK])
    root = Path(__file__).resolve().parents[2]
    places = [str(root), str(root / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    absolute = dict.fromkeys(str(Path(place).absolute()) for place in places if place)
    os.environ["PYTHONPATH"] = os.pathsep.join(absolute)


def preflight(address: str) -> None:
    """Refuse an address where nobody answers, for which Ray itself would wait minutes.

    Raises:
        UserError: the address is not host:port, or nothing listens there.
    """
    if not address:
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        rule = "must be host:port (of the cluster's head), or http://host:8265 (of its dashboard)"
        raise UserError(f"RAY_ADDRESS {rule}, got {address!r}")
    error = silence(address, _CONNECT_SECONDS)
    if error is not None:
        reason = error.strerror or str(error)
        raise UserError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({reason}); unset it or start one")


def _remote(
    work: Work, task: Task, hub: Any, channel: ActorChannel, settings: Settings, keeps: bool, *parts: Any
) -> Done:
    import ray

    from .worker import attempt

    hub.begin.remote(task.name, ray.get_runtime_context().get_node_id())
    return attempt(work, task, dict(zip(task.needs, parts, strict=True)), channel, settings, keeps)
