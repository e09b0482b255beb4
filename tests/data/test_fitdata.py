"""Training rows drawn at an address."""

import torch

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.seeds import Seed


def test_drawn_rows_are_training_rows_without_repetition(tiny: dict[str, FitData]) -> None:
    for data in tiny.values():
        inputs, targets = data.tensors("train")
        everything = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(inputs, targets, strict=True)}
        found, theirs = data.drawn(5, Seed(0))
        drawn = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(found, theirs, strict=True)}
        assert len(found) == len(theirs) == len(drawn) == 5
        assert drawn <= everything
        again, _ = data.drawn(5, Seed(0))
        torch.testing.assert_close(again, found, rtol=0, atol=0)
        other, _ = data.drawn(5, Seed(1))
        assert not torch.equal(other, found)


def test_all_rows_come_once_each_when_no_number_is_given(tiny_table: FitData) -> None:
    inputs, _ = tiny_table.tensors("train")
    found, _ = tiny_table.drawn(None, Seed(0))
    assert not torch.equal(found, inputs)
    torch.testing.assert_close(found.sort(0).values, inputs.sort(0).values, rtol=0, atol=0)
