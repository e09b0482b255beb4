import numpy as np
import pytest

from bdl_pipe.data.splits import hold_out, uci_splits
from bdl_pipe.errors import DataError
from bdl_pipe.seeds import Seed


def test_uci_splits_follow_the_published_procedure() -> None:
    np.random.seed(1)  # noqa: NPY002  (the published script used the global legacy generator)
    published = [np.random.choice(range(506), 506, replace=False) for _ in range(3)]  # noqa: NPY002
    for (train, test), order in zip(uci_splits(506, 3), published, strict=True):
        assert len(train) == 455
        np.testing.assert_array_equal(np.concatenate([train, test]), order)


def test_more_splits_leave_the_first_as_they_were() -> None:
    assert uci_splits(50, 2)[1][0].tolist() == uci_splits(50, 5)[1][0].tolist()


@pytest.mark.parametrize(("validation", "expected"), [(7, 7), (0.2, 20), (0, 0), (0.0, 0)])
def test_hold_out_partitions(validation: float, expected: int) -> None:
    train, held = hold_out(100, validation, "x", rng=Seed(0))
    assert len(held) == expected
    assert sorted([*train, *held]) == list(range(100))


def test_hold_out_depends_on_the_seed_alone() -> None:
    first, again, other = (hold_out(1000, 100, "x", rng=Seed(s))[1].tolist() for s in (0, 0, 1))
    assert first == again
    assert first != other


def test_hold_out_of_nearly_everything_is_refused() -> None:
    with pytest.raises(DataError, match="x: validation must leave at least 2 of 10 training rows, got 9"):
        hold_out(10, 9, "x", rng=Seed(0))
