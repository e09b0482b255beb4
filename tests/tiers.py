"""The order of the tests and the signals that they receive; in ``make check`` a test that starts a process fails.

The marks that sort tests into ``make check``, ``make test`` and ``make soak`` are listed in pyproject.toml.
"""

import gc
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_STARTS: Final = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system")
_HEAVY: Final = re.compile(r"^(import|from) (ray|mlflow|dvc|moto|boto3)\b", re.MULTILINE)
_OF_THE_FILE: Final = re.compile(r"^pytestmark = .*", re.MULTILINE)
_started: list[str] | None = None  # the processes that the running test has started; None: processes are not watched


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse-files", action="store_true", help="run the last file first")


def pytest_configure() -> None:
    """Make Ctrl-C work in the processes of tests: a shell without job control starts its background jobs without it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit the default, not this handler


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of which no test would run, so that their imports take no time.

    These are files whose ``pytestmark`` has a mark that is left out and, where Ray's tests are left out, files that
    import Ray, MLflow, DVC or a store at their head.
    """
    left_out = re.findall(r"not (\w+)", config.option.markexpr)
    if not left_out or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    marks = _OF_THE_FILE.search(text)
    whole = marks is not None and any(f"pytest.mark.{name}" in marks[0] for name in left_out)
    return True if whole or ("ray" in left_out and _HEAVY.search(text)) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the million objects that imports make, while they are made and afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests that share a fixture of their module in one process, which makes the fixture once for all of them.

    Slow tests begin first: they wait as much as they compute, and at the end no slow test is left to wait for.
    """
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            scopes = {d.scope for defs in item._fixtureinfo.name2fixturedefs.values() for d in defs}
            if "module" in scopes:
                item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    if config.getoption("reverse_files"):
        order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: -order[item.path])
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _without_processes(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _without_processes(item)


def _without_processes(item: pytest.Item) -> Iterator[None]:
    """Fail a test of ``make check`` that starts a process: it lacks a mark."""
    global _started
    _started = [] if "not process" in item.config.option.markexpr else None
    try:
        yield
        if _started:
            pytest.fail(f"starts {', '.join(sorted({*_started}))}: mark it `process`, or `ray` where Ray does it")
    finally:
        _started = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _started is not None and event in _STARTS:
        name = Path(str(arguments[0])).name if arguments else event
        if name != "git":  # artifacts ask git for the commit, in a hundredth of a second
            _started.append(name)


sys.addaudithook(_watch)
