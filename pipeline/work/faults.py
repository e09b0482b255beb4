"""Faults of a cluster during work: a head that is gone, nodes that are gone, and Ray's errors in one line each.

Ray restarts the tasks of a lost worker itself. Two cases are left to this module, since no public function of Ray
covers them: without a head Ray waits a minute and then aborts this process, and it waits for the tasks of a node that
fell silent until their connections end, which takes many minutes.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from .base import Task
from .hub import RETRIES, first_line

CONTINUE: Final = "the same command continues from the last checkpoints"
_LOOK_SECONDS: Final = 5.0  # between two looks at the head or at the nodes
_ANSWER_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 3.0
_GRACE_SECONDS: Final = 10.0  # in which Ray usually fails the tasks of a dead node itself
_REFUSED_SECONDS: Final = 10.0  # a head that is being restarted listens again by then
_SILENT_SECONDS: Final = 45.0  # a network may recover; after 60 s Ray aborts this process


class HeadWatch:
    """Checks that the head of a named cluster accepts connections; a head of this machine always does."""

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
    """Finds the tasks whose node Ray has declared dead but whose results Ray still waits for."""

    def __init__(self, address: str, hub: Any) -> None:
        """Watch the tasks on the cluster at host:port; an empty address means this machine, which has one node."""
        self._address, self._head, self._hub = address, HeadWatch(address), hub
        self._looked = time.monotonic()
        self._since: dict[Any, float] = {}
        self._losses: dict[str, int] = {}

    def lost(self, pending: Mapping[Any, Task]) -> list[Any]:
        """Cancel the pending tasks of dead nodes and return their references, for the caller to submit them again.

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
            with contextlib.suppress(Exception):
                ray.cancel(ref, force=True)
        return given_up


def require_head(address: str) -> None:
    """Refuse an address where nothing answers; Ray itself would wait for minutes.

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
    """Turn an error of Ray in the block into one line that says what to do.

    Raises:
        UserError: in place of any error of Ray.
    """
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise UserError(_explanation(error, address)) from None


def _explanation(error: Any, address: str) -> str:
    from ray import exceptions

    unanswered = connect_error(address) if address else None
    if unanswered is not None:
        return _gone(address, unanswered)
    if isinstance(error, (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)):
        return (
            "Ray's object store is full, and so is the disk that it spills to (of a node's temporary files): "
            f"make space there, or end the program that holds the objects; {CONTINUE}"
        )
    if isinstance(error, exceptions.RayActorError):
        return f"the process that keeps the checkpoints was lost ({first_line(error)}); {CONTINUE}"
    return f"Ray failed: {first_line(error)}; {CONTINUE}"


def _gone(address: str, error: OSError) -> str:
    return f"the Ray cluster at {address} has gone ({error.strerror or error}): start it again, and {CONTINUE}"
