"""One Ray head for all tests that need Ray."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HEAD = """
from pipeline.core.settings import Settings
from pipeline.work.cluster import head
with head(Settings()) as address:
    print("ADDRESS", address, flush=True)
    input()
"""


@pytest.fixture(scope="session")
def ray_head() -> Iterator[str]:
    """host:port of a head on this machine, which ends with the tests of this process.

    Its workers can import the methods of this folder.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    with subprocess.Popen(
        [sys.executable, "-c", _HEAD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        lines = iter(head.stdout.readline, "")
        yield next(line.split()[1] for line in lines if line.startswith("ADDRESS"))
        head.stdin.close()
