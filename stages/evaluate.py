"""evaluate: scores of a run on test rows, corrupted rows, other data: ``python -m stages.evaluate KEY``."""

import sys

from pipeline import evaluating
from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    evaluating.evaluate(key, params, executor, settings)


if __name__ == "__main__":
    sys.exit(shell.main("evaluate", run, sys.argv[1:]))
