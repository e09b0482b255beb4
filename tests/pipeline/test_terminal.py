"""Terminals and systems whose own encoding is not UTF-8."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core import terminal

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_character_that_the_terminal_lacks_is_a_question_mark(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, name, io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    with pytest.raises(UnicodeEncodeError):
        print("8×8 pixels, größe", file=getattr(sys, name))
    terminal.replace_what_it_lacks()
    print("8×8 pixels, größe", file=getattr(sys, name))
    assert shown.getvalue() == b"8?8 pixels, gr??e\n"


@pytest.mark.parametrize("program", ["pipeline", "stages"])
def test_both_programs_prepare_the_terminal(program: str) -> None:
    assert "terminal.replace_what_it_lacks()" in (ROOT / program / "__main__.py").read_text(encoding="utf-8")


def test_texts_are_read_and_written_as_utf_8_on_every_system() -> None:
    files = [path for folder in ("src", "pipeline", "stages") for path in (ROOT / folder).rglob("*.py")]
    without = re.compile(r"\.read_text\(\)|\.write_text\((?![^\n]*encoding=)(?!\n)|open\([^)\n]*\"[rw]\"\)")
    found = [f"{path.relative_to(ROOT)}: {m[0]}" for path in files for m in without.finditer(path.read_text("utf-8"))]
    assert not found, found


@pytest.mark.process
@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("> /dev/full", 1, "--help: the output cannot be written: the disk is full\n"),
        (">&-", 0, ""),
        ("| :", 0, ""),
    ],
)
def test_an_output_that_cannot_be_written_is_no_traceback(output: str, code: int, said: str) -> None:
    """The output goes to a file on a full disk, has been closed by the caller, or has lost its reader."""
    command = f"set -o pipefail; {sys.executable} -m pipeline --help {output}"
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stderr == said
    assert found.returncode == code or output == "| :"
