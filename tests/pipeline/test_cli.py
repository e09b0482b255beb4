"""The command line: arguments reach a verb's function, and a mistake gives one or two lines and exit code 2.

And terminals and systems whose own encoding is not UTF-8.
"""

import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from pipeline import cli
from pipeline.core import terminal
from tests import commands
from tests.end_to_end.conftest import PARAMS
from tests.pipeline import background
from tests.pipeline.params_cases import REFUSED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("words", "message"), REFUSED["cli"])
def test_wrong_arguments_print_two_lines_and_exit_with_code_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    out, error = capsys.readouterr()
    first, second = error.splitlines()
    assert not out and first.startswith(message) and second.startswith("Try: python -m pipeline")


def test_a_missing_params_file_is_reported_in_one_line(here: Path, command: Callable[..., str]) -> None:
    assert command("check", code=2) == f"check: params.yaml: there is no such file in {here}\n"


def test_what_cannot_run_is_one_line_before_any_work(
    here: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead address of Ray, a device that is absent, a wrong name and a wrong number."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        dead = {"BDL_EXECUTOR": "ray", "RAY_ADDRESS": f"127.0.0.1:{taken.getsockname()[1]}"}
        for words, environment, text, message in (
            ("repro", dead, PARAMS, "no Ray cluster answers there"),
            ("predict x --input x --output y.parquet", {"BDL_DEVICE": "cuda"}, PARAMS, "there is no GPU"),
            ("repro studant", {}, PARAMS, "studant is not a stage"),
            ("repro", {}, PARAMS.replace("epochs: 2", "epochs: -2"), "methods.sgd.epochs must be > 0, got -2"),
            ("check", {}, PARAMS.replace("epochs: 2", "epochs: -2"), "methods.sgd.epochs must be > 0, got -2"),
        ):
            (here / "params.yaml").write_text(text)
            with monkeypatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                error = command(*words.split(), code=2)
            assert message in error and error.count("\n") == 1, error
            assert {path.name for path in here.rglob("*.*")} <= {"params.yaml", "sources.yaml", "names.json"}


def test_a_value_beside_a_wrong_stage_is_not_written(here: Path, command: Callable[..., str]) -> None:
    (here / "params.yaml").write_text(PARAMS)
    error = command("repro", "report.figures_dpi=90", "evaluate@new", code=2)
    assert error == "repro: evaluate@new is not a stage (see: python -m pipeline status --all)\n"
    assert (here / "params.yaml").read_text() == PARAMS


def test_every_verb_has_a_line_of_help(command: Callable[..., str]) -> None:
    out = command("--help")
    for name, verb in cli.verbs.commands.items():
        assert f"  {name} " in out and verb.get_short_help_str()
        assert f"Usage: python -m pipeline {name}" in command(name, "-h")


def test_an_option_takes_several_words_and_job_passes_its_command_on_unchanged() -> None:
    words = ["add", "a.csv", "--target", "x", "y", "--leave-out", "u", "--target", "z", "--skip-broken", "--no-log"]
    options = commands.parse(words).params
    assert (options["path"], options["target"], options["leave_out"]) == (Path("a.csv"), ("x", "y", "z"), ("u",))
    assert options["skip_broken"] and options["log"] is False
    assert commands.parse(["add", "a.csv"]).params["log"] is None
    expected = ("tune", "all", "--samples", "3", "-j", "2")
    assert commands.parse(["job", "--", *expected]).params["command"] == expected
    assert commands.parse(["job", *expected]).params["command"] == expected
    with pytest.raises(click.UsageError):
        commands.parse(["job"])


@pytest.mark.process
def test_ctrl_c_ends_a_command_that_was_started_with_sigint_ignored(tmp_path: Path) -> None:
    """The command waits for a writer of params.yaml."""
    os.mkfifo(tmp_path / "params.yaml")
    process = background.start([sys.executable, "-m", "pipeline", "check"], tmp_path)
    try:
        with open(tmp_path / "params.yaml", "w"):  # This returns when the command has opened the file to read it.
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, error) == (130, "check: interrupted\n")


def test_add_with_tune_starts_a_search_unless_it_is_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr("pipeline.add.add", lambda request, dry_run: request.path.stem)
    monkeypatch.setattr("pipeline.search.tune.tune", lambda method, **more: tuned.append((method, more)) or 0)
    assert cli.main(["add", "houses.csv", "--tune", "4", "--dry-run"]) == 0 and not tuned
    assert cli.main(["add", "houses.csv", "--tune", "4"]) == 0
    ((method, options),) = tuned
    assert method == "all" and {"dataset": "houses", "samples": 4, "apply": True}.items() <= options.items()


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
    places = [f"{path.relative_to(ROOT)}: {m[0]}" for path in files for m in without.finditer(path.read_text("utf-8"))]
    assert not places, places


@pytest.mark.process
@pytest.mark.parametrize("output", ["> /dev/full", ">&-", "| :"])
def test_an_output_that_cannot_be_written_is_no_traceback(output: str) -> None:
    """The output goes to a file on a full disk, has been closed by the caller, or has lost its reader."""
    script = f"set -o pipefail; {sys.executable} -m pipeline --help {output}"
    ended = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    full = output == "> /dev/full"
    assert ended.stderr == ("--help: the output cannot be written: the disk is full\n" if full else "")
    assert ended.returncode == full or output == "| :"
