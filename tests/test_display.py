"""The progress of a fit in a log file; tests/pipeline/test_executors.py has displays of several tasks."""

import pytest

from bdl_pipe import display


def test_a_log_file_gets_a_line_at_times(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with display.Display("chains") as shown:
        shown.expect(2)
        shown.step("a", 1, 4, {"loss": 3.0})
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
        shown.step("a", 2, 4, {"loss": 2.0, "accuracy": 1.0})
        shown.done("a")
        shown.say("a worker was lost")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "chains: 25%, 0 of 2 done, 0 s, loss 2"
    assert second == "chains: 50%, 1 of 2 done, 0 s, loss 2" and third == "chains: a worker was lost"
