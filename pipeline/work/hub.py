"""The way between the workers and the driver: an actor on the driver's node, and a worker's ends of it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import FileBytes

from .base import Done
from .store import CheckpointChannel, Shared, Store

RETRIES: Final = 3  # of a task whose worker was lost, with no checkpoint in between


class Lost(UserError):
    """The workers of a task were lost, one after the other."""


def make_hub(store: Store | None) -> Any:
    """Start the hub as an actor on the node of this process."""
    import ray

    return ray.remote(Hub).options(**on_this_node()).remote(store)


def on_this_node() -> dict[str, Any]:
    """Say to Ray that an actor belongs on the node of this process, and answers several at once."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "scheduling_strategy": here, "max_concurrency": 4}


class Hub(CheckpointChannel):
    """An actor on the driver's node that keeps checkpoints in files, and progress until it is asked for.

    It reads the node's files for workers on others.
    """

    def __init__(self, store: Store | None) -> None:
        super().__init__(store)
        self._reported: dict[str, tuple[str, int, int, dict[str, float]]] = {}
        self._outcomes: dict[str, Done | Exception] = {}
        self._places: dict[str, str] = {}
        self._saves: Counter[str] = Counter()

    def save(self, task: str, blob: bytes) -> None:
        super().save(task, blob)
        self.saved(task)

    def saved(self, task: str) -> None:
        """Hear that a checkpoint of a task is kept, here or elsewhere."""
        self._saves[task] += 1

    def saves(self, task: str) -> int:
        """Count the checkpoints of a task that have been kept."""
        return self._saves[task]

    def begin(self, task: str, node: str) -> None:
        """Hear that an attempt of a task begins on a node."""
        self._places[task] = node

    def places(self) -> dict[str, str]:
        """Say on which node the last attempt of each task has begun."""
        return self._places

    def report(self, task: str, step: int, total: int, metrics: dict[str, float]) -> None:
        """Keep a task's progress until :meth:`poll`; a later figure replaces an earlier one of the same name."""
        earlier = self._reported.get(task, (task, 0, 0, {}))[3]
        self._reported[task] = (task, step, total, {**earlier, **metrics})

    def poll(self) -> list[tuple[str, int, int, dict[str, float]]]:
        """Return (task, step, total, metrics) of every task that has reported since the last call."""
        reports, self._reported = self._reported, {}
        return list(reports.values())

    def read(self, file: FileBytes, start: int, count: int) -> bytes:
        """Read ``count`` bytes of a file of this node, from byte ``start`` on."""
        return file.read(start, count)

    def put_result(self, task: str, outcome: Done | Exception) -> None:
        """Keep what a group's work came to; of several errors, the first one is kept."""
        self._outcomes.setdefault(task, outcome)

    def get_result(self, task: str) -> Done | Exception:
        """Hand over what a group's work came to, and forget it."""
        return self._outcomes.pop(task)


class NullChannel:
    """A channel that leads nowhere: the driver does not listen to its worker."""

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        pass

    def save(self, task: str, blob: bytes) -> None:
        pass

    def load(self, task: str) -> bytes | None:
        return None

    def finish(self, task: str, blob: bytes) -> None:
        pass


class ActorChannel:
    """A channel that leads to the hub, and past it for checkpoints where there is storage that all machines share."""

    def __init__(self, hub: Any, shared: Shared | None = None) -> None:
        self._hub, self._shared = hub, shared
        self._sent: Any = None  # the last message
        self._unsent = dict[str, float]()

    def report(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Send progress, unless the hub has still to read the last one: thousands of tasks would drown it."""
        import ray

        self._unsent |= metrics
        if self._sent is not None and step < total and not ray.wait([self._sent], timeout=0)[0]:
            return  # the next message says this, too
        self._sent = self._hub.report.remote(task, step, total, self._unsent)
        self._unsent = {}

    def save(self, task: str, blob: bytes) -> None:
        if self._shared:
            self._shared.save(task, blob)
            self._hub.saved.remote(task)
        else:
            get(self._hub.save.remote(task, blob))

    def load(self, task: str) -> bytes | None:
        shared = self._shared.load(task) if self._shared else None
        return get(self._hub.load.remote(task)) if shared is None else shared

    def finish(self, task: str, blob: bytes) -> None:
        get(self._hub.finish.remote(task, blob))


def get(ref: Any) -> Any:
    """Call ``ray.get``, and raise a task's error as it was raised in the task."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, UserError):
            cause.add_note(str(error))
        raise cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        raise Lost(f"a worker was lost {RETRIES + 1} times: {first_line(error)}") from None
    except ray.exceptions.RaySystemError as error:  # such as no worker that starts in time
        raise UserError(f"Ray could not run it: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank, or else the name of its type."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
