"""The other side of the host's socket: whoever wants a stage run, or the address of the shared Ray head.

Nothing heavy is imported: under ``dvc repro`` each stage's own process is only this.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..tracking.provenance import OWNER

HOST: Final = "BDL_HOST"  # the socket's path, in the environment of whatever a host has forked
_START_SECONDS: Final = 120.0
LOG: Final = Path(".state/host.log")


class Lost(Exception):
    """There is no host: none could be started, or it has ended."""


class Remote:
    """A stage that runs in a fork of the host, the leader of a process group of its own.

    Attributes:
        pid: of the fork.
    """

    def __init__(self, path: Path, request: Mapping[str, Any], output: Sequence[int]) -> None:
        """Ask the host to run a stage.

        Args:
            path: of the host's socket.
            request: ``body.Request`` as a mapping.
            output: descriptors for what it prints: stdout, stderr.

        Raises:
            Lost: no host answers.
        """
        asked = {"do": "stage", "request": dict(request), "environment": {**os.environ}}
        self._connection = _ask(path, asked, output)
        self._answers = self._connection.makefile()
        self.pid = int(self._answer("pid"))

    def wait(self) -> int:
        """Wait for the fork's exit code: minus the number of the signal, where one ended it.

        Raises:
            Lost: the host has ended.
        """
        return int(self._answer("exit"))

    def _answer(self, word: str) -> str:
        line = self._answers.readline()
        if not line.startswith(f"{word} "):
            raise Lost("the process that stages are forked from has ended")
        return line.split(maxsplit=1)[1].strip()


class Piped:
    """A stage that runs in a fork of the host, and whose output is read by the process that asked for it."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        reading, writing = os.pipe()
        try:
            self._remote = Remote(path, request, (writing, writing))
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self.pid, self._output = self._remote.pid, reading

    def lines(self) -> Iterator[str]:
        with os.fdopen(self._output, errors="replace") as lines:
            yield from lines

    def wait(self) -> int:
        return self._remote.wait()


def start(owner: int, created: float, ahead: Sequence[str] | None = None) -> Path:
    """Return the socket of the owner's host, which is started unless it is there.

    Args:
        owner, created: process id and start time of the process that the host ends with.
        ahead: targets that a new host runs ahead of whoever asks for them one by one (none: all); null: nothing.

    Raises:
        Lost: it cannot be started here.
    """
    path = _folder() / f"{hashlib.sha256(f'{Path.cwd()}/{owner}/{created}'.encode()).hexdigest()[:16]}.sock"
    if _answers(path):
        return path
    LOG.parent.mkdir(exist_ok=True)
    with open(LOG, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.run.host", str(path), str(owner), json.dumps(ahead)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + _START_SECONDS
    while not _answers(path):
        if process.poll() is not None or time.monotonic() > until:
            raise Lost(f"the process that stages are forked from did not start (see {LOG})")
        time.sleep(0.05)
    return path


def ray_address() -> str:
    """Return the address of the Ray head that stages share; empty where there is no host.

    Raises:
        UserError: Ray did not start.
    """
    path = os.environ.get(HOST)
    if not path:
        return ""
    from bdl_pipe.errors import UserError

    try:
        answer = _ask(Path(path), {"do": "ray"}, ()).makefile().readline()
    except Lost:
        return ""
    word, _, text = answer.strip().partition(" ")
    if word != "address":
        raise UserError(text or "Ray did not start")
    return text


def main(kind: str, arguments: Sequence[str]) -> int:
    """Run ``python -m stages.<kind> [KEY]``: in a fork of the host under ``dvc repro``, else in this process."""
    request: dict[str, Any] = {"kind": kind, "key": arguments[0] if arguments else ""}
    if sys.platform == "linux" and os.environ.get("DVC_STAGE") and kind != "sources":
        from .invocation import Invocation

        invocation = Invocation.above()
        if invocation is not None:
            with contextlib.suppress(Lost):
                return _forked({**request, "force": invocation.forced}, invocation)
    from .body import Request
    from .body import main as here

    return here(Request(**request))


def _forked(request: Mapping[str, Any], invocation: Any) -> int:
    os.environ[OWNER] = str(invocation.pid)
    path = start(invocation.pid, invocation.created, invocation.targets)
    remote = Remote(path, request, (1, 2))

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(remote.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    code = remote.wait()
    return code if code >= 0 else 128 - code


def _ask(path: Path, asked: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    text = json.dumps(asked).encode()
    try:
        connection.connect(str(path))
        socket.send_fds(connection, [len(text).to_bytes(8, "big")], list(descriptors))
        connection.sendall(text)
    except OSError as error:
        connection.close()
        raise Lost(f"the process that stages are forked from does not answer ({error.strerror or error})") from None
    return connection


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _folder() -> Path:
    """Make the folder in which sockets lie, which is this user's alone."""
    folder = Path(tempfile.gettempdir()) / f"bdl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Lost(f"{folder} must be this user's alone")
    return folder
