"""Tables with groups, drift, equal rows or a telling column are doubted, and their clean twins are not."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway

from bdl_pipe.data.inspect.leaks import alike, tells
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.sources.table import SplitBy

ROWS = 300


def table(kind: str, *, clean: bool) -> pd.DataFrame:
    """Return a table with one leak, or its twin: the same columns without the dependence that leaks."""
    random = np.random.default_rng(5)
    x, z, noise = random.normal(size=(3, ROWS))
    frame = pd.DataFrame({"x": x, "z": z, "y": 0.5 * x + noise})
    if kind == "group":
        ward = np.repeat(np.arange(60), 5)
        names = np.array([f"w{i}" for i in ward])
        own = random.normal(size=(60, 3))[ward] + 0.01 * random.normal(size=(ROWS, 3))
        kept = random.permutation(ROWS) if clean else np.arange(ROWS)  # the twin's wards are drawn at random
        return frame.assign(x=own[:, 0], z=own[:, 1], y=own[:, 2] + 0.3 * noise, ward=names[kept])
    if kind == "date":
        day = random.integers(0, 700, ROWS)
        shift = 0 if clean else day / 200
        return frame.assign(day=[str(np.datetime64("2022-01-01") + int(i)) for i in day], y=frame["y"] + shift)
    if kind in ("copies", "of one feature"):
        frame = frame if kind == "copies" else frame[["x", "y"]]
        return frame.round(1) if clean else pd.concat([frame, frame[:30]], ignore_index=True)
    if kind == "repeated":
        twice = pd.concat([frame, frame[:60]], ignore_index=True)
        again = random.normal(size=60) if clean else twice["y"][:60] + 0.01 * random.normal(size=60)
        return twice.assign(y=[*twice["y"][:ROWS], *again])
    copy = frame["y"] + (0.5 if clean else 0.03) * random.normal(size=ROWS)
    return frame.assign(price=(copy - copy.mean()) ** 3)


def inspected(path: Path, frame: pd.DataFrame, by: SplitBy | None = None) -> Profile:
    frame.to_csv(path, index=False)
    return inspect_table(path, ["y"], split_by=by)


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        ("group", "ward has 60 values, whose rows have similar targets", "use --split-by group:ward"),
        ("date", "targets drift along day", "use --split-by date:day"),
        ("copies", "30 rows are copies of others", 'index=False)"'),
        ("of one feature", "30 rows are copies of others", 'index=False)"'),
        ("repeated", "60 rows have the features of another row and another target", "and --split-by group:same"),
        ("target", "price alone nearly determines y", "use --leave-out price"),
    ],
)
def test_a_leak_is_doubted_with_its_cure_and_a_clean_twin_is_not(
    kind: str, start: str, end: str, tmp_path: Path
) -> None:
    (line,) = inspected(tmp_path / "t.csv", table(kind, clean=False)).remarks
    assert line.startswith(start) and line.endswith(end)
    assert inspected(tmp_path / "t.csv", table(kind, clean=True)).remarks == []


@pytest.mark.parametrize("kind", ["copies", "repeated"])
def test_the_command_of_a_doubt_removes_it(kind: str, tmp_path: Path) -> None:
    (line,) = inspected(tmp_path / "t.csv", table(kind, clean=False)).remarks
    words = shlex.split(line[line.index("python -c") :].partition(", and ")[0])
    exec(words[2], {})
    frame, by = pd.read_csv(tmp_path / "t.csv"), None
    if kind == "repeated":
        assert frame["same"].nunique() == ROWS
        by = SplitBy(group="same")
    profile = inspected(tmp_path / "t.csv", frame, by)
    assert profile.rows == len(frame) and not any("are copies" in line for line in profile.remarks)


def test_the_f_test_and_the_correlation_of_groups_are_those_of_one_way_analysis() -> None:
    random = np.random.default_rng(6)
    groups, sizes = np.repeat(np.arange(20), 6), np.full(20, 6)
    values = random.normal(size=20)[groups] + random.normal(size=120)
    correlation, log_p = alike(groups, values[None])
    statistic, p = f_oneway(*(values[groups == group] for group in range(20)))
    assert np.exp(log_p) == pytest.approx(p, rel=1e-9)
    assert correlation == pytest.approx((statistic - 1) / (statistic - 1 + sizes[0]))  # F = MSB/MSW, equal sizes


def test_a_column_tells_a_target_as_far_as_neighbours_agree() -> None:
    """Chatterjee's coefficient is 1 for any function, also one without an order; about 0, sd √(2/5n), for chance."""
    x = np.random.default_rng(7).permutation(2_000) / 2_000
    assert tells(x, np.sin(9 * x), classes=False) > 0.98
    assert tells(x, (9 * x).astype(int) % 3, classes=True) > 0.98
    assert abs(tells(x, np.random.default_rng(8).normal(size=2_000), classes=False)) < 5 * np.sqrt(0.4 / 2_000)
