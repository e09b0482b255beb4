"""A cluster that is lost while it is at work: whose fault it was, and what to do, in one line."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from bdl_pipe.errors import UserError

from .hub import first_line

GO_ON: Final = "the same command goes on from the last checkpoints"
_LOOK_SECONDS: Final = 5.0  # between two looks at the head
_ANSWER_SECONDS: Final = 1.0
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


def silence(address: str) -> OSError | None:
    """Return the error of who asks at ``host:port``, where nobody answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
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
