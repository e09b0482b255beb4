"""Checkpoints in a file: kept whole, discarded when damaged."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.progress import FileCheckpoints, Report, Silent

STATE = State({"a": torch.arange(5)}, {"step": 3})


class Listener(Report):
    def __init__(self) -> None:
        self.heard: list[tuple[int, int, object]] = []

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self.heard.append((step, total, metrics))


def test_silence_keeps_nothing() -> None:
    silent = Silent()
    silent(1, 2, {"loss": 1.0})
    silent.save(STATE)
    assert silent.load() is None
    assert not silent.due()


def test_what_was_saved_is_loaded_by_another_process(tmp_path: Path) -> None:
    FileCheckpoints(tmp_path / "deep" / "x.checkpoint", 0).save(STATE)
    state = FileCheckpoints(tmp_path / "deep" / "x.checkpoint", 0).load()
    assert state is not None
    assert torch.equal(state.tensors["a"], STATE.tensors["a"])
    assert state.config == STATE.config


def test_no_checkpoint(tmp_path: Path) -> None:
    assert FileCheckpoints(tmp_path / "x", 0).load() is None


@pytest.mark.parametrize("size", [0, 1, 8, 60, -1])
def test_a_damaged_checkpoint_is_none_and_goes(tmp_path: Path, size: int) -> None:
    checkpoints = FileCheckpoints(tmp_path / "x", 0)
    checkpoints.save(STATE)
    os.truncate(tmp_path / "x", size if size >= 0 else (tmp_path / "x").stat().st_size - 1)
    assert checkpoints.load() is None
    assert not (tmp_path / "x").exists()


def test_due_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    checkpoints = FileCheckpoints(tmp_path / "x", 30)
    assert not checkpoints.due()
    now[0] = 130.0
    assert checkpoints.due()
    checkpoints.save(STATE)
    assert not checkpoints.due()
    now[0] = 159.9
    assert not checkpoints.due()


def test_steps_are_passed_on(tmp_path: Path) -> None:
    listener = Listener()
    FileCheckpoints(tmp_path / "x", 30, listener)(2, 5, {"loss": 0.5})
    assert listener.heard == [(2, 5, {"loss": 0.5})]
