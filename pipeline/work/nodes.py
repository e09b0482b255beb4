"""The nodes of a Ray cluster: whether the head answers, the nodes' capacity, and tasks that are lost with a node.

Ray restarts the tasks of a lost worker. This module handles three cases that no public function of Ray covers: Ray lets
a task that no node can run wait forever; without a head Ray waits a minute and then aborts this process; and for tasks
of a silent node it waits until their connections end, which takes many minutes.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Needs, Settings, in_words
from .hub import RETRIES, first_line

CONTINUE: Final = "the same command continues from the last checkpoints"
_LOOK_SECONDS: Final = 5.0  # between two checks of running work
_WAIT_SECONDS: Final = 1.0  # between two checks for an expected node
_LINE_SECONDS: Final = 60.0  # between two messages of a wait
_ANSWER_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 3.0
_GRACE_SECONDS: Final = 10.0  # Ray usually fails a dead node's tasks within this time
_REFUSED_SECONDS: Final = 10.0  # a restarted head listens again within this time
_SILENT_SECONDS: Final = 45.0  # a network may recover; after 60 s Ray aborts this process


class HeadWatch:
    """Checks that the head of a cluster accepts connections; a head on this machine is not checked."""

    def __init__(self, address: str) -> None:
        self._address, self._answered = address, time.monotonic()

    def answers(self) -> bool:
        """Return whether the head answers; if it does not, a call of Ray would block.

        Raises:
            UserError: the head has not answered for too long.
        """
        error = connect_error(self._address) if self._address else None
        now = time.monotonic()
        if error is None:
            self._answered = now
            return True
        if now - self._answered > (_REFUSED_SECONDS if isinstance(error, ConnectionRefusedError) else _SILENT_SECONDS):
            raise UserError(_gone(self._address, error))
        return False


class TaskWatch:
    """Finds the tasks that Ray still waits for although it has declared their nodes dead."""

    def __init__(self, address: str, hub: Any) -> None:
        """Watch the tasks on the cluster at host:port; an empty address means this machine, a single node."""
        self._address, self._head, self._hub = address, HeadWatch(address), hub
        self._looked = time.monotonic()
        self._since: dict[Any, float] = {}
        self._losses: dict[str, int] = {}

    def lost(self, pending: Mapping[Any, Any]) -> list[Any]:
        """Cancel the pending tasks of dead nodes and return their references, so that the caller can submit them again.

        Args:
            pending: reference -> task.

        Raises:
            UserError: the head is gone, or a task has lost its node too often.
        """
        now = time.monotonic()
        if not self._address or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        if not self._head.answers():
            return []
        import ray

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        node_of = ray.get(self._hub.nodes.remote())
        dead = [ref for ref, task in pending.items() if node_of.get(task.name, "") not in {"", *alive}]
        self._since = {ref: self._since.get(ref, now) for ref in dead}
        given_up = [ref for ref, since in self._since.items() if now - since > _GRACE_SECONDS]
        for ref in given_up:
            name = pending[ref].name
            self._losses[name] = self._losses.get(name, 0) + 1
            if self._losses[name] > RETRIES:
                raise UserError(f"{name}: its node was lost {RETRIES + 1} times; {CONTINUE}")
            ray.get(self._hub.begin.remote(name, ""))
            with contextlib.suppress(Exception):  # the node of the task is lost
                ray.cancel(ref, force=True)
        return given_up


def require_head(address: str) -> None:
    """Check that a head answers at an address, since Ray would wait for minutes.

    Raises:
        UserError: the address is not host:port, or nothing listens there.
    """
    if not address:
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        rule = "must be host:port (of the cluster's head), or http://host:8265 (of its dashboard)"
        raise UserError(f"RAY_ADDRESS {rule}, got {address!r}")
    error = connect_error(address, _CONNECT_SECONDS)
    if error is not None:
        reason = error.strerror or str(error)
        raise UserError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({reason}); unset it or start one")


def connect_error(address: str, seconds: float = _ANSWER_SECONDS) -> OSError | None:
    """Connect to ``host:port`` or ``[IPv6]:port``; return the error, or None if something listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        return error
    return None


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Convert an error of Ray in the block to one line with the cure.

    Raises:
        UserError: Ray raised an error.
    """
    from ray import exceptions

    try:
        yield
    except exceptions.RayError as error:
        unanswered = connect_error(address) if address else None
        if unanswered is not None:
            raise UserError(_gone(address, unanswered)) from None
        fault = f"Ray failed: {first_line(error)}"
        if isinstance(error, (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)):
            fault = "Ray's object store is full, and so is the disk that it spills to (of a node's temporary files): "
            fault += "make space there, or end the program that holds the objects"
        elif isinstance(error, exceptions.RayActorError):
            fault = f"the process that keeps the checkpoints was lost ({first_line(error)})"
        raise UserError(f"{fault}; {CONTINUE}") from None


def _gone(address: str, error: OSError) -> str:
    return f"the Ray cluster at {address} has gone ({error.strerror or error}): start it again, and {CONTINUE}"


def capacity(nodes: Iterable[Mapping[str, Any]], needs: Needs) -> int:
    """Return the number of tasks that idle nodes can run at once.

    Args:
        nodes: the result of ``ray.nodes()``.
    """
    wanted = needs.counted
    if not wanted:
        return sys.maxsize
    return sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in _alive(nodes))


def ensure(settings: Settings, workers: int = 1, say: Callable[[str], None] = print) -> None:
    """Wait until the cluster that this process has joined can run ``workers`` tasks at once.

    It waits at most ``settings.node_seconds``, during which an autoscaler can react to the request.

    Args:
        say: prints a line each minute of the wait.

    Raises:
        UserError: the nodes cannot run the tasks, or the head is gone.
    """
    import ray

    needs = settings.needs
    if capacity(ray.nodes(), needs) >= workers:
        return
    watch, start, last_line = HeadWatch(settings.address), time.monotonic(), -_LINE_SECONDS
    with _requested(needs, workers) if settings.node_seconds else contextlib.nullcontext():
        while (waited := time.monotonic() - start) < settings.node_seconds:
            if waited - last_line >= _LINE_SECONDS:
                last_line = waited
                say(f"waiting for a node with {needs}, {waited:.0f} of {settings.node_seconds:.0f} s")
            time.sleep(_WAIT_SECONDS)
            if watch.answers() and capacity(ray.nodes(), needs) >= workers:
                return
    _refuse(ray.nodes(), needs, workers, settings)


@contextlib.contextmanager
def _requested(needs: Needs, workers: int) -> Iterator[None]:
    """Hold a placement group, which makes an autoscaler add nodes."""
    from ray.util import placement_group, remove_placement_group

    bundle = {name: int(amount) if name == "memory" else amount for name, amount in needs.counted.items()}
    request = placement_group([bundle] * workers)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone
            remove_placement_group(request)


def _refuse(nodes: Iterable[Mapping[str, Any]], needs: Needs, workers: int, settings: Settings) -> None:
    """Raise UserError with the request and the largest available amounts."""
    nodes = list(nodes)
    hint = ""
    if settings.node_seconds:
        hint = f"; no such node came in {settings.node_seconds:.0f} s (BDL_WAIT_FOR_NODES)"
    elif settings.address:
        hint = "; add such a node, or set BDL_WAIT_FOR_NODES to the seconds to wait for an autoscaler"
    if workers > 1:
        rule = f"BDL_WORKERS_PER_TASK={workers}: the Ray cluster can run {capacity(nodes, needs)} workers of {needs}"
        raise UserError(f"{rule} at once{hint}")
    names = dict.fromkeys(["CPU", "GPU", *needs.counted])
    most = {name: max((node.get(name, 0) for node in _alive(nodes)), default=0) for name in names}
    raise UserError(f"no node of the Ray cluster has {needs} for a task; the most is {in_words(most)}{hint}")


def _alive(nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [node["Resources"] for node in nodes if node.get("Alive", True)]
