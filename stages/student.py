"""student: the posteriors that will predict: ``python -m stages.student KEY``."""

import sys

from pipeline import shell, stage
from pipeline.executors import Executor
from pipeline.params import Params
from pipeline.settings import Settings


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    stage.fit("student", key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("student", run, sys.argv[1:]))
