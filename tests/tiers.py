"""The order of the tests and the signals that they receive; in ``make check`` a test that starts a process fails.

The marks that sort tests into ``make check``, ``make test`` and ``make soak`` are listed in pyproject.toml; tiers.txt
adds such marks to tests and to single cases by their measured time. ``make soak`` prints its time by file. A test that
leaves a thread fails: a thread that runs on changes what later tests read.
"""

import gc
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests import typecheck

_STARTS: Final = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system")
_HEAVY: Final = re.compile(r"^(import|from) (ray|mlflow|dvc|moto|boto3)\b", re.MULTILINE)
_OF_THE_FILE: Final = re.compile(r"^pytestmark = .*", re.MULTILINE)
_LIST: Final = Path(__file__).with_suffix(".txt")
_LAST: Final = 2.0  # seconds that a test's threads may take to end
# Threads that do not end: those of pytest-timeout and of libraries that keep one for the whole process (tqdm's waits
# for slow bars, fsspec's runs the calls of stores, Ray's PythonGCThread collects garbage).
_KEPT: Final = re.compile(
    r"pytest_timeout|execnet|^tqdm_monitor|^fsspecIO|^ray|^PythonGCThread|(?i:mlflow)|^ThreadPoolExecutor|^asyncio|pin_memory"
)
_before: set[threading.Thread] = set()  # the threads that were alive when the running test's body began
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

    All tests of Ray share one process, too: it starts one head, and workers import the libraries once.
    Slow tests begin first: they wait as much as they compute, and at the end no slow test is left to wait for.
    """
    marks = read_list(_LIST.read_text())
    if not any("::" in argument for argument in config.args) and (lost := unknown(marks, [i.nodeid for i in items])):
        raise pytest.UsageError(f"{_LIST.name}: must name tests that exist, got {', '.join(lost)}")
    for item in items:
        name, *case = item.nodeid.partition("[")
        for mark in {*marks.get(name, ()), *(marks.get(item.nodeid, ()) if case[0] else ())}:
            if mark != "quick" and not (mark == "slow" and "quick" in marks.get(item.nodeid, ())):
                item.add_marker(mark)
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.xdist_group("ray"))
                continue
            scopes = {d.scope for defs in item._fixtureinfo.name2fixturedefs.values() for d in defs}
            if "module" in scopes:
                item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    if config.getoption("reverse_files"):
        order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: -order[item.path])
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the session when a worker dies: pytest-xdist gives the rest of its group to no worker, and waits for ever."""
    if error:
        node.config.pluginmanager.getplugin("dsession").shouldstop = f"worker {node.gateway.id} died"


def read_list(text: str) -> dict[str, set[str]]:
    """Read tiers.txt: a test, with or without a case -> its marks."""
    marks: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            mark, test = line.split(" ", 1)
            marks.setdefault(test, set()).add(mark)
    return marks


def unknown(marks: Iterable[str], tests: Sequence[str]) -> list[str]:
    """Return the listed tests and cases that are not among all tests of their files: they were renamed or removed."""
    names = {*tests, *(test.partition("[")[0] for test in tests)}
    files = {test.partition("::")[0] for test in tests}
    return [test for test in marks if test.partition("::")[0] in files and test not in names]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each file after ``make soak``."""
    if terminalreporter.config.option.markexpr != "soak":
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    terminalreporter.section("seconds by file")
    for file, duration in seconds.most_common():
        terminalreporter.line(f"{duration:7.1f} {file}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Fail a test that leaves a thread: it runs on in later tests, and changes dictionaries while they are read."""
    yield
    ends = time.monotonic() + _LAST
    while (alive := _left()) and time.monotonic() < ends:
        alive[0].join(0.05)
    _before.update(alive)
    if alive:
        pytest.fail(f"leaves threads: {', '.join(sorted(thread.name for thread in alive))}")


def _left() -> list[threading.Thread]:
    threads = (thread for thread in threading.enumerate() if thread not in _before)
    return [t for t in threads if not isinstance(t, threading._DummyThread) and not _KEPT.search(t.name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    typecheck.calls.clear()
    try:
        yield from _without_processes(item)
    finally:  # threads of fixtures, such as a server for a whole module, end with their fixture
        _before.clear()
        _before.update(threading.enumerate())


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
