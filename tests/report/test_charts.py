"""The report's figures: their data against a computation from rows, each with a wrong variant that fails."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdl_pipe.metrics.comparison import Difference
from bdl_pipe.metrics.standings import Standing
from bdl_pipe.scores import Quantity
from bdl_report import charts, tables
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
