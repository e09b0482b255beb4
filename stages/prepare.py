"""prepare: fetch, verify, split, normalise, whiten, corrupt: ``python -m stages.prepare DATASET``."""

import sys

from pipeline import preparing
from pipeline.core import shell
from pipeline.core.executors import Executor
from pipeline.core.params import Params
from pipeline.core.settings import Settings


def run(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    preparing.prepare_dataset(key, params, executor)


if __name__ == "__main__":
    sys.exit(shell.main("prepare", run, sys.argv[1:]))
