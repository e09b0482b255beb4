"""Tests leave nothing in the repository's root: a session that leaves a new file or folder there fails."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

_CACHES: Final = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"}
_BEFORE: Final = pytest.StashKey[frozenset[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the main process, and no worker of pytest-xdist
        session.config.stash[_BEFORE] = frozenset(os.listdir(session.config.rootpath))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    if _left(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if names := _left(terminalreporter.config):
        terminalreporter.section("left in the repository's root", red=True)
        terminalreporter.line(", ".join(names))


def _left(config: pytest.Config) -> list[str]:
    """List the files and folders that are new in the root since the session began, except for the caches of tools."""
    before = config.stash.get(_BEFORE, None)
    return [] if before is None else sorted({*os.listdir(config.rootpath)} - before - _CACHES)
