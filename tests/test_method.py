"""Which members of an artifact one is made from."""

import pytest

from bdl_pipe.method import fan_in
from bdl_pipe.registry import METHODS


def test_members_are_taken_by_number_in_turn_or_all() -> None:
    assert [list(fan_in("one_to_one", member, 3)) for member in range(3)] == [[0], [1], [2]]
    assert [list(fan_in("cyclic", member, 3)) for member in range(5)] == [[0], [1], [2], [0], [1]]
    assert [list(fan_in("cyclic", member, 1)) for member in range(3)] == [[0]] * 3
    assert [list(fan_in("all", member, 3)) for member in range(2)] == [[0, 1, 2]] * 2
    assert [list(fan_in("earlier", member, 2)) for member in range(3)] == [[0], [1], [0]]


@pytest.mark.parametrize("method", ["vbpc", "random_coreset"])
def test_students_share_out_the_coresets_evenly(method: str) -> None:
    assert METHODS[method].stages["student"].needs == {"coreset": "cyclic"}
