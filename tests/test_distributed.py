"""Two gloo processes that share every batch, against one process with the whole batch."""

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bdl_pipe import distributed
from bdl_pipe.data.fitdata import FitData

from . import distributed_ranks as ranks
from .resuming import Saving

pytestmark = [pytest.mark.process, pytest.mark.slow]  # all tests share one run of two processes


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return of_ranks(2, tmp_path_factory.mktemp("ranks"), "findings")


def of_ranks(size: int, folder: Path, work: str) -> list[Any]:
    """Return the findings of each of ``size`` ranks that do ``work``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=ranks.run_all, args=(size, port, str(folder), work))
    process.start()
    process.join()
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, torch.Tensor], Saving]:
    report = Saving()
    return ranks.trajectory(ranks.make_tiny_images(), report).tensors, report


def test_without_a_process_group_the_collectives_change_nothing(tiny_images: FitData) -> None:
    module, rows = nn.BatchNorm2d(2), torch.arange(5)
    distributed.broadcast_buffers(module)
    assert distributed.world() == (0, 1) and torch.equal(distributed.shard(rows), rows)
    assert distributed.averaging(module) is module and distributed.broadcast_from_rank0(lambda: None) is None


def test_ranks_take_alternate_rows_and_an_indivisible_batch_is_refused(found: list[dict[str, Any]]) -> None:
    assert [f["world"] for f in found] == [(0, 2), (1, 2)]
    assert [f["shard"].tolist() for f in found] == [[0, 2, 4], [1, 3, 5]]
    rule = "batch must be a multiple of the 2 workers of a task, got 33"
    assert [f["refused"] for f in found] == [rule, rule]


def test_two_ranks_end_with_the_weights_of_one_process(found: list[dict[str, Any]], alone: Any) -> None:
    """To 1e-6, the rounding of 15 steps; without averaged gradients the ranks differ from it and from each other."""
    tensors, _ = alone
    for name, value in tensors.items():
        for rank in found:
            torch.testing.assert_close(rank["tensors"][name], value, atol=1e-6, rtol=1e-6)
        assert torch.equal(found[0]["tensors"][name], found[1]["tensors"][name])
    one, other = (f["apart"]["head.weight"][-1] for f in found)
    assert (one - tensors["head.weight"][-1]).abs().max() > 1e-3 and (one - other).abs().max() > 1e-3


@pytest.mark.parametrize("name", ranks.SHARED)
def test_two_ranks_fit_the_posterior_of_one_process(
    found: list[dict[str, Any]], tiny_images: FitData, name: str
) -> None:
    """To 1e-6 of 1 or of a tensor's largest entry: one process has the same noise, masks of a row, KL and refit."""
    moved = 0.0
    for key, value in ranks.student(name, tiny_images).tensors.items():
        one, other = (rank["students"][name][key] for rank in found)
        assert torch.equal(one, other), key
        scale = max(1.0, float(value.abs().max()))  # the change of a bias before a norm is rounding alone
        torch.testing.assert_close(one, value, atol=1e-6 * scale, rtol=1e-6)
        moved = max(moved, float((one.double() - value.double()).abs().max()))
    assert moved > 0, "the halves of a batch are not added in the order of the whole: nothing was shared"


def test_rank_0_reports_the_mean_loss_and_all_ranks_save(found: list[dict[str, Any]], alone: Any) -> None:
    _, report = alone
    assert found[1]["told"] == [] and [f["saved"] for f in found] == [15, 15]
    assert [step for step, _ in found[0]["told"]] == list(range(1, 16))
    assert [loss for _, loss in found[0]["told"]] == pytest.approx([loss for _, loss in report.told], abs=1e-6)


def test_all_ranks_continue_from_the_checkpoint_of_rank_0(found: list[dict[str, Any]], alone: Any) -> None:
    for name, value in alone[0].items():
        for rank in found:
            torch.testing.assert_close(rank["resumed"][name], value, atol=1e-6, rtol=1e-6)


@pytest.mark.soak
def test_three_ranks_continue_with_the_same_bits(tmp_path: Path) -> None:
    """With three ranks the order of a sum depends on a gradient's place in DDP's buckets, which must not move."""
    for whole, continued in of_ranks(3, tmp_path, "continued"):
        assert all(torch.equal(whole[name], continued[name]) for name in whole)


def test_buffers_come_from_rank_0(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["buffers"]["running_mean"].tolist() == [1.5] * 3 and rank["buffers"]["num_batches_tracked"] == 4
