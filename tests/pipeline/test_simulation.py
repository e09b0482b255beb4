"""The simulator of clusters against closed forms."""

import math
import statistics

import pytest

from benchmarks.cluster_simulation import HOUR, Cluster, Driver, Stage, simulate

FREE = Driver(task=0, message=0, checkpoint=0, byte=0, warm=0, cold=0, stage=0, record=0)


def test_equal_tasks_fill_the_slots_in_rounds() -> None:
    came = simulate([Stage("a", (10.0,) * 7)], Cluster(1, slots=2), FREE)
    assert (came.makespan, came.busy, came.paid) == pytest.approx((40.0, 70.0, 80.0))


def test_a_stage_waits_for_those_it_needs_and_the_longest_chain_goes_first() -> None:
    chain = [Stage("a", (5.0,)), Stage("b", (20.0,), frozenset({"a"})), Stage("c", (9.0,)), Stage("d", (9.0,))]
    assert simulate(chain, Cluster(1, slots=2), FREE).makespan == pytest.approx(25.0)
    assert simulate(chain, Cluster(1, slots=1), FREE).makespan == pytest.approx(43.0)
    assert simulate(chain, Cluster(1, slots=2, at_once=1), FREE).makespan == pytest.approx(43.0)


def test_the_drivers_own_work_is_done_one_after_the_other() -> None:
    driver = Driver(task=1, message=0, checkpoint=0, byte=0, warm=0.5, cold=2, stage=3, record=0.25)
    came = simulate([Stage("a", (1.0,) * 100)], Cluster(100, slots=1), driver)
    assert came.makespan == pytest.approx(3 + 100 + 2 + 1 + 0.25)
    assert came.driver == pytest.approx(103 / came.makespan)


@pytest.mark.parametrize("tasks", [1, 4, 64])
def test_a_full_hub_sets_the_pace(tasks: int) -> None:
    """A checkpoint takes 2 s of the hub each 10 s of a task: beyond six tasks, all of them wait."""
    driver = Driver(task=0, message=0, checkpoint=1, byte=1e-6, warm=0, cold=0, stage=0, record=0)
    stage = Stage("a", (1000.0,) * tasks, checkpoint=1e6)
    came = simulate([stage], Cluster(tasks, slots=1, every=10.0), driver)
    alone, full = 1000.0 + 99 * 2, 99 * 2 * tasks
    assert came.makespan == pytest.approx(max(alone, full), rel=0.03)
    assert came.moved == 99e6 * tasks
    away = simulate([stage], Cluster(tasks, slots=1, every=10.0, through="store"), driver)
    assert away.makespan == pytest.approx(1000.0 + 99 * 1e6 / 0.5e9)
    assert away.stored == 99e6 * tasks


def test_data_go_to_each_node_once() -> None:
    stage = Stage("a", (1.0,) * 6, data=1.25e10)
    came = simulate([stage], Cluster(3, slots=2), FREE)
    assert came.moved == 3 * 1.25e10 and came.makespan == pytest.approx(3 * 10 + 1)


def test_preempted_tasks_cost_what_the_renewal_argument_says() -> None:
    """A step of τ with a checkpoint at its end takes (exp(λτ) − 1)/λ in the mean, where another node is free at once.

    Of 600 tasks, with a bound of 5 standard errors: a false alarm in 1.7 million. Control: the same without
    checkpoints takes three times as long, which the bound tells apart.
    """
    rate, tau, steps, count = 4.0, 600.0, 6, 600
    want = steps * (math.exp(rate * tau / HOUR) - 1) / (rate / HOUR)
    for every, agrees in ((tau, True), (tau * steps, False)):
        stages = [Stage(f"a{i}", (tau * steps,)) for i in range(count)]
        spans = [
            simulate([stage], Cluster(20, slots=1, every=every, preempted=rate), FREE, seed=i).makespan
            for i, stage in enumerate(stages)
        ]
        error = statistics.stdev(spans) / math.sqrt(count)
        assert (abs(statistics.fmean(spans) - want) < 5 * error) is agrees
