"""trajectory: SGD trajectories of a network, one for each member: ``python -m stages.trajectory KEY``."""

import sys

from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings
from pipeline.rows import stage


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    stage.fit("trajectory", key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("trajectory", run, sys.argv[1:]))
