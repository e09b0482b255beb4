"""Stages in processes that start with everything imported: forks of one server, which has done it once.

A stage on its own spends five seconds of a core on imports, and DVC around it another. Here one fork does both: DVC
decides and records, as in a process of its own, and what it would start as ``python -m stages.<kind> [KEY]`` is called
where DVC is. The server has no threads of ours and no cluster, device or database open when it is forked.
"""

import importlib
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Final

from bdl_pipe.errors import UserError

from .core import shell
from .core.executors.cluster import prepare_environment
from .scheduler import Process

_PRELOAD: Final = "pipeline.preload"
_STAGE: Final = re.compile(r"python -m stages\.(\w+)((?: \S+)*)")  # a command of dvc.yaml


class Server:
    """Forks stages; it begins to import when it is made."""

    def __init__(self) -> None:
        prepare_environment()  # the server finds the project by PYTHONPATH
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_PRELOAD])
        forkserver.ensure_running()

    def start(self, name: str) -> Process:
        """A process in which DVC reproduces the stage ``name``, and nothing upstream of it.

        Raises:
            UserError: the server has ended and cannot be made again, or ended before it answered.
        """
        ours, its = self._context.Pipe(duplex=False)
        process = self._context.Process(target=reproduce, args=(name, its, dict(os.environ)))
        try:
            process.start()
        except (OSError, EOFError) as error:
            ours.close()
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            instead = "python -m pipeline run all works without it"
            raise UserError(
                f"{name}: the process that stages are forked from has ended ({reason}); {instead}"
            ) from None
        finally:
            its.close()
        return _Fork(process, ours)


class _Fork:
    def __init__(self, process: multiprocessing.process.BaseProcess, output: Connection) -> None:
        assert process.pid is not None
        self.pid, self._process, self._output = process.pid, process, output

    def lines(self) -> Iterator[str]:
        with os.fdopen(os.dup(self._output.fileno()), errors="replace") as lines:
            self._output.close()
            yield from lines

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def reproduce(name: str, output: Connection, environment: dict[str, str]) -> None:
    """The life of a fork: ``dvc --wait-for-lock repro -s NAME``, in a session of its own, printing to ``output``."""
    os.setsid()
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    from dvc.cli import main
    from dvc.stage import run
    from dvc.utils.serialize import _yaml

    # a lock file has no comments to keep, for which DVC reads it five times as slowly before it adds a stage
    _yaml.parse_yaml_for_update = _yaml.parse_yaml
    elsewhere = run._run

    def here(executable: str, command: str, **settings: Any) -> None:
        stage = _STAGE.fullmatch(command)
        if stage is None:
            elsewhere(executable, command, **settings)
            return
        os.environ.update(settings["env"])
        kind, arguments = stage.groups()
        code = shell.main(kind, importlib.import_module(f"stages.{kind}").run, arguments.split())
        if code:
            raise run.StageCmdFailedError(command, code)

    run._run = here
    sys.exit(main(["--wait-for-lock", "repro", "-s", name]))
