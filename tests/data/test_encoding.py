"""Columns of users' tables: encoded as by scikit-learn and pandas, and fitted to the training rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, RobustScaler

from bdl_pipe import config
from bdl_pipe.data.new_inputs import new_inputs
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.data.tables.read import CsvForm, sniffed
from bdl_pipe.data.transform import Encoding, Transform
from bdl_pipe.errors import DataError
from tests.case_files import cases_of
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


def test_a_german_csv_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [f"{i},5;{'naß' if i % 2 else 'trocken'};{i}" for i in range(12)]
    path.write_bytes("\n".join(["menge;wetter;preis", *lines]).encode("cp1252"))
    source = {"target": ["preis"], "columns": {"menge": "number", "wetter": "category"}}
    form = {"separator": ";", "decimal": ",", "encoding": "cp1252"}
    raw = table(path, **source, csv=form).read()
    assert raw.columns[1].values == ("naß", "trocken")
    assert raw.train.inputs[3].tolist() == [3.5, 0.0]


def test_rows_without_a_target_are_left_out_only_on_request(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[:9, "price"] = np.nan
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="'price' must have a value in every row, got none or NaN in row 1"):
        table(tmp_path / "rows.csv").read()
    assert len(table(tmp_path / "rows.csv", skip_without_target=True).read().train) == 190


@cases("columns of another kind", "columns message")
def test_the_error_names_a_column_that_is_not_of_its_stated_kind(tmp_path: Path, columns: Any, message: str) -> None:
    rows = frame().assign(empty=None, amount="1,234")
    rows.loc[0, "grade"] = "bad"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match=message):
        table(tmp_path / "rows.csv", columns=columns).read()
