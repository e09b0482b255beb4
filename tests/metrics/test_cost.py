"""Cost: counts by hand, the file's own size, memory that a block is known to take."""

import mmap
import time
from pathlib import Path

import torch

from bdl_pipe.artifacts import State, write_state
from bdl_pipe.metrics import cost

STATE = State({"weight": torch.zeros(3, 4), "steps": torch.zeros(7, dtype=torch.int64)}, {"posterior": "x"})


def test_parameters_are_floating_numbers() -> None:
    assert cost.stored_parameters(STATE) == 12


def test_bytes_are_the_files(tmp_path: Path) -> None:
    write_state(tmp_path / "0-0", STATE)
    assert cost.stored_bytes(STATE) == (tmp_path / "0-0.safetensors").stat().st_size


def test_seconds_are_the_median_of_the_passes_after_the_first() -> None:
    calls = []
    assert cost.seconds(lambda: calls.append(1), repeats=5) >= 0
    assert len(calls) == 6


def test_the_clock_of_one_thread_stands_still_while_it_waits() -> None:
    """Sleeping is what another process's turn looks like; with two threads, or on a GPU, the wall's clock goes on."""
    threads = torch.get_num_threads()
    try:
        taken = {}
        for count in (1, 2):
            torch.set_num_threads(count)
            now = cost.clock()
            start = now()
            time.sleep(0.3)
            taken[count] = now() - start
        torch.set_num_threads(1)
        assert taken[1] < 0.2 < 0.3 <= taken[2] and cost.clock("cuda") is time.perf_counter
    finally:
        torch.set_num_threads(threads)


def test_the_peak_holds_what_the_block_took_and_gave_back() -> None:
    size = 200 * 2**20
    with cost.peak_bytes() as small:
        pass
    with cost.peak_bytes() as large:
        block = mmap.mmap(-1, size)  # not from the heap, which may hold as much that other tests gave back
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        block.close()
    assert large.bytes - small.bytes > 0.8 * size


def test_the_peak_is_known_where_the_kernel_cannot_restart_it(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "_PROC", tmp_path / "missing")
    with cost.peak_bytes() as peak:
        pass
    assert peak.bytes > 50 * 2**20  # torch alone is larger
