"""The Ray executor: Ray started in this process, or the cluster of RAY_ADDRESS.

Workers get shared data through the object store; checkpoints and progress return through an actor on the driver's node.
So no shared disk is needed, and our code is sent with the connection, so no node needs an installation. Ray restarts
the task of a lost worker, which continues from its last checkpoint.
"""

import contextlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bdl_pipe.artifacts import State, StoredTensors
from bdl_pipe.checkpoints import HandedOver
from bdl_pipe.errors import UserError
from bdl_pipe.files import FileBytes

from ..core.places import PACKAGES
from ..core.settings import Settings
from ..core.storage import hide
from . import nodes, train
from .executor import Batch, Done, Executor, Task, Where, attempt, run_here
from .hub import RETRIES, HubFile, HubStore, Progress, first_line, get, make_hub, with_plugins
from .store import Store

_POLL_SECONDS: Final = 0.3
_FEW_SECONDS: Final = 60.0  # one core's time; shorter work is not worth ten seconds of start and the data transfer
_CORE_SECONDS: Final = 600.0  # on this machine, divided by its cores: workers gain little where few cores do all stages
_TRY_SECONDS: Final = 10.0  # a task with checkpoints runs in this process this long; then a worker continues it
_STARTS: Final = 3  # attempts to start Ray on this machine
_STORE_BYTES: Final = 2 * 1024**3  # the limit of an embedded object store, which allocates memory as it fills
_ROOT: Final = Path(__file__).resolve().parents[2]
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # otherwise Ray may write a token to the home folder, which breaks other clients
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    "RAY_worker_niceness": "0",  # with Ray's 15, workers would wait for stages that compute in their own processes
}
_LOOPBACK: Final = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # an embedded head listens only on 127.0.0.1
Head = Callable[[], str]


class Cluster(Executor):
    """An executor that runs tasks as Ray tasks. It connects when a task needs a worker."""

    def __init__(self, settings: Settings, head: Head | None = None, ships: Sequence[Path] = ()) -> None:
        """Create the executor; see :func:`connected` for ``head`` and ``ships``."""
        super().__init__(settings)
        self._head, self._ships = head, ships
        self._connection = contextlib.ExitStack()

    def close(self) -> None:
        self._connection.close()

    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        results: dict[str, Done] = {}
        if batch.store:
            batch = replace(batch, store=batch.store.sharing(self._settings.checkpoints))
        if where == "here" and self._settings.device == "cpu":
            return {task.name: run_here(batch, task, self._settings) for task in tasks}
        if where == "try" and self._settings.device == "cpu":
            results = self._try(batch, tasks)
        unfinished = [task for task in tasks if task.name not in results]
        if unfinished:
            connection = connected(self._settings, batch.display.say, self._head, self._ships)
            self._connection.enter_context(connection)
            with nodes.explained(self._settings.address):
                results |= self._run_on_workers(batch, unfinished)
        return results

    def _try(self, batch: Batch, tasks: Sequence[Task]) -> dict[str, Done]:
        """Run the smallest task here for a limited time, and the other tasks as well if they take little time together.

        Workers run the rest; an interrupted task continues from its checkpoint.
        """
        first = min(tasks, key=lambda task: task.size)
        start = time.monotonic()
        try:
            tried = run_here(batch, first, self._settings, math.inf if batch.store is None else _TRY_SECONDS)
        except HandedOver:
            return {}
        seconds = time.monotonic() - start
        results = {first.name: tried}
        others = [task for task in tasks if task is not first]
        if seconds * sum(task.size for task in others) <= few_seconds(self._settings.address) * first.size:
            results |= {task.name: run_here(batch, task, self._settings) for task in others}
        return results

    def _run_on_workers(self, batch: Batch, tasks: Sequence[Task]) -> dict[str, Done]:
        import ray

        hub, display = make_hub(batch.store), batch.display
        used = dict.fromkeys(key for task in tasks for key in task.needs)
        parts = {key: ray.put(through_hub(batch.shared[key], hub)) for key in used}
        waiting, pending, results = list(tasks), dict[Any, Task](), dict[str, Done]()
        at_once, submit = self._at_once(tasks, batch), self._submitter(batch, hub)
        watch = nodes.TaskWatch(self._settings.address, hub)
        try:
            while waiting or pending:
                for ref in watch.lost(pending):
                    waiting.insert(0, pending.pop(ref))
                while waiting and len(pending) < at_once:
                    task = waiting.pop(0)
                    pending[submit(task, [parts[key] for key in task.needs])] = task
                count = 1 if waiting else len(pending)  # collecting results one by one would take quadratic time
                ready, _ = ray.wait(list(pending), num_returns=count, timeout=_POLL_SECONDS)
                for progress in ray.get(hub.poll.remote()):
                    display.step(*progress)
                for ref in ready:
                    task = pending.pop(ref)
                    results[task.name] = get(ref)
                    display.done(task.name)
            return results
        finally:
            for ref in pending:
                with contextlib.suppress(Exception):  # a task that cannot be cancelled must not hide the first error
                    ray.cancel(ref, force=True)
            ray.kill(hub)

    def _at_once(self, tasks: Sequence[Task], batch: Batch) -> int:
        """Return the number of tasks to submit together: all, or the number of worker groups that fit the cluster."""
        import ray

        workers = self._settings.workers
        if workers == 1 or not any(task.data_parallel for task in tasks):
            return len(tasks)
        nodes.ensure(self._settings, workers, batch.display.say)
        return nodes.capacity(ray.nodes(), self._settings.needs) // workers

    def _submitter(self, batch: Batch, hub: Any) -> Callable[[Task, list[Any]], Any]:
        """Return a function that submits a task with its parts; each function is sent to Ray once."""
        import ray

        settings = self._settings
        group = ray.remote(train.group).options(num_cpus=0, max_retries=RETRIES)
        single = ray.remote(_remote).options(**settings.needs.options, max_retries=RETRIES)

        def submit(task: Task, parts: list[Any]) -> Any:
            sent = with_plugins(task)
            if task.data_parallel and settings.workers > 1:
                return group.remote(batch.work, sent, hub, batch.store, settings, parts)
            return single.remote(batch.work, sent, hub, batch.store, settings, *parts)

        return submit


def few_seconds(address: str) -> float:
    """Return the largest amount of work, in seconds of one core, that a stage does in its own process without workers.

    Args:
        address: of a named cluster; "" for this machine, where stages and workers share the cores.
    """
    return _FEW_SECONDS if address else max(_FEW_SECONDS, _CORE_SECONDS / (os.cpu_count() or 1))


@contextlib.contextmanager
def connected(
    settings: Settings, say: Callable[[str], None] = print, head: Head | None = None, ships: Sequence[Path] = ()
) -> Iterator[None]:
    """Connect this process to Ray for the block, or keep an existing connection.

    Args:
        settings: the settings with the cluster's address; if it is empty, Ray is started in this process.
        say: prints a line while this process waits for a node.
        head: returns host:port of a head on this machine that several stages share, or "".
        ships: files and packages of plugins that a named cluster's nodes receive.

    Raises:
        UserError: the cluster does not answer, Ray does not start, or no node can run a task.
    """
    prepare_environment()
    nodes.require_head(settings.address)
    import ray

    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="bdl-ray-", ignore_cleanup_errors=True))
            shared = "" if settings.address or head is None else head()
            stack.callback(ray.shutdown)
            options: dict[str, Any] = {"address": shared}  # workers on this machine find our code by PYTHONPATH
            if settings.address:
                options = named(settings.address, ships)
            elif not shared:
                options = {"address": "local", "include_dashboard": False, "_temp_dir": temporary}
                options["object_store_memory"] = _STORE_BYTES
            for attempts_left in reversed(range(1 if settings.address or shared else _STARTS)):
                try:
                    ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
                    break
                except ray.exceptions.RuntimeEnvSetupError as error:  # for example, the head's disk is full
                    rule = f"could not be sent our code: {hide(str(error))}"
                    raise UserError(f"Ray ({settings.address}) {rule}") from None
                except Exception as error:  # a plain Exception if a busy machine takes longer than Ray's 30 seconds
                    if not attempts_left:
                        text = hide(first_line(error))
                        if not settings.address:
                            raise UserError(f"Ray (inside this process) did not start: {text}") from None
                        cure = "if the cluster requires a token, set RAY_AUTH_MODE=token"
                        raise UserError(f"RAY_ADDRESS={settings.address}: cannot connect ({text}); {cure}") from None
                    ray.shutdown()
        nodes.ensure(settings, say=say)
        yield


@contextlib.contextmanager
def head(settings: Settings) -> Iterator[str]:
    """Start a head that other processes of this machine can join during the block, and yield its address.

    Raises:
        UserError: see :func:`connected`.
    """
    with connected(settings):
        import ray

        yield ray.get_runtime_context().gcs_address


def require_shared(settings: Settings) -> None:
    """Check that a cluster of several machines has shared storage, where trials store checkpoints.

    Raises:
        UserError: BDL_SEARCHES is not set.
    """
    import ray

    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if settings.address and not settings.searches and len(machines) > 1:
        need = f"a folder or s3://bucket/path that all {len(machines)} machines of RAY_ADDRESS reach"
        raise UserError(f"BDL_SEARCHES: must be {need}; it is not set")


def named(address: str, ships: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the options of ``ray.init`` for a cluster, which send our code and ``ships`` to its nodes."""
    modules = [*(_ROOT / name for name in PACKAGES), *ships]
    return {"address": address, "runtime_env": {"py_modules": list(map(str, modules)), "excludes": ["__pycache__"]}}


def prepare_environment() -> None:
    """Set the variables that Ray reads on import: switches, and the path of our code for local workers."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.update([_LOOPBACK])
    places = [str(_ROOT), str(_ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    absolute = dict.fromkeys(str(Path(place).absolute()) for place in places if place)
    os.environ["PYTHONPATH"] = os.pathsep.join(absolute)


def through_hub(value: Any, hub: Any) -> Any:
    """Return ``value`` with each of its files replaced by a :class:`HubFile`."""
    if isinstance(value, State) and isinstance(value.tensors, StoredTensors):
        return State(value.tensors.through(lambda source: through_hub(source, hub)), value.config)
    if isinstance(value, dict):
        return {key: through_hub(part, hub) for key, part in value.items()}
    return HubFile(value, hub) if isinstance(value, FileBytes) else value


def _remote(work: Any, task: Task, hub: Any, store: Store | None, settings: Settings, *parts: Any) -> Done:
    """Run a task in a worker."""
    import ray

    hub.begin.remote(task.name, ray.get_runtime_context().get_node_id())
    shared = dict(zip(task.needs, parts, strict=True))
    return attempt(work, task, shared, Progress(hub), HubStore(hub, store) if store else None, settings)
