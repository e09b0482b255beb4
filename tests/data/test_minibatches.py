"""The laws by which rows are drawn; counts are within 5 standard errors (a false alarm in 1e-5 of runs)."""

import pytest
import torch

from bdl_pipe.data.fitdata import FitData, Minibatches, distinct, epoch_order, with_replacement
from bdl_pipe.seeds import Seed

Z = 5.0


def test_an_epoch_visits_each_row_once_in_an_order_of_its_own() -> None:
    orders = [epoch_order(12, epoch, Seed(0)) for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(12)) for order in orders)
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(epoch_order(12, 0, Seed(1)), orders[0])
    assert torch.equal(epoch_order(12, 2, Seed(0)), orders[2])


@pytest.mark.parametrize(("size", "count"), [(3, 3), (10, 10), (99, 10), (None, 10)])
def test_distinct_draws_repeat_no_row_and_take_at_most_all_rows(size: int | None, count: int) -> None:
    chosen = distinct(10, size, Seed(0).generator())
    assert len(set(chosen.tolist())) == len(chosen) == count


@pytest.mark.parametrize(("draw", "repeats"), [(distinct, False), (with_replacement, True)])
def test_each_row_is_drawn_with_the_same_probability(draw: object, repeats: bool) -> None:
    """8 rows, 20,000 draws of 4: a row is drawn 10,000 times; a law that never draws the last row would be seen."""
    rows, size, times = 8, 4, 20_000
    generator = Seed(0).generator()
    drawn = torch.stack([draw(rows, size, generator) for _ in range(times)])  # type: ignore[operator]
    counts = torch.bincount(drawn.flatten(), minlength=rows).double()
    expected = times * size / rows
    # the count of a row in one draw: once with probability 1/2, or binomial with 4 trials of 1/8
    variance = times * (0.25 if not repeats else size * (1 / 8) * (7 / 8))
    assert float((counts - expected).abs().max()) < Z * variance**0.5
    assert abs(times * size / (rows - 1) - expected) > 2 * Z * variance**0.5
    assert any(len(set(row.tolist())) < size for row in drawn) is repeats
    assert len(draw(5, 9, generator)) == 5, "at most as many rows as exist"


def test_minibatches_are_slices_of_the_order_of_their_epoch() -> None:
    batches = Minibatches(10, 3, Seed(4))
    assert batches.per_epoch == 3 and len(Minibatches(10, 99, Seed(4))(4)) == 10
    for epoch in range(2):
        order = epoch_order(10, epoch, Seed(4))
        for place in range(3):
            assert torch.equal(batches(3 * epoch + place), order[3 * place : 3 * place + 3])


def test_drawn_rows_are_training_rows_without_repetition(tiny: dict[str, FitData]) -> None:
    for data in tiny.values():
        inputs, targets = data.tensors("train")
        everything = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(inputs, targets, strict=True)}
        rows, theirs = data.drawn(5, Seed(0))
        drawn = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(rows, theirs, strict=True)}
        assert len(rows) == len(theirs) == len(drawn) == 5
        assert drawn <= everything
        again, _ = data.drawn(5, Seed(0))
        torch.testing.assert_close(again, rows, rtol=0, atol=0)
        other, _ = data.drawn(5, Seed(1))
        assert not torch.equal(other, rows)


def test_all_rows_are_drawn_once_when_no_number_is_given(tiny_table: FitData) -> None:
    inputs, _ = tiny_table.tensors("train")
    rows, _ = tiny_table.drawn(None, Seed(0))
    assert not torch.equal(rows, inputs)
    torch.testing.assert_close(rows.sort(0).values, inputs.sort(0).values, rtol=0, atol=0)
