"""Run ``python -m MODULE`` or ``python -c TEXT`` in a fork of a process that has imported the libraries.

A command of the pipeline is ten seconds of imports and a tenth of work. Every copy of the project brings its own code,
so the forks must find none of it imported; this module itself imports the standard library alone, for that reason.
Tests that use it are in the group ``FORKED`` of conftest.py, so that the libraries are imported once. The tests of
kills start real commands.
"""

import atexit
import contextlib
import itertools
import json
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any
from unittest import mock

_ROOT = Path(__file__).parents[2]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("numpy", "pandas", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.pandas_compat", "yaml", "ruamel.yaml"),
        *("scipy.optimize.elementwise", "scipy.stats", "sklearn", "torch._dynamo", "matplotlib.figure"),
    ]
)


def run(folder: Path, environment: Mapping[str, str], words: Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of ``python *words`` in ``folder``; words begin with -m or -c."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as error:
        code = _run(str(folder), dict(environment), list(words), out.name, error.name)
        return code, out.read(), error.read()


def _run(*command: Any) -> int:
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # the fork server reads it when it imports torch
        process = _CONTEXT.Process(target=_become, args=command)
        process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


_PYTHON = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    files = [f"/proc/{{os.getpid()}}/fd/{{number}}" for number in (1, 2)]
    server.sendall(json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:], *files]).encode() + b"\\n")
    sys.exit(int(server.makefile().read()))
"""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Path]:
    """Yield a folder for PATH whose ``python`` runs modules in forks: for commands that another program starts."""
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as short:
        listener.bind(f"{short}/socket")  # the name of a socket has at most 108 bytes
        listener.listen()
        (folder / "python").write_text(_PYTHON.format(python=sys.executable, place=f"{short}/socket"))
        (folder / "python").chmod(0o755)

        def serve() -> None:
            while True:
                with listener.accept()[0] as asked:
                    line = asked.makefile().readline()
                    if not line:  # the end of the block
                        return
                    asked.sendall(str(_run(*json.loads(line))).encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield folder
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(f"{short}/socket")
            thread.join()


def _become(folder: str, environment: dict[str, str], words: list[str], out: str, error: str) -> None:
    """Turn this process into the command."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, out, error)):
        os.dup2(os.open(path, os.O_RDWR), number)
    ours = {"", str(_ROOT), str(_ROOT / "src")}
    sys.path[:] = [folder, *environment["PYTHONPATH"].split(os.pathsep), *(p for p in sys.path if p not in ours)]
    util.spawnv_passfds = _forks(util.spawnv_passfds)
    sys.argv[:] = ["", *words[2:]]
    try:
        if words[0] == "-c":
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing's processes end without them, and a command does not


def _forks(spawn: Any) -> Any:
    """Return a function that starts the command's own fork server as a fork, which need not import the libraries again.

    Where the command has threads, whose locks a fork would keep, it starts a new process as usual.
    """

    def start(path: str, words: Sequence[str], kept: Sequence[int]) -> int:
        if "multiprocessing.forkserver" not in words[-1] or threading.active_count() > 1:
            return int(spawn(path, words, kept))
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            return pid
        try:
            util.spawnv_passfds = spawn
            ends = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
            for first, last in itertools.pairwise(ends):
                os.closerange(first + 1, last)
            forkserver._forkserver.__init__()  # type: ignore[misc]  # its lock was held during the fork
            with contextlib.suppress(SystemExit):
                exec(words[-1], {})
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)

    return start
