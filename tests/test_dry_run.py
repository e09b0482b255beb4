"""The operations that the dry run of VBPC counts, against a count by hand."""

from argparse import Namespace

import pytest

from benchmarks import vbpc_dry_run as dry


@pytest.mark.parametrize(("blocks", "width"), [(1, 4), (2, 3)])
def test_the_operations_of_convolutions_equal_the_count_by_hand(blocks: int, width: int) -> None:
    """A forward pass of the batch, two of the coreset, and the coreset's gradients by its pixels and by the weights.

    A convolution of one image has 2·9·c_in·c_out FLOP a pixel; so has its gradient by its input, and by its weights.
    Where a network is trained, the gradient by the pixels of the images is not computed.
    """
    batch, ipc, channels, side = 6, 1, 2, 8
    args = Namespace(width=width, blocks=blocks, norm="none", ipc=ipc, batch=batch, image=(channels, side, side))
    counts, moved = dry.count(dry.steps_of(args, "meta"))
    rows, each = ipc * dry.CLASSES, list[int]()
    for block in range(blocks):
        filters = width * 2**block
        each.append(2 * 9 * channels * filters * side**2)
        channels, side = filters, side // 2
    assert counts["aten.convolution"] == (batch + 2 * rows) * sum(each)
    assert counts["aten.convolution_backward"] == rows * (sum(each) + sum(each) + sum(each[1:]))
    assert counts["aten.addmm"] + counts["aten.mm"] > 6 * rows * channels * side**2 * dry.CLASSES
    assert moved > 4 * (batch + 2 * rows) * sum(each) / (9 * 8)  # the output of the convolutions, and more


def test_the_bound_is_the_larger_time_of_computation_and_memory() -> None:
    assert dry.bound(10.0, 1.0, 5.0, 10.0) == 2.0
    assert dry.bound(10.0, 100.0, 5.0, 10.0) == 10.0
