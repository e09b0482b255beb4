"""The connection between workers and driver: an actor on the driver's node, and its clients in the workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bdl_pipe import plugins
from bdl_pipe.errors import UserError
from bdl_pipe.files import FileBytes

from .store import Store

RETRIES: Final = 3  # Ray's retries of a task that lost its worker or node


def make_hub(store: Store | None) -> Any:
    """Start the hub as an actor on the node of this process."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": here, "max_concurrency": 4}
    return ray.remote(Hub).options(**options).remote(store)


class Hub:
    """An actor on the driver's node that stores checkpoints in files, and progress until the driver polls it.

    It also reads files of its node for workers on other nodes. It does not import torch.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._reports: dict[str, tuple[str, int, int, dict[str, float]]] = {}
        self._nodes: dict[str, str] = {}

    def stored(self, method: str, *arguments: object) -> Any:
        """Call a method of the stage's store."""
        return getattr(self._store, method)(*arguments)

    def begin(self, task: str, node: str) -> None:
        """Record the node of a task's latest attempt."""
        self._nodes[task] = node

    def nodes(self) -> dict[str, str]:
        """Return the node of each task's latest attempt."""
        return self._nodes

    def report(self, task: str, step: int, total: int, metrics: dict[str, float]) -> None:
        """Store a task's progress until :meth:`poll`; a later metric replaces an earlier one with the same name."""
        earlier = self._reports.get(task, (task, 0, 0, {}))[3]
        self._reports[task] = (task, step, total, {**earlier, **metrics})

    def poll(self) -> list[tuple[str, int, int, dict[str, float]]]:
        """Return (task, step, total, metrics) of every task that has reported since the last call."""
        reports, self._reports = self._reports, {}
        return list(reports.values())

    def read(self, file: FileBytes, start: int, count: int) -> bytes:
        """Read ``count`` bytes of a file of this node, from byte ``start`` on."""
        return file.read(start, count)


class Progress:
    """Sends a worker's progress to the hub."""

    def __init__(self, hub: Any) -> None:
        self._hub, self._last_report = hub, None
        self._unsent = dict[str, float]()

    def __call__(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Send progress unless the last report is unread, since thousands of tasks would flood the hub."""
        import ray

        self._unsent |= metrics
        if self._last_report is not None and step < total and not ray.wait([self._last_report], timeout=0)[0]:
            return  # the next report includes these metrics
        self._last_report = self._hub.report.remote(task, step, total, self._unsent)
        self._unsent = {}


class HubStore:
    """The driver's store for a worker. With shared storage, checkpoints are written there and not through the hub."""

    def __init__(self, hub: Any, store: Store) -> None:
        self._hub, self._store = hub, store

    def save(self, task: str, blob: bytes) -> None:
        if self._store.shared:
            self._store.save(task, blob)
        else:
            ask(self._hub.stored, "save", task, blob)

    def load(self, task: str) -> bytes | None:
        blob = self._store.load(task) if self._store.shared else None
        return ask(self._hub.stored, "load", task) if blob is None else blob

    def finish(self, task: str, blob: bytes) -> None:
        ask(self._hub.stored, "finish", task, blob)


@dataclass(frozen=True)
class HubFile:
    """A file of the driver's machine. A worker reads it from its own disk if it exists there, else through the hub.

    The object store would hold a copy of the whole file; the hub sends only the bytes of the needed tensors.
    """

    file: FileBytes
    hub: Any

    @property
    def size(self) -> int:
        return self.file.size

    def read(self, start: int, count: int) -> bytes:
        if self.file.is_here():
            return self.file.read(start, count)
        return ask(self.hub.read, self.file, start, count)


def with_plugins(value: Any) -> Any:
    """Wrap ``value`` so that unpickling it in a worker imports this process's plugins first."""
    return _WithPlugins(value) if plugins.loaded() else value


class _WithPlugins:
    """A wrapper of a value; unpickling it imports the plugins and returns the value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        from ray import cloudpickle

        return plugins.opened, (plugins.loaded(), cloudpickle.dumps(self._value))


def ask(method: Any, *arguments: object) -> Any:
    """Call a method of the hub from a worker. Ray repeats the call if the network fails.

    The driver must not use this function: if the head is gone, Ray would repeat the call forever.
    """
    return get(method.options(max_task_retries=-1).remote(*arguments))


def get(ref: Any) -> Any:
    """Call ``ray.get``, and raise a task's original error."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, UserError):
            cause.add_note(str(error))
        raise cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        raise UserError(f"a worker was lost {RETRIES + 1} times: {first_line(error)}") from None
    except ray.exceptions.RaySystemError as error:  # for example, no worker process starts in time
        raise UserError(f"Ray could not run the task: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the first nonblank line of an error's message, or else the name of its type."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
