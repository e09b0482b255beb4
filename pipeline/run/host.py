"""The host: a process that has imported everything once, and from which every stage is a fork.

A stage on its own spends five seconds of a core on imports and, where it needs workers, eight on a Ray head; a fork
has both at once. One host serves one owner, ``python -m pipeline repro`` or a plain ``dvc repro``, over a socket: it
ends with its owner, and everything that it started ends with it.

A request is eight bytes of length, with the requester's stdout and stderr beside them, and JSON. A stage is answered
with ``pid <n>`` at its start and ``exit <code>`` at its end; ``ray`` with ``address <host:port>`` or ``error <why>``.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..core.settings import Settings
from ..plan import code
from . import remote
from .body import Request
from .body import main as run_stage
from .client import HOST, LOG

_MODULES: Final = (  # what stages import, and what the libraries below them import when they are first used
    "torch._dynamo",
    "scipy.optimize.elementwise",
    "bdl_pipe.registry",
    "bdl_pipe.summary",
    "pipeline.stages.evaluate",
    "pipeline.stages.prepare",
    "pipeline.tracking.model",
    "pipeline.stages.fit",
    "pyarrow.pandas_compat",
)
_RAY: Final = ("ray", "ray.dashboard.optional_deps")
_TRACKING: Final = (
    "mlflow.tracking",
    "mlflow.pyfunc",
    "mlflow.store.tracking.sqlalchemy_store",
    "alembic.command",
    "git",
)
_POLL_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 8.0
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl


def main(path: str, owner: int, ahead: Sequence[str] | None = None) -> None:
    """Serve until ``owner`` ends, and run the targets ``ahead`` meanwhile (none of them: all; null: nothing)."""
    import psutil

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is its owner's business
    try:
        process = psutil.Process(owner)
    except psutil.NoSuchProcess:
        return
    gc.disable()
    try:
        for _ in preload():  # seven seconds of a core together, on a busy machine a minute
            if not _lives(process):
                return
        gc.freeze()  # what is imported is no garbage: a fork that looked for some there would copy every page of it
    finally:
        gc.enable()
    Host(Path(path), process).serve(ahead)


def preload() -> Iterator[None]:
    """Import what stages import, one step at a time. What cannot be imported is left to the stage, which says why."""
    from ..tracking import experiments, model
    from ..work import cluster

    experiments.quiet_environment()
    cluster.prepare_environment()
    from bdl_pipe.registry import METHODS

    for name in METHODS:
        with contextlib.suppress(ImportError):
            METHODS[name]
        yield
    settings = Settings.read()
    for module in modules(settings):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
        yield
    if settings.tracking:
        with contextlib.suppress(ImportError):
            model.read_installed_packages()
        yield
    for kind in code.BODIES:
        for method in METHODS if code.has_method(kind) else (None,):
            code.digest(kind, method)  # of what has just been imported; a fork finds it done


def modules(settings: Settings) -> tuple[str, ...]:
    """List the modules that stages will import under ``settings``, beside the methods."""
    return (
        *_MODULES,
        *(_RAY if settings.executor == "ray" else ()),
        *(_TRACKING if settings.tracking else ()),
        *(remote.MODULES if settings.remote else ()),
    )


class Host:
    """A server that forks stages, and one Ray head for all of them when the first one asks for it."""

    def __init__(self, path: Path, owner: Any) -> None:
        """Take the path of the socket, and the owner, a ``psutil.Process``."""
        self._path, self._owner = path, owner
        self._selector = selectors.DefaultSelector()
        self._stages: dict[int, socket.socket] = {}  # pid -> its requester
        self._head: tuple[int, int] | None = None  # pid, and the pipe that its address comes through
        self._address = ""
        self._ahead = 0  # pid, where stages are run ahead
        self._asking: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def serve(self, ahead: Sequence[str] | None) -> None:
        """Answer requests until the owner ends, and run the targets ``ahead`` meanwhile, see :func:`main`."""
        before = os.umask(0o077)
        self._listener.bind(str(self._path))
        os.umask(before)
        self._listener.listen(64)
        woken, waking = os.pipe()
        for end in (woken, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        if ahead is not None:
            self._ahead = self._fork(lambda: _ahead(self._path, ahead), dict(os.environ), _log())
        try:
            while _lives(self._owner):
                for key, _ in self._selector.select(_POLL_SECONDS):
                    key.data()
                self._reap()
        finally:
            self._path.unlink(missing_ok=True)
            self._end()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            size, descriptors, _, _ = socket.recv_fds(connection, 8, 2)
            text = b""
            while len(text) < int.from_bytes(size, "big"):
                part = connection.recv(1 << 20)
                if not part:
                    raise OSError("the requester has gone")
                text += part
            asked = json.loads(text)
        except (OSError, ValueError):
            connection.close()
            return
        if asked["do"] == "ray":
            for descriptor in descriptors:
                os.close(descriptor)
            self._ask(connection)
            return
        request = Request(**asked["request"])
        pid = self._fork(lambda: _stage(self._path, request), asked["environment"], descriptors, connection)
        for descriptor in descriptors:
            os.close(descriptor)
        self._stages[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._gone(pid))
        _tell(connection, f"pid {pid}")

    def _fork(
        self,
        work: Callable[[], int],
        environment: dict[str, str],
        output: Iterable[int],
        kept: socket.socket | None = None,
        death: signal.Signals = signal.SIGKILL,
    ) -> int:
        """Fork a child that does ``work`` in a session of its own and ends. It dies with this process by ``death``."""
        parent, signals = os.getpid(), (signal.SIGINT, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until the child can say that it was interrupted
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return pid
        code = 1
        try:
            _die_with(parent, death)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in signals:
                signal.signal(number, signal.default_int_handler)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not kept:
                    os.close(key.fd)
            for target, descriptor in zip((1, 2), output, strict=False):
                os.dup2(descriptor, target)
            sys.stdout, sys.stderr = (os.fdopen(target, "w", buffering=1, closefd=False) for target in (1, 2))
            os.environ.clear()
            os.environ.update(environment)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            code = work()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 130
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _ask(self, connection: socket.socket) -> None:
        """Answer with the head's address, at once or as soon as it is there."""
        if self._address:
            _tell(connection, f"address {self._address}")
            connection.close()
            return
        self._asking.append(connection)
        if self._head is None:
            answer, telling = os.pipe()
            self._head = self._fork(lambda: _head(telling), dict(os.environ), (), None, signal.SIGTERM), answer
            os.close(telling)
            self._selector.register(answer, selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        """Tell all who asked that the head is there, or why it cannot be."""
        assert self._head is not None
        text = os.read(self._head[1], 4096).decode() or "error Ray ended as it started"
        self._selector.unregister(self._head[1])
        os.close(self._head[1])
        if text.startswith("address "):
            self._address = text.removeprefix("address ")
        for connection in self._asking:
            _tell(connection, text)
            connection.close()
        self._asking = []

    def _gone(self, pid: int) -> None:
        """End a stage whose requester has ended before it: nobody waits for it any more."""
        connection = self._stages.pop(pid)
        self._selector.unregister(connection)
        connection.close()
        _end_groups([pid])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._head is not None and pid == self._head[0]:
                self._head, self._address = None, ""  # another one is started when a stage asks for it
            connection = self._stages.pop(pid, None)
            if connection is not None:
                self._selector.unregister(connection)
                _tell(connection, f"exit {os.waitstatus_to_exitcode(status)}")
                connection.close()

    def _end(self) -> None:
        _end_groups([*self._stages, *([self._ahead] if self._ahead else []), *([self._head[0]] if self._head else [])])


def _lives(process: Any) -> bool:
    """Say whether a ``psutil.Process`` runs; one that has ended and was not waited for does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _stage(path: Path, request: Request) -> int:
    os.environ |= {HOST: str(path), "PYTHONUNBUFFERED": "1"}
    return run_stage(request)


def _ahead(path: Path, targets: Sequence[str]) -> int:
    from .runner import ahead

    os.environ |= {HOST: str(path), "PYTHONUNBUFFERED": "1"}
    return ahead(path, targets)


def _log() -> tuple[int, int]:
    """Open the log of the stages that are run ahead; return it as stdout and stderr."""
    log = os.open(LOG.with_name("ahead.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    return log, log


def _head(telling: int) -> int:
    """Hold the Ray head until this process is told to end."""
    from bdl_pipe.errors import UserError

    from ..work.cluster import head

    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    try:
        with head(Settings.read()) as address:
            signal.signal(signal.SIGTERM, end)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.write(telling, f"address {address}".encode())
            os.close(telling)
            while not ended:
                time.sleep(_POLL_SECONDS)
    except UserError as error:
        os.write(telling, f"error {error}".encode())
    finally:  # it may have been told to end while Ray was starting
        for process in _left_of([os.getpid()]):
            process.kill()
    return 0


def _tell(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(text.encode() + b"\n")


def _end_groups(pids: Sequence[int]) -> None:
    """End each child by SIGTERM, and by SIGKILL whatever is left, after a while, of all that they started."""
    import psutil

    family = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            family += [process, *process.children(recursive=True)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=_GRACE_SECONDS)
    for process in [*alive, *_left_of(pids)]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _left_of(leaders: Sequence[int]) -> Iterator[Any]:
    """Find what the children started and did not live to end: the other processes of their sessions."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if process.pid not in leaders and os.getsid(process.pid) in leaders:
                yield process


def _die_with(parent: int, death: signal.Signals) -> None:
    """Let this process get the signal ``death`` when its parent ends, even if SIGKILL ends that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(death))
    if os.getppid() != parent:  # it ended in between
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
