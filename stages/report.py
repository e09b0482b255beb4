"""report: tables and pictures from the stored scores of all runs: ``python -m stages.report``."""

import sys

from pipeline import reporting
from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings


def run(params: Params, executor: Executor, settings: Settings) -> None:
    reporting.build(params, settings)


if __name__ == "__main__":
    sys.exit(shell.main("report", run, sys.argv[1:]))
