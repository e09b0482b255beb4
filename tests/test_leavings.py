"""The session fails where a test leaves something in the root, and names it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.process
@pytest.mark.parametrize(("body", "code"), [("open('left', 'w').close()", 1), ("pass", 0)])
def test_what_a_test_leaves_fails_its_session(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {body}\n")
    options = ["-q", "-p", "no:xdist", "-p", "tests.leavings"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", "test_one.py"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert "1 passed" in done.stdout and done.returncode == code
    assert ("left in the repository's root" in done.stdout) == bool(code)
