"""Plans of stages that are names alone, and processes that run a command line."""

import subprocess
from collections.abc import Collection, Iterator, Mapping

from pipeline.plan.plan import Plan, Stage


def plan_of(needs: Mapping[str, Collection[str]]) -> Plan:
    """Stage -> what it needs, each after all that it needs."""
    return {name: Stage(name, "", frozenset(above), (), (), {}, {}) for name, above in needs.items()}


class Command:
    """A process that runs a command line, the leader of a group of its own."""

    def __init__(self, line: list[str]) -> None:
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        yield from self._process.stdout

    def wait(self) -> int:
        return self._process.wait()
