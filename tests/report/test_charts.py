"""The report's figures and plots: their data against a computation from rows; the loss of a student, by hand."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdl_pipe import scores
from bdl_pipe.metrics.comparison import Difference
from bdl_pipe.metrics.standings import Standing
from bdl_pipe.scores import Quantity, RunScores, Score
from bdl_report import RunInfo, charts, plots, tables
from bdl_report.students import beside
from bdl_report.tables import Table
from bdl_report.vega import Chart
from tests.report.report_cases import of_values, write_run


def table_of(tmp_path: Any, nll: dict[str, float], **costs: dict[str, float]) -> tables.Table:
    runs = []
    for name, value in nll.items():
        paid = {Quantity(cost, "cost"): of[name] for cost, of in costs.items() if name in of}
        runs.append(write_run(tmp_path, "d", name, "s", of_values({"nll": [value] * 3, **paid})))
    (table,) = tables.gather(runs).by_dataset().values()
    return table


def rows(chart: Chart | None) -> list[dict[str, Any]]:
    assert chart is not None
    values: list[dict[str, Any]] = chart.spec["data"]["values"]
    return values


def test_the_front_is_every_run_that_no_other_beats_in_both(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    names = [f"m{k}" for k in range(12)]
    nll, fit = (dict(zip(names, rng.integers(1, 8, 12) / 4, strict=True)) for _ in range(2))
    nll["m0"], fit["m0"] = 99.0, 1e-3  # an outlier on the front
    found = rows(charts.pareto(table_of(tmp_path, nll, fit_seconds=fit)))
    beaten = {
        one
        for one in names
        for other in names
        if nll[other] <= nll[one] and fit[other] <= fit[one] and (nll[other], fit[other]) != (nll[one], fit[one])
    }
    front = {(nll[name], fit[name]) for name in names if name not in beaten}
    assert {(nll[row["name"]], fit[row["name"]]) for row in found if row["front"]} == front
    assert max(row["nll"] for row in found) < 5 and next(r for r in found if r["name"] == "m0")["label"] == "m0 ↑ 99.00"


def test_a_difference_has_its_interval_and_one_of_few_seeds_two_errors(tmp_path: Any) -> None:
    table = table_of(tmp_path, {"best": 1.0, "near": 1.1, "few": 1.2, "far": 99.0})
    of = {one.key.split("-")[1]: one for one in table.candidates()}
    gaps = {"best": None, "near": Difference(0.1, 0.2, 0.05), "few": Difference(0.2, math.inf, 0.05)}
    gaps["far"] = Difference(98.0, 1.0, 0.1)
    found = rows(charts.differences(table, [Standing(of[name], 0, gap, None, False) for name, gap in gaps.items()]))
    assert [(r["name"], r["low"], r["high"], r["known"]) for r in found[:3]] == [
        *(("best", 0.0, 0.0, True), ("near", -0.1, pytest.approx(0.3), True), ("few", 0.1, pytest.approx(0.3), False)),
    ]
    assert [r["beyond"] for r in found] == ["", "", "", "+98.00 →"]


def test_the_cost_of_rejecting_is_chows_rule_over_rows(tmp_path: Any) -> None:
    """Over-confident rows: the rule with the true accuracies, a wrong variant, has another cost."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.2, 1, 4_000)
    right = rng.uniform(size=4_000) < confidence**2
    place = np.minimum((confidence * 15).astype(int), 14)
    groups = [(place == k) for k in range(15)]
    mean = [(confidence[g].mean(), right[g].mean()) if g.any() else (math.nan, math.nan) for g in groups]
    bins = pd.DataFrame(mean, columns=["confidence", "accuracy"])
    bins = bins.assign(lower=[k / 15 for k in range(15)], upper=[(k + 1) / 15 for k in range(15)])
    bins["count"] = [int(g.sum()) for g in groups]
    table = table_of(tmp_path, {"m": 1.0})
    found = rows(charts.rejection(table, {"d-m-s": bins}))
    assert len(found) == 7
    for row, k in zip(found, range(8, 15), strict=True):
        price = 1 / (1 - k / 15)
        accepted, knowing = confidence >= 1 - 1 / price - 1e-12, confidence**2 >= 1 - 1 / price
        cost, other = (float(np.where(taken, price * ~right, 1).mean()) for taken in (accepted, knowing))
        assert row["cost"] == pytest.approx(cost, rel=1e-4) != pytest.approx(other, rel=1e-4)
        assert row["all"] == pytest.approx(price * (~right).mean(), rel=1e-4)


def test_coverage_by_level_counts_the_targets_in_central_intervals(tmp_path: Any) -> None:
    values = np.random.default_rng(0).beta(2, 3, 1_000)  # F(y) of predictives that are shifted and too wide
    counts = pd.Series(np.histogram(values, 10, (0, 1))[0])
    found = rows(charts.coverage(table_of(tmp_path, {"m": 1.0}), {"d-m-s": counts}))
    assert [row["x"] for row in found] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    for row in found:
        inside = float((np.abs(values - 0.5) <= row["x"] / 2).mean())
        assert row["y"] == pytest.approx(inside) and (
            row["x"] in (0, 1) or inside != float((values <= row["x"]).mean())
        )


def test_lines_leave_out_what_is_not_finite_and_state_the_value_at_a_place() -> None:
    named = {key: {"name": key, "colour": "red", "dash": 0} for key in "ab"}
    points = {"a": [(0.0, 1.0, 0.1), (1.0, math.nan, 0.0), (2.0, 3.0, 0.5)], "b": [(0.0, math.inf, 0.0)]}
    chart = charts.lines(named, points, ("t", "x", "y"), "at the end", at=1.5)
    assert [(row["x"], row["low"], row["high"]) for row in rows(chart)] == [(0, 0.9, 1.1), (2, 2.5, 3.5)]
    assert chart.alt == "at the end: a 1" and list(chart.names) == ["a"]


U = np.random.default_rng(0).uniform(size=400) ** 1.5  # F(y) of 400 targets, more of them small


@pytest.mark.parametrize("bins", [10, 7])
def test_the_coverage_of_intervals_is_the_share_of_targets_in_them(tmp_path: Path, bins: int) -> None:
    """Stored are counts of equal bins; the oracle takes F(y) itself, and one-sided intervals have other shares."""
    frame = pd.DataFrame({"count": [0, 3], "confidence": [np.nan, 0.7], "accuracy": [np.nan, 0.5]})
    counts = pd.Series(np.histogram(U, bins, (0, 1))[0])
    drawn: Any = {"calibration": {"b": frame}, "pit": {"a": counts}, "risk": {}}
    fits = {"shared": [(1, 0.5), (2.5, 0.25)]}
    runs = tuple(RunInfo(key, f"set {of}", "gp", "", tmp_path, training=fits) for key, of in ("aa", "bb", "cb"))
    plots.write(Table(runs, {}, drawn, {}), tmp_path / "plots")
    read = {path.stem: [*csv.reader(path.open())] for path in (tmp_path / "plots").iterdir()}
    assert read["reliability"] == [["dataset", "run", "confidence", "accuracy"], ["set b", "b", "0.7", "0.5"]]
    loss = [[f"set {of}", "shared", *at] for of in "ab" for at in (["1", "0.5"], ["2.5", "0.25"])]
    assert read["training"] == [["dataset", "run", "step", "loss"], *loss]
    points = [(float(level), float(share)) for _, _, level, share in read["intervals"][1:]]
    assert points[-1] == (1.0, 1.0) and len(points) == (bins + 1) // 2
    for level, share in points[:-1]:
        assert share == pytest.approx(np.mean(abs(U - 0.5) < level / 2))
        assert share != pytest.approx(np.mean(U - level < 0), abs=0.01)


NLL, ACCURACY, SIZE = Quantity("nll"), Quantity("accuracy"), Quantity("bytes", "cost")


def run(of: Quantity, values: list[list[float]]) -> RunScores:
    """A run with these values [split][seed]."""
    figures = [Score(s, k, of, value, 10) for s, seeds in enumerate(values) for k, value in enumerate(seeds)]
    return RunScores(scores.table("d", "m", "s", figures))


def test_a_loss_is_a_mean_over_pairs_of_splits_with_seeds_averaged_first() -> None:
    """Differences .1, .3 and .2: mean .2, standard error .1/√3; the figures' own errors are ten times as large."""
    student, teacher = run(NLL, [[1.0, 1.2], [3.3, 3.3], [5.1, 5.3]]), run(NLL, [[1.0], [3.0], [5.0]])
    pair = beside(student, teacher, NLL)
    assert pair.student == student.estimate(NLL) and pair.teacher == teacher.estimate(NLL)
    assert pair.lost is not None and pair.lost.error is not None and pair.student is not None
    assert (pair.lost.mean, pair.lost.n) == (pytest.approx(0.2), 3)
    assert pair.lost.error == pytest.approx(0.1 / math.sqrt(3))
    assert pair.student.error is not None and pair.student.error > 10 * pair.lost.error
    assert pair.ratio == pytest.approx(3.0 / 3.2)


def test_a_lower_accuracy_is_a_loss_and_one_split_has_no_error_and_the_numbers_of_seeds_may_differ() -> None:
    pair = beside(run(ACCURACY, [[0.9], [0.8]]), run(ACCURACY, [[0.92], [0.84]]), ACCURACY)
    assert pair.lost is not None and pair.lost.mean == pytest.approx(0.03)
    pair = beside(run(NLL, [[0.3, 0.5]]), run(NLL, [[0.1]]), NLL)
    assert pair.lost is not None and pair.lost.mean == pytest.approx(0.3) and pair.lost.error is None
    assert beside(run(SIZE, [[200.0]]), run(SIZE, [[900.0]]), SIZE).ratio == 4.5


def test_runs_that_cannot_be_compared_have_no_loss() -> None:
    one, two = run(NLL, [[0.3]]), run(NLL, [[0.3], [0.5]])
    assert beside(one, two, NLL).lost is None and beside(one, None, NLL).lost is None
    missing = beside(one, two, ACCURACY)
    assert (missing.student, missing.teacher, missing.lost, missing.ratio) == (None, None, None, None)
    assert beside(one, None, NLL).student == one.estimate(NLL) and beside(one, None, NLL).ratio is None
