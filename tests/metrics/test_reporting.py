"""Reports about runs: which run is better, figures as readers see them, and costs by hand."""

import math
import mmap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe.artifacts import State, write_state
from bdl_pipe.metrics import COSTS, DETECTION, METRICS, comparison, cost, written
from bdl_pipe.metrics.table import metric_of
from tests.case_files import cases_of

cases = cases_of(__file__)
RATIO = 1 / 9  # test rows over training rows


def test_intervals_over_splits_and_rows_match_scipys_intervals() -> None:
    values = np.array([0.1, 0.3, -0.1, 0.2, 0.4])
    estimate = comparison.over_splits(values, 0.0)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (estimate.mean - estimate.half, estimate.mean + estimate.half) == pytest.approx((low, high))
    assert comparison.over_splits(values, 0.0, comparisons=7).half > 1.5 * estimate.half
    assert not estimate.apart and comparison.over_splits(values + 0.1, 0.0).apart
    shared = comparison.over_splits(values, RATIO)  # rows shared by splits: Nadeau & Bengio 2003, eq. 9
    assert shared.error == pytest.approx(math.sqrt((1 / 5 + RATIO) * values.var(ddof=1)))
    assert shared.half == pytest.approx(stats.t.ppf(0.975, 4) * shared.error)
    values = np.random.default_rng(0).normal(0.2, 1, 400)
    estimate = comparison.over_rows(values, comparisons=2)
    low, high = stats.norm.interval(0.975, values.mean(), stats.sem(values))
    assert (estimate.mean - estimate.half, estimate.mean + estimate.half) == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[0.3], [0.1, math.nan, 0.2], [0.1, math.inf, 0.2]])
def test_the_error_of_one_difference_or_of_unknown_scores_is_unknown(values: list[float]) -> None:
    for estimate in (comparison.over_splits(np.array(values), RATIO), comparison.over_rows(np.array(values))):
        assert estimate.half == estimate.error == math.inf and not estimate.apart


def test_the_critical_difference_matches_demsars_example() -> None:
    """Demšar 2006, section 3.2.2: four classifiers on fourteen data sets, q = 2.569, CD = 1.25."""
    g = np.random.default_rng(0)
    ranked = comparison.mean_ranks("abcd", g.normal(size=(14, 4)))
    assert ranked.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), rel=1e-3)
    assert sum(ranked.means.values()) == pytest.approx(10)
    assert list(ranked.means.values()) == sorted(ranked.means.values())
    assert comparison.mean_ranks("abc", np.arange(3) + np.zeros((9, 3))).p_value < 0.01


@cases("figures", "writer value text")
def test_figures_are_written_with_readable_units(writer: str, value: float, text: str) -> None:
    assert getattr(written, writer)(value) == text


def test_each_metric_is_written_in_its_own_format() -> None:
    assert [written.writer(cost)(1500.0) for cost in COSTS] == ["1.5 k", "1.5 kB", "25 min", "25 min", "1.5 kB"]
    small = {0.00886: "0.00886", 0.01: "0.0100", -2.48e-5: "-0.000025", 3.68: "3.68", 1234.5: "1234", 0.0: "0.000"}
    assert [written.writer(metric_of("augrc"))(value) for value in small] == [*small.values()]
    assert written.writer(METRICS["accuracy"])(0.5) == "50.00" and written.writer(METRICS["nll"])(0.5) == "0.500"
    named = [*COSTS, *DETECTION, METRICS["nll"]]
    assert [metric_of(metric.name) for metric in named] == named


STATE = State({"weight": torch.zeros(3, 4), "steps": torch.zeros(7, dtype=torch.int64)}, {"posterior": "x"})


def test_stored_bytes_equal_the_size_of_the_file_and_parameters_are_floating_point_numbers(tmp_path: Path) -> None:
    write_state(tmp_path / "0-0", STATE)
    assert cost.stored_bytes(STATE) == (tmp_path / "0-0.safetensors").stat().st_size
    assert cost.stored_parameters(STATE) == 12


def test_seconds_run_one_pass_before_the_timed_passes() -> None:
    calls = []
    cost.seconds(lambda: calls.append(1), repeats=5)
    assert len(calls) == 6


def test_the_clock_of_one_thread_does_not_count_waiting() -> None:
    """Sleep stands for the turn of another process; with two threads, or on a GPU, the clock is the wall clock."""
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


def test_the_peak_includes_memory_that_the_block_has_freed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = 200 * 2**20
    with cost.peak_bytes() as small:
        pass
    with cost.peak_bytes() as large:
        block = mmap.mmap(-1, size)  # not from the heap, where other tests may have freed as much memory
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        block.close()
    assert large.bytes - small.bytes > 0.8 * size
    monkeypatch.setattr(cost, "_PROC", tmp_path / "missing")  # where the kernel cannot reset the peak
    with cost.peak_bytes() as peak:
        pass
    assert peak.bytes > 50 * 2**20  # torch alone is larger
