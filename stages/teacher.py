"""teacher: chains of posterior draws, one for each member: ``python -m stages.teacher KEY``."""

import sys

from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings
from pipeline.rows import stage


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    stage.fit("teacher", key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("teacher", run, sys.argv[1:]))
