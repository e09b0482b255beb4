"""Fits that keep checkpoints in files: a stopped fit continues with the same bits. Reports without checkpoints."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bdl_pipe import display
from bdl_pipe.artifacts import State
from bdl_pipe.checkpoint_files import CheckpointFiles
from bdl_pipe.checkpoints import Checkpointed, HandedOver, Keeper, facts_of, kept, measured
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.progress import Report, Silent
from tests.cases import fit
from tests.resuming import same_bits


def test_a_fit_that_reached_its_time_limit_continues_with_the_same_bits(
    tiny: dict[str, FitData], tmp_path: Path
) -> None:
    data, keeper, steps = tiny["regression"], CheckpointFiles(tmp_path / "kept"), list[int]()

    def send(name: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        steps.append(step)

    undisturbed = fit("sgmcmc", "teacher", data)
    with pytest.raises(HandedOver):
        fit("sgmcmc", "teacher", data, report=Checkpointed("chain", keeper, limit=0.0))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["chain.part"]
    assert same_bits(fit("sgmcmc", "teacher", data, report=Checkpointed("chain", keeper, send)), undisturbed)
    assert steps[0] > 1, "it started over"


def test_seconds_of_earlier_attempts_count_and_a_damaged_checkpoint_is_ignored(tmp_path: Path) -> None:
    keeper: Keeper = CheckpointFiles(tmp_path)
    first = Checkpointed("a", keeper, cost=itertools.count(0.0, 5.0).__next__)
    assert first.load() is None
    first.save(State({}, {"step": 3}))
    stored = facts_of(keeper.load("a"), "a")
    assert stored is not None and stored[0].config == {"step": 3} and stored[1]["seconds"] == 5.0
    second = Checkpointed("a", keeper, cost=itertools.count(0.0, 1.0).__next__)
    last = second.load()
    assert last is not None and last.config == {"step": 3} and second.seconds == 6.0
    (tmp_path / "a.part").write_bytes((tmp_path / "a.part").read_bytes()[:-3])
    assert Checkpointed("a", keeper).load() is None
    quiet = Checkpointed("a", None, every=0.0)
    quiet.save(State({}, {}))
    assert not quiet.due() and quiet.load() is None


def test_a_result_is_kept_with_its_cost_and_a_damaged_result_is_ignored(tmp_path: Path) -> None:
    keeper = CheckpointFiles(tmp_path)
    Checkpointed("a", keeper, cost=itertools.count(0.0, 100.0).__next__).save(State({}, {"step": 3}))

    def from_checkpoint(report: Report) -> State:
        last = report.load()
        assert last is not None
        return State({}, {"from": last.config["step"]})

    done = measured(from_checkpoint, "a", keeper)
    assert done.result.config == {"from": 3} and 100 <= done.seconds < 200 and done.peak_bytes > 2**20
    assert keeper.load("a") is None, "the checkpoint of a finished fit is left"
    stored = kept(keeper.finished("a"), "a")
    assert stored is not None and stored.result.config == {"from": 3} and stored.seconds == done.seconds
    (tmp_path / "a.done").write_bytes((tmp_path / "a.done").read_bytes()[:-3])
    assert kept(keeper.finished("a"), "a") is None and kept(None, "b") is None


def test_a_silent_report_keeps_no_checkpoint() -> None:
    silent = Silent()
    silent(1, 2, {"loss": 1.0})
    silent.save(State({"a": torch.arange(5)}, {"step": 3}))
    assert silent.load() is None and not silent.due()


def test_a_display_without_a_terminal_prints_a_line_only_after_an_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
