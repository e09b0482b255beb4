"""Separators of thousands: what may be wrong by a factor of 1,000 is refused; new rows are read like fitted rows."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import new_inputs
from bdl_pipe.data.split_rows import schema
from bdl_pipe.errors import DataError
from tests.case_files import cases_of, sections_of

cases = cases_of(__file__)
RANDOM = np.random.default_rng(0)
POPULATION, AREA = RANDOM.integers(1000, 9999, 60), RANDOM.integers(1, 999, 60)


def written(path: Path, form: str, separator: str = ";", beside: Any = AREA) -> Path:
    """Write a file with numbers of 1,000 to 9,999 in a form such as ``{:,}``, and a target."""
    marks = str.maketrans({",": form[2], ".": "," if form[2] == "." else "."})
    lines = [f"people{separator}area{separator}y"]
    for number, (people, area) in enumerate(zip(POPULATION, beside, strict=True)):
        text = f"{people:,}".translate(marks)
        quoted = f'"{text}"' if separator in text else text
        lines.append(separator.join([quoted, str(area), f"{(7 * number + 3) % 41}"]))
    path.write_text("\n".join(lines) + "\n")
    return path


def column(path: Path, **said: Any) -> np.ndarray:
    return inspect_table(path, ["y"], "regression", **said).raw.train.inputs[:, 0]


def about(profile: Profile) -> dict[str, Any]:
    """What a fit stores of a table, and predictions read."""
    return schema(profile.raw, DatasetConfig(profile.source, "train", False, 0.2, "train", 1, (), 0, "made"))


@pytest.mark.parametrize("point", [",", "."])
def test_numbers_that_may_be_wrong_by_a_thousand_are_refused_with_both_cures(tmp_path: Path, point: str) -> None:
    path = written(tmp_path / "a.csv", "{:" + point + "}")
    header, first, *rest = path.read_text().splitlines()
    # points alone are three decimals, as programs write them; smaller whole numbers without a point raise the doubt
    path.write_text("\n".join([header, "812" + first[5:], *rest]) + "\n")
    with pytest.raises(DataError) as caught:
        column(path)
    parts = re.search(r"column 'people': (.{5}) may be (.{5}) or (.{4}); say which with (.*)", str(caught.value))
    assert parts is not None
    text, small, large, cures = parts.groups()
    assert text[1] == point and float(small) * 1000 == float(large) == float(text.replace(point, ""))
    assert cures == f"--decimal {point} or --thousands {point}"
    other = "," if point == "." else "."
    for option, scale in ({"decimal": point}, 1e-3), ({"thousands": point}, 1):
        options = {"decimal": option.get("decimal", other), "thousands": option.get("thousands")}
        right = pd.read_csv(path, sep=";", **options)["people"]
        np.testing.assert_array_equal(column(path, **option), right)
        assert np.median(right) == pytest.approx(scale * np.median(POPULATION), rel=0.05)


@pytest.mark.parametrize("beside", ["0,5", "12,25", "1234,5", ",5"])
def test_other_decimal_commas_of_the_file_leave_no_doubt(tmp_path: Path, beside: str) -> None:
    path = written(tmp_path / "a.csv", "{:,}", beside=[beside, "1,5"] * 30)
    np.testing.assert_allclose(column(path), POPULATION / 1000)


FORMS = [("{:,}", ","), ("{:,}", ";"), ("{:.}", ";"), ("{:'}", ","), ("{: }", "\t")]


@pytest.mark.parametrize(("form", "separator"), FORMS)
def test_separators_of_thousands_are_read_as_pandas_reads_them(tmp_path: Path, form: str, separator: str) -> None:
    path = written(tmp_path / "a.csv", form, separator)
    option = {"thousands": form[2]}
    decimal = "," if form[2] == "." else "."
    right = pd.read_csv(path, sep=separator, thousands=form[2], decimal=decimal)["people"].to_numpy(float)
    np.testing.assert_array_equal(column(path, **option), right)
    np.testing.assert_array_equal(right, POPULATION)


@pytest.mark.parametrize(("said", "printed"), [(" ", "\u00a0"), (" ", "\u202f"), (" ", "\u2009"), ("'", "\u2019")])
def test_a_printed_separator_of_thousands_is_the_one_that_was_said(tmp_path: Path, said: str, printed: str) -> None:
    """French programs write a no-break blank, Swiss ones a typographic apostrophe."""
    path, right = written(tmp_path / "a.csv", "{:" + printed + "}"), POPULATION.astype(float)
    np.testing.assert_array_equal(column(path, thousands=said), right)
    profile = inspect_table(path, ["y"], "regression", thousands=said)
    np.testing.assert_array_equal(new_inputs(path, about(profile))[:, 0], right)


def test_an_odd_place_of_a_separator_makes_a_column_no_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "{:,}")
    path.write_text(path.read_text().replace("people;area;y\n", "people;area;y\n12,34;5;6\n"))
    profile = inspect_table(path, ["y"], "regression", thousands=",")
    assert "people" not in (profile.source.columns or {})  # pandas reads 1234


def test_a_separator_of_thousands_is_not_the_decimal_point_and_parquet_has_neither(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "{:,}")
    with pytest.raises(DataError, match=r"--thousands: must not be the decimal point, got ','"):
        column(path, decimal=",", thousands=",")
    frame = tmp_path / "a.parquet"
    pd.read_csv(path, sep=";").to_parquet(frame)
    with pytest.raises(DataError, match="is a Parquet file"):
        column(frame, thousands=",")


@cases("fitted files", "form options expected")
def test_new_rows_are_read_like_the_fitted_file(tmp_path: Path, form: str, options: Any, expected: list[Any]) -> None:
    path = tmp_path / "fitted.csv"
    if options:
        written(path, form)
    else:
        rows = enumerate(zip(POPULATION, AREA, strict=True))
        path.write_text("people;area;y\n" + "".join(f"{p};{a};{n % 7}.5\n" for n, (p, a) in rows))
    of_fitted, answers = about(inspect_table(path, ["y"], "regression", **options)), []
    assert ("numbers" in of_fitted) == bool(options)
    for text in sections_of(__file__)["new"]:
        (tmp_path / "new.csv").write_text(text)
        try:
            answers.append(new_inputs(tmp_path / "new.csv", of_fitted)[0, 0])
        except DataError:
            answers.append(None)
    assert answers == expected


@cases("missing options", "separator texts options")
def test_a_column_that_only_lacks_options_names_them(tmp_path: Path, separator: str, texts: Any, options: str) -> None:
    path, y = tmp_path / "a.csv", [7 * i % 41 for i in range(60)]
    lines = [separator.join([texts[i % 2], f"{i % 9}", f"{value}"]) for i, value in enumerate(y)]
    path.write_text("\n".join([separator.join(["f", "x", "y"]), *lines]))
    reason = inspect_table(path, ["y"], "regression").left_out["f"]
    assert reason.endswith(f", or say {options}" if options else "with a point")
    with pytest.raises(DataError) as refused:
        inspect_table(path, ["f"], "regression")
    assert str(refused.value).endswith(f", or say {options}") == bool(options)
    if options:
        words = shlex.split(options)
        option = dict(zip(("thousands", "decimal"), words[1::2], strict=True))
        assert inspect_table(path, ["y"], "regression", **option).raw.train.inputs[:2, 0].tolist() == [1299.99, 12.5]
