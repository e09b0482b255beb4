"""The session's own rules: the order of files, signals that a shell has switched off, marks, a clean root, groups."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import unknown

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
INTERRUPTED = """
import signal, subprocess, sys
def test_interrupted():
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait() == -signal.SIGINT
"""


def run(folder: Path, *options: str, xdist: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run the tests of ``folder`` in a process that starts with SIGINT ignored, as a background job may."""
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers = process\n")
    plugins = [*(["-p", "xdist"] if xdist else []), "-p", "tests.tiers", "-p", "tests.clean_root"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, f"--rootdir={folder}", *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # jaxtyping's imports NumPy
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


STARTS = "import subprocess\ndef test_one():\n    subprocess.run(['true'])\n"
WAIT = "threading.Thread(target=time.sleep, args=({},), name='rest', daemon=True).start()"
LEAVES = f"import threading, time\ndef test_one():\n    {WAIT}\n"
WRITES = "def test_one():\n    open('left', 'w').close()\n"
RULES = {  # rule -> text of a test, options, and the line of the failure or none
    "Ctrl-C reaches a child of a session that starts with SIGINT ignored": (INTERRUPTED, (), ""),
    "in make test, a test may start a process": (STARTS, (), ""),
    "in make check, it must not": (STARTS, ("-m", "not process"), "starts true: mark it `process`"),
    "a test leaves nothing in the root": (WRITES, (), "left in the repository's root"),
    "a test that writes nothing passes": ("def test_one():\n    pass\n", (), ""),
    "a thread that ends soon is no error": (LEAVES.format("0.1"), (), ""),
    "a thread that runs on is an error": (LEAVES.format("9"), (), "leaves threads: rest"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_the_session_fails_what_breaks_it_and_nothing_else(rule: str, tmp_path: Path) -> None:
    text, options, failure = RULES[rule]
    (tmp_path / "test_one.py").write_text(text)
    done = run(tmp_path, *options)
    assert (done.returncode, failure in done.stdout) == (int(bool(failure)), True), done.stdout
    assert failure or not any(line and line in done.stdout for *_, line in RULES.values())


@pytest.mark.parametrize(("options", "order"), [((), "first second"), (("--reverse-files",), "second first")])
def test_files_run_in_reverse_with_the_option(tmp_path: Path, options: tuple[str, ...], order: str) -> None:
    for number, name in enumerate(("first", "second")):
        (tmp_path / f"test_{number}.py").write_text(f"def test_{name}():\n    print('{name}')\n")
    assert " ".join(run(tmp_path, "-sq", *options).stdout.replace(".", "").split()).startswith(order)


def test_a_file_of_which_no_test_would_run_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\npytestmark = pytest.mark.process\n1 / 0\n")
    (tmp_path / "test_two.py").write_text("def test_two():\n    pass\n")
    assert "1 passed" in run(tmp_path, "-m", "not process").stdout
    assert "ZeroDivisionError" in run(tmp_path).stdout


def test_a_worker_that_dies_ends_the_session_with_its_tests_name(tmp_path: Path) -> None:
    dies = "@pytest.mark.parametrize('n', range(4))\n@pytest.mark.xdist_group('one')\ndef test_dies(n):\n"
    lives = "@pytest.mark.parametrize('n', range(9))\ndef test_lives(n):\n    pass\n"
    (tmp_path / "test_one.py").write_text(f"import os, pytest\n{dies}    n == 1 and os.kill(os.getpid(), 9)\n{lives}")
    options = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "--max-worker-restart=0")
    done = run(tmp_path, *options, xdist=True)
    assert done.returncode != 0 and "crashed while running" in done.stdout and "test_dies[1]" in done.stdout


def test_a_listed_test_that_does_not_exist_is_named() -> None:
    """Only files that were collected count: a run may leave out the others."""
    tests = ["a.py::one", "a.py::two[x]", "a.py::two[y]"]
    listed = ["a.py::one", "a.py::two", "a.py::two[x]", "a.py::two[z]", "a.py::three", "b.py::four"]
    assert unknown(listed, tests) == ["a.py::two[z]", "a.py::three"]


@pytest.fixture(scope="module")
def maker() -> int:
    return os.getpid()


@pytest.mark.parametrize("number", range(3))
def test_tests_of_one_module_fixture_are_in_one_group(number: int, maker: int, request: pytest.FixtureRequest) -> None:
    """pytest-xdist adds a group's name to test ids to keep the group in one process; under pytest 9.2 it adds none."""
    (group,) = [mark.args[0] for mark in request.node.iter_markers("xdist_group")]
    assert group == __name__
    if getattr(request.config.option, "loadgroup", False):  # in a process that pytest-xdist has started
        assert request.node.nodeid.endswith(f"@{__name__}")
