"""One Ray head for all tests that need Ray."""

import subprocess
import sys
from collections.abc import Iterator

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
    """host:port of a head on this machine, which ends with the tests of this process."""
    with subprocess.Popen(
        [sys.executable, "-c", _HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        lines = iter(head.stdout.readline, "")
        yield next(line.split()[1] for line in lines if line.startswith("ADDRESS"))
        head.stdin.close()
