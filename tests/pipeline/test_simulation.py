"""The simulator of clusters against closed forms; what a cluster of namespaces lacks on a machine, and its cure."""

import math
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import namespaces
from benchmarks.simulation import page, workloads
from benchmarks.simulation.bounds import bounds
from benchmarks.simulation.model import HOUR, NETWORK, STORE, Cluster, Driver, Stage
from benchmarks.simulation.run import simulate
from pipeline.core.load import typed
from pipeline.core.params_files import read_params
from pipeline.plan.plan import plan

FREE = Driver(task=0, message=0, checkpoint=0, byte=0, warm=0, cold=0, stage=0, record=0)


def spans(stages: list[Stage], cluster: Cluster, driver: Driver = FREE) -> float:
    return simulate(stages, cluster, driver).makespan


def test_equal_tasks_fill_the_slots_in_rounds() -> None:
    came = simulate([Stage("a", (10.0,) * 7)], Cluster(1, slots=2), FREE)
    assert (came.makespan, came.busy, came.paid) == pytest.approx((40.0, 70.0, 80.0))


def test_a_stage_waits_for_its_needs_and_the_longest_chain_runs_first() -> None:
    chain = [Stage("c", (9.0,)), Stage("d", (9.0,)), Stage("a", (5.0,)), Stage("b", (20.0,), frozenset({"a"}))]
    for slots, at_once, hours in ((2, 2, 25.0), (1, 1, 43.0), (2, 1, 43.0), (2, 0, 29.0)):
        came = simulate(chain, Cluster(1, slots=slots, at_once=at_once), FREE)
        assert came.makespan == pytest.approx(hours, abs=1e-4)
        assert came.stages == (at_once or 3)


def test_the_work_of_the_driver_and_of_cold_workers_adds_to_the_time() -> None:
    """Its tasks take no slot, it works for one task after another, and a message delays none; a worker is cold once
    for each stage and slot."""
    stages = [Stage("a", (10.0,)), Stage("b", (3.0, 4.0), here=True)]
    assert spans(stages, Cluster(1, slots=1)) == pytest.approx(10.0)
    assert spans(stages[1:], Cluster(1, slots=1)) == pytest.approx(7.0)
    driver = Driver(task=1, message=0, checkpoint=0, byte=0, warm=0.5, cold=2, stage=3, record=0.25)
    assert spans([Stage("a", (1.0,) * 100)], Cluster(100, slots=1), driver) == pytest.approx(3 + 100 + 2 + 1 + 0.25)
    driver, messages = replace(FREE, warm=1.0, cold=10.0), replace(FREE, message=1.0)
    assert spans([Stage("a", (100.0,) * 50)], Cluster(50, slots=1, every=10.0), messages) == pytest.approx(100.0)
    stages = [Stage("a", (5.0,) * 4), Stage("b", (5.0,), frozenset({"a"}))]
    assert spans(stages[:1], Cluster(1, slots=2), driver) == pytest.approx(10 + 5 + 1 + 5)
    assert spans(stages, Cluster(1, slots=2), driver) == pytest.approx(10 + 5 + 1 + 5 + 10 + 5)


@pytest.mark.parametrize("tasks", [1, 4, 64])
def test_a_full_hub_sets_the_pace(tasks: int) -> None:
    """A checkpoint takes 2 s of the hub each 10 s of a task: beyond six tasks, all of them wait."""
    driver = Driver(task=0, message=0, checkpoint=1, byte=1e-6, warm=0, cold=0, stage=0, record=0)
    stage = Stage("a", (1000.0,) * tasks, checkpoint=1e6)
    cluster = Cluster(tasks, slots=1, every=10.0)
    came = simulate([stage], cluster, driver)
    alone, full = 1000.0 + 99 * 2, 99 * 2 * tasks
    assert came.makespan == pytest.approx(max(alone, full), rel=0.03)
    assert came.hub == pytest.approx(full / came.makespan)
    assert came.into == 99e6 * tasks
    assert bounds([stage], cluster, driver)["hub"] == full
    away = simulate([stage], replace(cluster, checkpoints="store"), driver)
    assert away.makespan == pytest.approx(1000.0 + 99 * 1e6 / STORE)
    assert (away.stored, away.writes, away.into) == (99e6 * tasks, 99 * tasks, 0)


def test_each_stage_has_its_own_hub_and_all_stages_share_one_wire() -> None:
    driver = replace(FREE, checkpoint=5.0)
    two = [Stage(name, (100.0,) * 2, checkpoint=1.0) for name in "ab"]
    assert simulate(two, Cluster(4, slots=1, every=10.0), driver).makespan == pytest.approx(100 + 9 * 5 + 5)
    large = [replace(stage, checkpoint=NETWORK) for stage in two]
    came = simulate(large, Cluster(4, slots=1, every=1.0), FREE)
    assert came.makespan == pytest.approx(4 * 99, rel=0.03) and came.peak == pytest.approx(NETWORK, rel=0.03)


def test_checkpoints_and_results_go_over_the_wire() -> None:
    """A trial keeps a checkpoint after each part but the last; a result goes over the wire twice."""
    assert simulate([Stage("a", (100.0, 7.0), checkpoint=1e6, parts=4)], Cluster(2, slots=1), FREE).into == 6e6
    came = simulate([Stage("a", (1.0,) * 10, result=1e6)], Cluster(10, slots=1), replace(FREE, byte=1e-5))
    assert came.makespan == pytest.approx(1 + 10 * 10, rel=0.01)
    assert (came.into, came.held) == (2e7, 1e7)


@pytest.mark.parametrize(("data", "rounds", "from_driver"), [("wire", 8, 8), ("tree", 4, 1), ("store", 2.5, 0)])
def test_data_go_to_each_node_once(data: str, rounds: float, from_driver: int) -> None:
    """Eight nodes get the data one after another; or by doubling, 1 + 1 + 2 + 4; or each from a slower store."""
    size = 10 * NETWORK
    came = simulate([Stage("a", (1.0,) * 16, data=size)], Cluster(8, slots=2, data=data), FREE)
    assert came.makespan == pytest.approx(rounds * 10 + 1)
    assert (came.out, came.stored) == (from_driver * size, 8 * size if data == "store" else 0)


def test_data_over_one_wire_limit_the_useful_number_of_nodes() -> None:
    """With sixteen hours of work, and an hour of data for each node, more than four nodes gain nothing."""
    stage, many = Stage("a", (HOUR,) * 16, data=HOUR * NETWORK), Cluster(16, slots=1)
    assert bounds([stage], many, FREE)["data"] == 4 * HOUR
    assert simulate([stage], many, FREE).makespan >= 4 * HOUR
    assert "data" not in bounds([stage], replace(many, data="tree"), FREE)


def _spans(every: float, cluster: Cluster, count: int = 250) -> tuple[float, float]:
    """Return the mean makespan, over seeds, of a task of one hour, and its standard error."""
    cluster = replace(cluster, every=every)
    spans = [simulate([Stage("a", (HOUR,))], cluster, FREE, seed=seed).makespan for seed in range(count)]
    return statistics.fmean(spans), statistics.stdev(spans) / math.sqrt(count)


@pytest.mark.soak
def test_the_time_of_preempted_tasks_matches_the_renewal_argument() -> None:
    """A step of τ with a checkpoint at its end takes (1/λ + n)(exp(λτ) − 1) in the mean, with n to notice a loss.

    Another node is free at once. Of 250 tasks, with a bound of 5 standard errors: a false alarm in 1.7 million.
    Controls that the bound tells apart: no checkpoints, no preemption, a loss that is noticed at once.
    """
    rate, tau, noticed = 4.0, 600.0, 75.0
    cluster = Cluster(20, slots=1, preempted=rate, noticed=noticed)
    want = HOUR / tau * math.expm1(rate * tau / HOUR) * (HOUR / rate + noticed)
    never, at_once = replace(cluster, preempted=0.0), replace(cluster, noticed=0.0)
    for every, of, agrees in ((tau, cluster, True), (HOUR, cluster, False), (tau, never, False), (tau, at_once, False)):
        mean, error = _spans(every, of)
        assert (abs(mean - want) <= 5 * error + 1e-6) is agrees


def test_tasks_lost_more_often_than_ray_retries_are_counted_as_given_up() -> None:
    """A task of four hours at one loss an hour: the fourth loss comes in the mean 1 − Σ₀³ 4ᵏe⁻⁴/k! = 0.567 times."""
    cluster = Cluster(300, slots=1, every=60.0, preempted=1.0, noticed=0.0)
    came = simulate([Stage("a", (4 * HOUR,) * 200)], cluster, FREE)
    assert came.given_up / 200 == pytest.approx(0.567 + 0.05, abs=5 * math.sqrt(0.25 / 200))


def test_a_node_that_comes_back_has_as_many_slots_as_before() -> None:
    """If a slot were handed out twice, the slots would be busy for more time than is paid for."""
    stages = [Stage(f"{i}", (30.0,) * 8, frozenset({f"{i - 1}"} if i else ())) for i in range(200)]
    came = simulate(stages, Cluster(2, slots=4, every=5.0, preempted=20.0, noticed=0.0), FREE)
    assert came.preemptions > 20
    assert came.busy <= came.paid


def test_equal_seeds_give_equal_figures_and_other_seeds_give_other_figures() -> None:
    cluster = Cluster(64, slots=4, every=60.0, preempted=2.0)
    first, again, other = (simulate(workloads.seeds(1000), cluster, FREE, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.slow
def test_the_workload_has_the_stages_of_the_plans_and_no_bound_exceeds_its_time() -> None:
    tables, driver = workloads.paper_tables(), replace(FREE, message=2e-4, checkpoint=1e-3, byte=1.6e-9, cold=4.0)
    planned = [plan(typed(read_params(workloads.ROOT / f"params/paper/{name}.yaml"))) for name in workloads.TABLES]
    assert len(tables) == sum(map(len, planned))
    assert sum(len(stage.needs) for stage in tables) == sum(len(s.needs) for p in planned for s in p.values())
    cluster = Cluster(8, every=60.0, at_once=64)
    assert max(bounds(tables, cluster, driver).values()) <= simulate(tables, cluster, driver).makespan


def test_the_knee_is_the_largest_number_of_slots_that_are_80_percent_busy() -> None:
    runs: list[dict[str, Any]] = [
        {"nodes": nodes, "slots": 8, "busy": share, "paid": 1.0} for nodes, share in ((1, 1.0), (2, 0.9), (4, 0.7))
    ]
    assert page.knee(runs) == 16


REFUSED = subprocess.CompletedProcess([], 1, "", "mount --make-shared /run/netns failed: Operation not permitted\n")
LACKS = {  # what the machine lacks, and what is said
    "nothing": "",
    "ip": "this needs the command ip: install iproute2",
    "unshare": "this needs the command unshare: install util-linux",
    "root": "this needs root, to make networks and disks: give the command with sudo -E",
    "a mount": "Operation not permitted): run it outside a container",
    "Linux": "this needs the namespaces of Linux: run it on a Linux machine",
}


@pytest.mark.parametrize("lacked", LACKS)
def test_the_first_thing_that_a_machine_lacks_is_named_with_its_cure(
    lacked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin" if lacked == "Linux" else "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == lacked else f"/bin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lacked == "root" else 0)
    mounted = REFUSED if lacked == "a mount" else subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: mounted)
    missing = namespaces.missing()
    assert LACKS[lacked] in missing if lacked == "a mount" else missing == LACKS[lacked]
    assert namespaces.available() == (lacked == "nothing")
