"""A cluster that is lost while it is at work: whose fault it was, and what to do, in one line."""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from .base import Task
from .hub import RETRIES, first_line

GO_ON: Final = "the same command goes on from the last checkpoints"
_LOOK_SECONDS: Final = 5.0  # between two looks at the head
_ANSWER_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 10.0  # in which Ray mostly hears of a lost task itself
_REFUSED_SECONDS: Final = 10.0  # a head that is started again is there by then
_SILENT_SECONDS: Final = 45.0  # a network may mend itself; after 60 s Ray ends this process


class Watch:
    """A watch over the head of a cluster that is named, for whose answer Ray itself waits a minute, and then aborts."""

    def __init__(self, address: str) -> None:
        self._address, self._answered = address, time.monotonic()
        self._looked = self._answered

    def look(self) -> None:
        """See whether the head answers, every few seconds.

        Raises:
            UserError: it has not for some time.
        """
        now = time.monotonic()
        if not self._address or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        error = silence(self._address)
        if error is None:
            self._answered = now
        elif now - self._answered > (
            _REFUSED_SECONDS if isinstance(error, ConnectionRefusedError) else _SILENT_SECONDS
        ):
            raise UserError(_gone(self._address, error))


class Losses:
    """Whether tasks get on between their losses: one that does is worth another attempt, however often it is lost."""

    def __init__(self, hub: Any) -> None:
        self._hub, self._saves = hub, dict[str, int]()

    def has_got_on(self, task: str) -> bool:
        """Say whether a checkpoint of the task has been kept since the last time that this was asked of it."""
        import ray

        before, self._saves[task] = self._saves.get(task, 0), ray.get(self._hub.saves.remote(task))
        return self._saves[task] > before


class Silent:
    """The tasks of nodes that fell silent: a machine switched off, or a network that was cut.

    Ray notices that the node is gone, and yet waits for its tasks until their connections end, in many minutes.
    """

    def __init__(self, address: str, hub: Any, losses: Losses) -> None:
        self._address, self._hub, self._losses, self._looked = address, hub, losses, time.monotonic()
        self._seen: dict[Any, float] = {}
        self._given_up: dict[str, int] = {}

    def look(self, pending: Mapping[Any, Task]) -> list[Any]:
        """Return those of the pending that are to be submitted anew, every few seconds; Ray is told to forget them.

        Raises:
            UserError: a task has lost one node after the other, and got on on none.
        """
        now = time.monotonic()
        if not self._address or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        if silence(self._address) is not None:  # where the head is gone Ray would wait for a minute, and then abort
            return []
        import ray

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        places = ray.get(self._hub.places.remote())
        lost = [ref for ref, task in pending.items() if places.get(task.name, "") not in {"", *alive}]
        self._seen = {ref: self._seen.get(ref, now) for ref in lost}
        old = [ref for ref, since in self._seen.items() if now - since > _GRACE_SECONDS]
        for ref in old:
            name = pending[ref].name
            self._given_up[name] = 1 if self._losses.has_got_on(name) else self._given_up.get(name, 0) + 1
            if self._given_up[name] > RETRIES:
                raise UserError(f"{name}: its node was lost {RETRIES + 1} times; {GO_ON}")
            ray.get(self._hub.begin.remote(name, ""))
            with contextlib.suppress(Exception):
                ray.cancel(ref, force=True)
        return old


def silence(address: str, seconds: float = _ANSWER_SECONDS) -> OSError | None:
    """Return the error of who asks at ``host:port`` or ``[IPv6]:port``, where nobody answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        return error
    return None


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Raise an error of Ray itself as one line that says what to do.

    Raises:
        UserError: in place of any of Ray's errors.
    """
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise UserError(_said(error, address)) from None


def _said(error: Any, address: str) -> str:
    from ray import exceptions

    unanswered = silence(address) if address else None
    if unanswered is not None:
        return _gone(address, unanswered)
    if isinstance(error, (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)):
        return (
            "Ray's object store is full, and so is the disk that it spills to (of a node's temporary files): "
            f"make space there, or end what holds the objects; {GO_ON}"
        )
    if isinstance(error, exceptions.RayActorError):
        return f"the process that keeps the checkpoints was lost ({first_line(error)}); {GO_ON}"
    return f"Ray could not run it: {first_line(error)}; {GO_ON}"


def _gone(address: str, error: OSError) -> str:
    return f"the Ray cluster at {address} has gone ({error.strerror or error}): start it again, and {GO_ON}"
