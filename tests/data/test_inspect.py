"""Inspection of tables and images: columns, classes, remarks and sources, doubts of leaks, refusals with a cure."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway

from bdl_pipe.data.inspect import table
from bdl_pipe.data.inspect.images import inspect_images
from bdl_pipe.data.inspect.leaks import alike, tells
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.sources.table import SplitBy
from bdl_pipe.errors import DataError
from tests.case_files import cases_of
from tests.preparing import dataset_of
from tests.tables import houses

from .pictures import two_classes

cases = cases_of(__file__)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    houses().to_csv("houses.csv", index=False)
    return Path("houses.csv")


def test_columns_are_kept_or_left_out_with_a_reason(file: Path) -> None:
    note = [f"words {i}" for i in range(300)]
    frame = houses().assign(one=1, number=np.arange(300), copy=houses()["area"], note=note)
    frame.loc[290:, "price"] = np.nan
    frame.to_csv(file, index=False)
    profile = inspect_table(file, ["price"], leave_out=["kind"])
    kinds = {"area": "number", "made_of": "category", "rooms": "number", "built": "date", "garden": "category"}
    assert profile.columns == kinds
    assert profile.left_out == {
        "kind": "as you said",
        "one": "it has one value",
        "number": "it is a row number",
        "note": "it identifies rows: nearly every row has a different text, such as 'words 0'",
        "copy": "it is equal to area",
    }
    assert (profile.rows, profile.without_target, profile.shape) == (290, 10, (13,))
    assert not profile.classes
    raw = profile.source.read()
    assert len(raw.train) == 290 and raw.features == tuple(profile.columns)
    np.testing.assert_array_equal(profile.raw.train.inputs, raw.train.inputs)
    np.testing.assert_array_equal(profile.raw.train.targets, raw.train.targets)
    size = profile.size(calibration=0.1)
    assert (size.task, size.rows, size.width, size.calibration, size.image) == ("regression", 290, 13, 0.1, None)
    inputs = [(column.name, column.kind) for column in raw.columns for _ in range(column.width)]
    numbers = [i for i, (name, kind) in enumerate(inputs) if kind != "category" and name != inputs[i - 1][0]]
    assert size.numbers == tuple(numbers), "a number, or the days of a date: the first input of its column"
    assert "encoded" not in size.network, "a small table's inputs are all encoded"
    large = replace(size, rows=20_000)
    assert (large.network["encoded"], replace(large, numbers=()).network.get("encoded")) == (numbers, None)
    plain, log = profile.dataset(), profile.dataset(log=False)
    assert (plain["normalise"], plain["targets"], log["targets"]) == ("robust", "auto", "standardise")
    assert plain["source"]["name"] == "table" and "csv" not in plain["source"], "keys with their defaults are left out"
    assert dataset_of(**plain).source == profile.source


def test_a_value_that_many_targets_have_is_remarked(tmp_path: Path) -> None:
    """There a density may be as high as one likes."""
    path = tmp_path / "hours.csv"

    def remarks(equal: int) -> list[str]:
        hours = [40] * equal + [2 * i + 1 for i in range(100 - equal)]
        path.write_text("age,hours\n" + "".join(f"{(7 * i) % 101},{value}\n" for i, value in enumerate(hours)))
        return list(inspect_table(path, ["hours"]).remarks)

    rule = "a narrow peak there makes the NLL of a run small, so compare runs by the CRPS, too"
    assert remarks(15) == [f"hours: 15 % of the rows have the value 40; {rule}"]
    assert remarks(14) == []


def test_a_feature_that_orders_the_rows_as_another_column_gets_a_remark(file: Path) -> None:
    houses().assign(tax=lambda f: f["price"] ** 2, feet=lambda f: 3 * f["area"]).to_csv(file, index=False)
    assert inspect_table(file, ["price"]).remarks == [
        "feet orders the rows as area does: one of the two is enough",
        "tax orders the rows as the target price does: is it known when you predict?",
    ]


def test_a_file_that_grows_while_it_is_read_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = table.open_table

    def growing(path: Path, form: Any) -> Any:
        whole = opened(path, form)
        with path.open("a") as lines:
            lines.write("1,wood,2,3,1990-01-01,small,True\n")
        return whole

    monkeypatch.setattr(table, "open_table", growing)
    with pytest.raises(DataError, match="changed while it was read; wait until it is whole"):
        inspect_table(file, ["price"])


def test_duplicate_images_are_counted(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 5, 5), dtype=np.uint8)
    images[1], images[2] = images[0], images[4]
    labels = np.arange(60) % 2
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images[50:], y_test=labels[50:])
    profile = inspect_images(tmp_path / "own.npz")
    assert profile.remarks == [
        "2 images are copies of others; training and test rows may share them",
        "1 images are in two classes or more",
        "10 test images are training images, too: scores are optimistic",
    ]
    assert (profile.shape, profile.classes, profile.test_rows) == ((1, 5, 5), {"0": 30, "1": 30}, 10)
    assert profile.size().has_test and profile.size().image == (1, 5, 5)


def test_broken_images_are_refused_unless_they_are_skipped(tmp_path: Path) -> None:
    two_classes(tmp_path)
    for name in ("x", "y"):
        (tmp_path / f"b/{name}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b/x\.png: is not .*, and 1 more of 62 files cannot be read; .*-broken"):
        inspect_images(tmp_path)
    profile = inspect_images(tmp_path, skip_broken=True)
    assert profile.remarks == [
        f"2 files are left out, since they are not readable images; the first is {tmp_path}/b/x.png"
    ]
    assert len(profile.source.read().train) == 60


ROWS = 300


def leaky(kind: str, *, clean: bool) -> pd.DataFrame:
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


@cases("leaks", "kind start end")
def test_a_leak_is_doubted_with_its_cure_and_a_clean_twin_is_not(
    kind: str, start: str, end: str, tmp_path: Path
) -> None:
    (line,) = inspected(tmp_path / "t.csv", leaky(kind, clean=False)).remarks
    assert line.startswith(start) and line.endswith(end)
    assert inspected(tmp_path / "t.csv", leaky(kind, clean=True)).remarks == []


@pytest.mark.parametrize("kind", ["copies", "repeated"])
def test_the_command_of_a_doubt_removes_it(kind: str, tmp_path: Path) -> None:
    (line,) = inspected(tmp_path / "t.csv", leaky(kind, clean=False)).remarks
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
