"""Processes of stages, forked from one process that has imported the stages' modules (Python's forkserver).

A stage's process leads its own session. One of its threads waits for the end of the command, so that no stage outlives
a killed command.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import TYPE_CHECKING, Final

from bdl_pipe import plugins
from bdl_pipe.errors import UserError

from ..core import signals, threads

if TYPE_CHECKING:
    import psutil

PRELOAD: Final = ("pipeline.run.preload",)
FAILED: Final = 2  # exit code of a stage that failed with an error in one line
SAME: Final = 3  # exit code of a stage that was up to date
INTERRUPTED: Final = 130
_GRACE_SECONDS: Final = 8.0  # seconds between SIGINT and SIGKILL
_KEPT_LINES: Final = 15


class Child:
    """A process that runs a function and sends its output to this process.

    Attributes:
        name: the stage's name.
        last: the last lines that the process printed.
    """

    def __init__(self, name: str, function: Callable[..., int], arguments: Sequence[object], *sockets: socket) -> None:
        """Start ``function(*arguments, *sockets)``; its value is the exit code of the process."""
        threads.limit()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD])
        self._output, writer = context.Pipe(duplex=False)
        # The process imports plugins before it unpickles anything that they define.
        sent = plugins.loaded(), pickle.dumps((function, tuple(arguments)))
        self._process = context.Process(target=_main, args=(name, writer, *sent, *sockets), name=name)
        self.name, self.last, self._began = name, deque[str](maxlen=_KEPT_LINES), time.monotonic()
        self._rest = b""
        self._seconds: float | None = None
        self._process.start()
        writer.close()

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the end, or until now."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def waitables(self) -> list[Connection | int]:
        """Return the handles for ``multiprocessing.connection.wait``: the output and the end of the process."""
        return [self._output, self._process.sentinel]

    def lines(self) -> Iterator[str]:
        """Yield the lines that the process has printed since the last call."""
        while self._output.poll():
            part = os.read(self._output.fileno(), 1 << 16)
            if not part:
                break
            *whole, self._rest = (self._rest + part).split(b"\n")
            yield from self._texts(whole)

    def exit_code(self) -> int | None:
        """Return the exit code, or minus the number of the signal that ended the process; None while it runs."""
        return self._process.exitcode

    def close(self) -> Iterator[str]:
        """Yield the last lines of a process that has ended, and close the connection."""
        self._seconds = self.seconds
        yield from self.lines()
        yield from self._texts([self._rest])
        self._process.join()
        self._output.close()

    def why(self) -> list[str]:
        """Return the last lines of a failed process, and the signal or exit code if it printed no error."""
        code = self.exit_code() or 0
        if code >= 0:
            return list(self.last) or [f"ended with exit code {code}"]
        return [*self.last, f"ended by {signal.Signals(-code).name}; give the same command again to continue"]

    def _texts(self, parts: Sequence[bytes]) -> Iterator[str]:
        for part in parts:
            if text := part.decode(errors="replace").rstrip():
                self.last.append(text)
                yield text

    def interrupt(self) -> None:
        """Send SIGINT to the process and to its descendants."""
        if self._process.pid is not None and self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGINT)

    def family(self) -> list["psutil.Process"]:
        """Return the process and its descendants, as ``psutil.Process``."""
        import psutil

        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.Error:
            return []


def stop(children: Sequence[Child]) -> None:
    """Interrupt the children, and kill the remaining processes after some seconds."""
    if not children:
        return
    import psutil

    family = [process for child in children for process in child.family()]
    for child in children:
        child.interrupt()
    _, alive = psutil.wait_procs(family, timeout=_GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _main(name: str, output: Connection, used: Sequence[plugins.Plugin], work: bytes, *sockets: socket) -> None:
    os.setsid()  # so that Ctrl-C reaches only the command, which passes it on
    _end_with_command()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    signals.interruptible()
    try:
        function, arguments = plugins.opened(used, work)
        code = function(*arguments, *sockets)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def _end_with_command() -> None:
    """End this process and its session when the command has ended.

    The forkserver lives as long as one of the stages, so its end would come too late.
    """
    signals.end_with_parent()
    command = multiprocessing.parent_process()
    assert command is not None

    def end() -> None:
        command.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end, name="end with the command", daemon=True).start()
