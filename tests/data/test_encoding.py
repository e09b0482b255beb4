"""Columns of users' tables, encoded as by scikit-learn and pandas from the training rows alone; new rows and images;
separators of thousands: what may be wrong by a factor of 1,000 is refused.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, RobustScaler

from bdl_pipe import config
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import new_inputs
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.split_rows import schema
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.data.tables.read import CsvForm, sniffed
from bdl_pipe.data.transform import Encoding, Transform
from bdl_pipe.errors import DataError
from tests.case_files import call, cases_of, sections_of
from tests.preparing import transform_of

cases = cases_of(__file__)
GRADES = ("bad", "fair", "good", "great", "odd")


def frame(rows: int = 200) -> pd.DataFrame:
    g = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": g.lognormal(size=rows),
            "grade": g.choice(GRADES, rows, p=[0.4, 0.3, 0.2, 0.05, 0.05]),
            "when": pd.Timestamp("2024-02-01") + pd.to_timedelta(g.integers(0, 900, rows), unit="D"),
            "sold": g.integers(0, 2, rows).astype(bool),
            "price": g.normal(size=rows),
        }
    )
    frame.loc[g.choice(rows, 20, replace=False), "size"] = np.nan
    frame.loc[g.choice(rows, 20, replace=False), "grade"] = None
    return frame


def table(path: Path, **changes: Any) -> Table:
    columns = {"size": "number", "grade": "category", "when": "date", "sold": "category"}
    source = {"name": "table", "path": str(path), "target": ["price"], "task": "regression", "columns": columns}
    return config.read(Table, {**source, **changes}, "source")


@pytest.fixture(params=["csv", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / f"rows.{request.param}"
    rows = frame()
    rows.to_csv(place, index=False) if request.param == "csv" else rows.to_parquet(place)
    return place


def test_a_table_is_read_as_numbers_and_category_codes(path: Path) -> None:
    raw, rows = table(path).read(), frame()
    size, grade, when, sold = raw.train.inputs.T
    np.testing.assert_array_equal(size, rows["size"])
    assert [column.values for column in raw.columns][1] == GRADES
    expected = [GRADES.index(value) if isinstance(value, str) else np.nan for value in rows["grade"]]
    np.testing.assert_array_equal(grade, expected)
    np.testing.assert_array_equal(when, (rows["when"] - pd.Timestamp(0)).dt.days)
    np.testing.assert_array_equal(sold, rows["sold"].astype(float))
    assert [column.missing for column in raw.columns] == [True, True, False, False]


def test_encoding_equals_scikit_learn(path: Path) -> None:
    """Medians with indicators; one-hot columns, one for rare categories; fitted to the first half, applied to all."""
    raw, rows = table(path, categories=4).read(), frame()
    encoding = Encoding.fit(raw.columns, raw.train.inputs[:100])
    encoded = pd.DataFrame(encoding(torch.from_numpy(raw.train.inputs)).numpy(), columns=encoding.names())
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(rows[["size"]][:100])
    np.testing.assert_array_equal(encoded[["size", "size missing"]], imputer.transform(rows[["size"]]))
    has_grade = rows["grade"].notna()
    encoder = OneHotEncoder(max_categories=4, handle_unknown="infrequent_if_exist", sparse_output=False)
    encoder.fit(rows[["grade"]][:100][has_grade[:100]])
    grades = [name for name in encoded if name.startswith("grade=")]
    assert grades == ["grade=bad", "grade=fair", "grade=good", "grade=great|odd"]
    np.testing.assert_array_equal(encoded.loc[has_grade, grades], encoder.transform(rows.loc[has_grade, ["grade"]]))
    assert not encoded.loc[~has_grade, grades].to_numpy().any()
    np.testing.assert_array_equal(encoded["grade missing"], ~has_grade)
    turn = 2 * np.pi * (rows["when"] - pd.Timestamp(0)).dt.days / 7
    np.testing.assert_allclose(encoded["when:week sin"], np.sin(turn), atol=1e-12)


def test_an_encoding_depends_only_on_the_rows_that_it_is_fitted_to() -> None:
    """The control: a fit to all rows has another median."""
    columns = (Column("a", "number", missing=True), Column("b", "category", ("x", "y", "z")))
    g = np.random.default_rng(1)
    rows = np.stack([g.normal(size=60), g.integers(0, 2, 60).astype(float)], axis=1)
    other = rows.copy()
    other[40:] = [[100.0, 2.0]]
    first, second, wrong = (Encoding.fit(columns, some).state() for some in (rows[:40], other[:40], other))
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name])
    assert not torch.equal(first.tensors["medians"], wrong.tensors["medians"])
    seen = Encoding.fit(columns, rows[:40])(torch.tensor([[0.0, 2.0]]))
    assert seen.shape == (1, 5)
    assert seen[0, 2:].sum() == 0  # no training row has z, and none is rare


def test_the_number_of_encoded_columns_does_not_depend_on_the_split() -> None:
    column = Column("b", "category", tuple("abcdefgh"), slots=3)
    for codes in ([0.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0], [np.nan] * 5):
        encoding = Encoding.fit((column,), np.array(codes)[:, None])
        assert encoding(torch.tensor([[7.0], [-1.0], [np.nan]])).shape == (3, 3)


def test_an_unseen_category_is_encoded_as_a_rare_category(path: Path) -> None:
    schema_of = [column.mapping() for column in table(path, categories=4).read().columns]
    new = path.with_name("new.csv")
    new.write_text("grade,size,when,sold\nunheard,1.5,2026-01-31,True\n,,2026-01-31,False\n")
    schema = {"kind": "table", "features": ["size", "grade", "when", "sold"], "input_shape": [4], "columns": schema_of}
    inputs = new_inputs(new, schema)
    assert inputs[0, 1] == -1
    assert np.isnan(inputs[1, :2]).all()
    raw = table(path, categories=4).read()
    encoding = Encoding.fit(raw.columns, raw.train.inputs)
    row = dict(zip(encoding.names(), encoding(torch.from_numpy(inputs))[0].tolist(), strict=True))
    assert row["grade=great|odd"] == 1
    assert sum(value for name, value in row.items() if name.startswith("grade=")) == 1
    new.write_text("grade,size,when,sold\nbad,1.5,,True\n")
    with pytest.raises(DataError, match=r"'when' must have a value in every row, as in the file that was fitted"):
        new_inputs(new, schema)


def test_a_transform_restored_from_its_state_is_unchanged(path: Path) -> None:
    raw = table(path).read()
    fitted = transform_of(raw.train.inputs, np.exp(raw.train.targets), columns=raw.columns, scaling="log")
    again = Transform.from_state(fitted.state())
    assert torch.equal(fitted.inputs(raw.train.inputs), again.inputs(raw.train.inputs))
    assert torch.equal(fitted.targets(raw.train.targets + 9), again.targets(raw.train.targets + 9))
    inputs = fitted.inputs(raw.train.inputs)
    assert inputs.isfinite().all() and inputs.abs().max() < 3
    assert fitted.shape((4,)) == tuple(inputs.shape[1:])


def test_robust_scaling_equals_scikit_learn() -> None:
    """If the quartiles are equal, the scale is half the range; a column that does not vary becomes 0."""
    g = np.random.default_rng(2)
    rows = np.stack([g.standard_cauchy(300), np.r_[np.ones(280), g.normal(size=20)], np.full(300, 7.0)], axis=1)
    fitted = transform_of(rows, np.arange(300) % 2)
    scaled = RobustScaler().fit_transform(rows)[:, 0]
    encoded = fitted.inputs(rows).numpy()
    np.testing.assert_allclose(encoded[:, 0], scaled / np.sqrt(1 + (scaled / 3) ** 2), rtol=1e-5, atol=1e-6)
    assert float(fitted.std[1]) == pytest.approx(np.ptp(rows[:, 1]) / 2)
    assert not encoded[:, 2].any()


@cases("forms", "text form")
def test_the_separator_decimal_sign_and_encoding_of_a_file_are_detected(tmp_path: Path, text: str, form: Any) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(form[2]))
    assert sniffed(path) == CsvForm(*form)


@cases("columns of another kind", "columns message")
def test_the_error_names_a_column_that_is_not_of_its_stated_kind(tmp_path: Path, columns: Any, message: str) -> None:
    rows = frame().assign(empty=None, amount="1,234")
    rows.loc[0, "grade"] = "bad"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match=message):
        table(tmp_path / "rows.csv", columns=columns).read()


TABLE = {"kind": "table", "features": ["a", "b"], "input_shape": [2]}
GREY = {"kind": "image", "features": [], "input_shape": [1, 4, 5]}
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)


def test_table_columns_are_read_by_name_from_a_csv_file_and_by_place_from_an_npz(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("extra,b,a\nx,1,2\ny,3,4.5\n")
    np.testing.assert_array_equal(new_inputs(tmp_path / "n.csv", TABLE), [[2, 1], [4.5, 3]])
    np.savez(tmp_path / "n.npz", x=np.array([[1, 2], [3, 4]]))
    rows = new_inputs(tmp_path / "n.npz", TABLE)
    assert rows.dtype == np.float64 and rows.tolist() == [[1, 2], [3, 4]]


def test_images_are_read_from_an_npz_a_folder_subfolders_or_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", x=PIXELS)
    (tmp_path / "flat").mkdir()
    (tmp_path / "deep" / "z").mkdir(parents=True)
    for i, image in enumerate(PIXELS):
        Image.fromarray(image).save(tmp_path / "flat" / f"{i}.png")
        Image.fromarray(image).save(tmp_path / "deep" / "z" / f"{i}.png")
    for place in ("n.npz", "flat", "deep"):
        np.testing.assert_array_equal(new_inputs(tmp_path / place, GREY), PIXELS[:, None])
    np.testing.assert_array_equal(new_inputs(tmp_path / "flat" / "1.png", GREY), PIXELS[1:2, None])


def test_grey_files_get_three_equal_channels_for_a_colour_posterior(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "0.png")
    images = new_inputs(tmp_path, GREY | {"input_shape": [3, 4, 5]})
    np.testing.assert_array_equal(images, np.repeat(PIXELS[:1, None], 3, axis=1))


def below(folder: Path, name: str = "") -> Path:
    return folder / name


def text(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def numbers(folder: Path, values: list[list[float]]) -> Path:
    np.savez(folder / "n.npz", x=np.array(values))
    return folder / "n.npz"


def pixels(folder: Path, name: str, images: int, height: int) -> Path:
    np.savez(folder / "n.npz", **{name: PIXELS[:images, :height]})
    return folder / "n.npz"


def wide_image(folder: Path) -> Path:
    Image.new("L", (7, 4)).save(folder / "0.png")
    return folder


@cases("refused", "write kind message")
def test_bad_new_rows_are_refused(write: str | list[Any], kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        new_inputs(call(globals(), write, tmp_path), {"table": TABLE, "image": GREY}[kind])


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
    """The encoding of a table that a fit stores and predictions read."""
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
    profile = inspect_table(path, ["y"], "regression")
    np.testing.assert_allclose(profile.raw.train.inputs[:, 0], POPULATION / 1000)
    assert sum("with a decimal comma; if commas separate thousands" in line for line in profile.remarks) == 1


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
