"""One Ray head for all stages of a command, in its own process, which starts the head on the first request.

Several drivers share the head's workers; a head for each stage would cost six seconds and 480 MB each.
"""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from ..work import cluster
from .children import Child, stop


@contextlib.contextmanager
def shared(settings: Settings) -> Iterator[str]:
    """Yield the path of a socket that returns the head's address during the block; "" if stages do not use Ray."""
    if settings.executor == "inline" or settings.address:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="bdl-head-") as folder:
        place = str(Path(folder, "socket"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place)
            listener.listen()
            process = Child("Ray", _serve, [settings], listener)
        try:
            yield place
        finally:
            stop([process])


def address(place: str) -> str:
    """Return the address of the shared head, in the process of a stage.

    Args:
        place: the path that :func:`shared` yields.

    Raises:
        UserError: Ray did not start.
    """
    if not place:
        return ""
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(place)
            answer = asking.makefile().read()
    except OSError:
        answer = ""
    problem, started = json.loads(answer) if answer else ("Ray did not start: its process has ended", "")
    if problem:
        raise UserError(problem)
    return str(started)


def _serve(settings: Settings, listener: socket.socket) -> NoReturn:
    """Start the head on the first request, and send its address to all clients."""
    asking, _ = listener.accept()
    with contextlib.ExitStack() as stack:
        try:
            answer = "", stack.enter_context(cluster.head(settings))
        except UserError as error:
            answer = str(error), ""
        while True:
            with contextlib.suppress(OSError), asking:  # the stage may have ended
                asking.sendall(json.dumps(answer).encode())
            asking, _ = listener.accept()
