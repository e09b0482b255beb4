"""One Ray head for all stages of a command, started when the first stage asks for it.

Several drivers on one head start their workers once; a head in each stage would cost six seconds and 480 MB each.
"""

from multiprocessing.connection import Connection
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from ..work.cluster import head
from .children import Child

_NAME: Final = "Ray"
_ASK: Final = "ray"


def address(requests: Connection) -> str:
    """Ask the command for the address of the shared head, from the process of a stage.

    Raises:
        UserError: Ray did not start.
    """
    requests.send(_ASK)
    started, text = requests.recv()
    if not started:
        raise UserError(text)
    return str(text)


class SharedHead:
    """The command's side: it starts the head once and passes the address on to all that ask."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.child: Child | None = None
        self._asking: list[Connection] = []
        self._answer: tuple[bool, str] | None = None

    @property
    def waitables(self) -> list[Any]:
        """Return what tells that the head has an address, or has ended."""
        return [] if self.child is None or self._answer is not None else self.child.waitables

    def ask(self, requests: Connection) -> None:
        """Read the request of a stage, and answer it once the head has an address."""
        try:
            requests.recv()
        except (EOFError, OSError):
            return  # The stage has ended.
        self._asking.append(requests)
        if self.child is None:
            self.child = Child(_NAME, _serve, [self._settings])
        self._pass_on()

    def look(self) -> None:
        """Take the address from the head's process, where it has come."""
        if self.child is None or self._answer is not None:
            return
        if self.child.requests.poll():
            try:
                self._answer = True, self.child.requests.recv()
            except (EOFError, OSError):
                list(self.child.lines())
                self._answer = False, self.child.last[-1] if self.child.last else "Ray did not start"
        self._pass_on()

    def _pass_on(self) -> None:
        if self._answer is not None:
            for requests in self._asking:
                try:
                    requests.send(self._answer)
                except OSError:
                    continue  # The stage has ended.
            self._asking.clear()


def _serve(settings: Settings, requests: Connection) -> int:
    with head(settings) as started:
        requests.send(started)
        try:
            requests.recv()  # The command closes the connection at its end.
        except EOFError:
            return 0
    return 0
