"""Run ``python -m MODULE`` in a fork of a process that has imported the libraries and nothing of the project's.

A command of the pipeline is two seconds of imports and a tenth of work. Every copy of the project brings its own code,
so the forks must find none of it imported; this module itself imports the standard library alone, for that reason.
The tests of kills start real commands.
"""

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

_ROOT = Path(__file__).parents[2]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "pandas", "pyarrow.parquet", "scipy.optimize", "torch", "yaml"])


def run(folder: Path, environment: Mapping[str, str], module: str, arguments: Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of ``python -m module *arguments`` in ``folder``."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as error:
        command = (str(folder), dict(environment), module, list(arguments), out.name, error.name)
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # the fork server reads it when it imports torch
            process = _CONTEXT.Process(target=_become, args=command)
            process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode, out.read(), error.read()


def _become(folder: str, environment: dict[str, str], module: str, arguments: list[str], out: str, error: str) -> None:
    """Turn this process into the command."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, out, error)):
        os.dup2(os.open(path, os.O_RDWR), number)
    ours = {"", str(_ROOT), str(_ROOT / "src")}
    sys.path[:] = [folder, *environment["PYTHONPATH"].split(os.pathsep), *(p for p in sys.path if p not in ours)]
    sys.argv[:] = ["", *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing's processes end without them, and a command does not
