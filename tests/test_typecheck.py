"""The run-time checks of the tests find wrong types, and sizes that differ within a call's arguments and result."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bdl_pipe.predictive import Categorical
from tests import typecheck
from tests.typecheck import quick

if TYPE_CHECKING:
    from nowhere import Unknown

THREE, FOUR = torch.zeros(3), torch.zeros(4)


def summed(a: Float[Tensor, " n"], b: Float[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    return a.sum() if b is None else (a + b).sum()


def halved(a: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return a[: len(a) // 2] if len(a) % 2 == 0 else a


def nested(a: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    inner(torch.zeros(len(a) + 1))
    return a


def steps(a: Float[Tensor, " n"], count: int) -> Iterator[int]:
    yield from range(count)


def partly(a: "Unknown", b: Int[Tensor, " n"]) -> None: ...


@dataclasses.dataclass
class Pair:
    a: Float[Tensor, " n"]
    b: Float[Tensor, " n"]


inner = quick(halved)


def test_the_first_calls_in_a_test_are_checked_and_later_calls_return_the_same() -> None:
    checked = quick(halved)
    for _ in range(typecheck._CHECKED):
        assert len(checked(THREE)) == 3
    assert len(checked(FOUR)) == 2  # unchecked: its result has another length than its argument
    typecheck.calls.clear()
    with pytest.raises(TypeError):
        checked(FOUR)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (summed, [(THREE,), (THREE, THREE)], [(THREE, FOUR), (THREE.int(),), (THREE[None],), (3.0,)]),
        (halved, [(THREE,)], [(FOUR,), (None,)]),
        (nested, [(torch.zeros(2),)], [(THREE,), ("n",)]),  # the inner call has its own n
        (steps, [(THREE, 2)], [(THREE[None], 2), (THREE, 2.5)]),
        (partly, [("anything", THREE.int())], [("anything", THREE)]),
        (Pair, [(THREE, THREE)], [(THREE, FOUR), (THREE, 4)]),
    ],
)
def test_annotated_types_and_shapes_are_checked(
    function: Callable[..., Any], right: list[Any], wrong: list[Any]
) -> None:
    checked = quick(function)
    for arguments in right:
        checked(*arguments)
    for arguments in wrong:
        with pytest.raises(TypeError):
            checked(*arguments)


def test_types_and_shapes_of_the_package_are_checked() -> None:
    with pytest.raises(TypeError):
        Categorical(torch.zeros(2, 3, 4), torch.zeros(4))
    with pytest.raises(TypeError):
        Categorical(torch.zeros(3, 4))
