"""coreset: a few synthetic or chosen rows in place of a data set: ``python -m stages.coreset KEY``."""

import sys

from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings
from pipeline.rows import stage


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    stage.fit("coreset", key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("coreset", run, sys.argv[1:]))
