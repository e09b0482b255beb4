"""The report that keeps nothing."""

import torch

from bdl_pipe.artifacts import State
from bdl_pipe.progress import Silent


def test_silence_keeps_nothing() -> None:
    silent = Silent()
    silent(1, 2, {"loss": 1.0})
    silent.save(State({"a": torch.arange(5)}, {"step": 3}))
    assert silent.load() is None
    assert not silent.due()
