"""Plans whose stages are only names, and commands that run them; ``pool_work`` is the work of their processes."""

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pool_work import work

from pipeline.core.settings import Settings
from pipeline.plan.plan import Plan, Stage
from pipeline.run import children, pool
from pipeline.run.children import Child
from pipeline.tracking import Tracker

NO_PARAMS: Final[Any] = None
UNTRACKED: Final = Tracker(Settings(tracking=False), NO_PARAMS, "test", {})


def plan_of(needs: Mapping[str, Collection[str]]) -> Plan:
    """Make a plan from a mapping of each stage to its needs, which lists a stage after its needs."""
    return {name: Stage(name, "", frozenset(above), (), (), {}, {}) for name, above in needs.items()}


def starter(folder: Path, acts: Mapping[str, str]) -> "pool.Callable[[str], Child]":
    return lambda name: Child(name, work, (name, folder, acts.get(name, "")))


@contextlib.contextmanager
def waiting(folder: Path, *names: str) -> Iterator[list[int]]:
    """Wait until the stages hang, and yield the ids of their processes and of the processes that they started."""
    files = [folder / f"{name}.pids" for name in names]
    while not all(file.is_file() and len(file.read_text().split()) == 2 for file in files):
        time.sleep(0.05)
    yield [int(pid) for file in files for pid in file.read_text().split()]


def main(folder: str, act: str, jobs: int) -> None:
    """A command that runs two stages; it is started with SIGINT ignored, as in the background of a script."""
    os.chdir(folder)
    children.PRELOAD = ("pool_work",)
    stages: dict[str, list[str]] = {"a": [], "b": []}
    pool.schedule(plan_of(stages), stages, starter(Path(folder), dict.fromkeys(stages, act)), UNTRACKED, jobs=jobs)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
