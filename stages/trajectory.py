"""trajectory: SGD trajectories of a network, one for each member: ``python -m stages.trajectory KEY``."""

import sys

from pipeline import shell, stage
from pipeline.executors import Executor
from pipeline.params import Params
from pipeline.settings import Settings


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    stage.fit("trajectory", key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("trajectory", run, sys.argv[1:]))
