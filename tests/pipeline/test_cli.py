"""The command line: arguments reach a verb's function, and a mistake gives one or two lines and exit code 2."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from pipeline import cli
from tests import commands

ROOT = Path(__file__).parents[2]

WRONG = {
    "no verb": ([], "python -m pipeline: Missing command."),
    "an unknown verb": (["chekc"], "chekc: No such command 'chekc'."),
    "an unknown option": (["check", "--all"], "check: No such option '--all'."),
    "a missing argument": (["add"], "add: Missing argument 'FILE'."),
    "a missing option": (["tune", "gp", "--samples", "2"], "tune: Missing option '--dataset'."),
    "no number": (["repro", "-j", "two"], "repro: Invalid value for '-j' / '--jobs': 'two' is not a valid"),
    "zero": (["add", "a.csv", "--splits", "0"], "add: Invalid value for '--splits': 0 is not in the range x>=1."),
    "a share of one": (["add", "a.csv", "--calibration", "1"], "add: Invalid value for '--calibration': 1.0 is not in"),
    "no share": (["add", "a.csv", "--calibration", "nan"], "add: Invalid value for '--calibration': nan is not in"),
    "no choice": (
        ["tune", "gp", "--scheduler", "bo"],
        "tune: Invalid value for '--scheduler': 'bo' is not one of 'asha', 'pbt'.",
    ),
    "an option without a value": (["add", "a.csv", "--target"], "add: Option '--target' requires an argument."),
    "an unknown export": (["export", "figure"], "export: Invalid value for '{coreset|model|program}': 'figure'"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_print_two_lines_and_exit_with_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    out, error = capsys.readouterr()
    first, second = error.splitlines()
    assert not out and first.startswith(message) and second.startswith("Try: python -m pipeline")


def test_a_missing_params_file_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check"]) == 2
    assert capsys.readouterr().err == f"check: params.yaml: there is no such file in {tmp_path}\n"


def test_every_verb_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in cli.verbs.commands.items():
        assert f"  {name} " in out and command.get_short_help_str()
        assert cli.main([name, "-h"]) == 0
        assert f"Usage: python -m pipeline {name}" in capsys.readouterr().out


def test_an_option_takes_several_words() -> None:
    words = ["add", "a.csv", "--target", "x", "y", "--leave-out", "u", "--target", "z", "--skip-broken", "--no-log"]
    options = commands.parse(words).params
    assert (options["path"], options["target"], options["leave_out"]) == (Path("a.csv"), ("x", "y", "z"), ("u",))
    assert options["skip_broken"] and options["log"] is False
    assert commands.parse(["add", "a.csv"]).params["log"] is None


def test_job_passes_its_command_on_unchanged_and_refuses_an_empty_command() -> None:
    expected = ("tune", "all", "--samples", "3", "-j", "2")
    assert commands.parse(["job", "--", *expected]).params["command"] == expected
    assert commands.parse(["job", *expected]).params["command"] == expected
    with pytest.raises(click.UsageError):
        commands.parse(["job"])


@pytest.mark.process
def test_ctrl_c_ends_a_command_that_was_started_with_sigint_ignored(tmp_path: Path) -> None:
    """A shell without job control starts ``command &`` in this way. The command waits for a writer of params.yaml."""
    os.mkfifo(tmp_path / "params.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "check"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        with open(tmp_path / "params.yaml", "w"):  # This returns when the command has opened the file to read it.
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, error) == (130, "check: interrupted\n")


def test_add_with_tune_starts_a_search_unless_it_is_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = list[dict[str, Any]]()

    def tune(method: str, **options: Any) -> int:
        tuned.append({"method": method, **options})
        return 0

    monkeypatch.setattr("pipeline.add.add", lambda request, dry_run: request.path.stem)
    monkeypatch.setattr("pipeline.search.tune.tune", tune)
    assert cli.main(["add", "houses.csv", "--tune", "4", "--dry-run"]) == 0 and not tuned
    assert cli.main(["add", "houses.csv", "--tune", "4"]) == 0
    (options,) = tuned
    assert {"method": "all", "dataset": "houses", "samples": 4, "apply": True}.items() <= options.items()
