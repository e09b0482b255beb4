"""Names and words that other systems add: pandas' index, and one truth in several spellings."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from bdl_pipe import BayesianRegressor
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs
from bdl_pipe.data.sources.folders import is_hidden
from bdl_pipe.data.tables.cells import Cells
from bdl_pipe.data.tables.columns import codes_of, describe
from bdl_pipe.data.tables.kinds import features_of
from bdl_pipe.data.tables.read import CsvForm, open_table

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RANDOM.normal(size=80), "b": RANDOM.normal(size=80), "y": RANDOM.normal(size=80)})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_index_that_reset_index_has_made_a_column_is_left_out_and_said(tmp_path: Path, suffix: str) -> None:
    once = FRAME.sample(frac=1, random_state=0).reset_index()
    for frame in (once, once.sample(frac=1, random_state=1).reset_index()):
        path = tmp_path / f"t.{suffix}"
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
        found = inspect_table(path, ["y"])
        assert {*(found.source.columns or {})} == {"a", "b"}
        assert {*found.left_out} == {"index", "level_0"} & {*frame.columns}


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.assign(index=RANDOM.permutation(80)),  # not first
        FRAME[["a"]].assign(index=RANDOM.integers(0, 9, 80), y=FRAME["y"])[["index", "a", "y"]],  # values repeat
        FRAME.assign(index=RANDOM.normal(size=80))[["index", "a", "y"]],  # a share price
    ],
)
def test_a_column_of_values_that_is_named_index_is_a_feature(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "index" in (inspect_table(tmp_path / "t.csv", ["y"]).source.columns or {})


def test_an_estimator_predicts_the_same_with_and_without_the_index_of_a_frame() -> None:
    mixed = FRAME.sample(frac=1, random_state=0).reset_index()
    model = BayesianRegressor("linear").fit(mixed[["index", "a", "b"]], mixed["y"])
    other = BayesianRegressor("linear").fit(mixed[["a", "b"]], mixed["y"])
    np.testing.assert_array_equal(model.predict(mixed[["index", "a", "b"]]), other.predict(mixed[["a", "b"]]))


def test_the_index_that_dask_writes_is_left_out(tmp_path: Path) -> None:
    FRAME.set_index(pd.Index(RANDOM.permutation(80), name="__null_dask_index__")).to_parquet(tmp_path / "t.parquet")
    assert {*(inspect_table(tmp_path / "t.parquet", ["y"]).source.columns or {})} == {"a", "b"}


def test_files_and_folders_that_file_servers_add_are_hidden() -> None:
    """The folders of Netatalk and Samba, and those of QNAP's and Synology's drives."""
    names = ["Network Trash Folder", "Temporary Items", "TheVolumeSettingsFolder", "TheFindByContentFolder", "Icon\r"]
    names += ["@Recently-Snapshot", "@sharebin", "@SynoResource", "@__thumb", "#recycle", "@eaDir", "ehthumbs.db"]
    assert [name for name in names if not is_hidden(Path(name))] == []
    assert not any(is_hidden(Path(name)) for name in ("Icon", "temporary", "@home", "#1", "snapshot", "network"))


def test_words_that_other_programs_write_for_a_gap_among_numbers_are_gaps() -> None:
    """pandas' own list is the oracle; beside it are the words of databases and of Excel in five languages."""
    others = [
        "\\N",
        "(null)",
        "[NULL]",
        "<null>",
        "(blank)",
        "#SPILL!",
        "#BEZUG!",
        "#WERT!",
        "#ZAHL!",
        "#NV",
        "#VALEUR!",
    ]
    others += ["#NOMBRE!", "#NOM?", "#NUL!", "#N/D", "#RIF!", "#VALORE!", "#¡VALOR!", "#¿NOMBRE?", "#VALOR!", "#NÚM!"]
    wrong = [word for word in (*STR_NA_VALUES, *others) if column_of(["1.5", word]).kind != "number"]
    assert wrong == []
    assert column_of(["1.5", "#5"]).kind == column_of(["1.5", "(5)"]).kind == "text"


def column_of(words: list[str]) -> Cells:
    return Cells.of(pa.table({"c": words}), "c", "t.csv")


SPELT = [("yes", "no"), ("Y", "N"), ("t", "f"), ("On", "Off"), ("True", "False"), ("TRUE", "FALSE"), ("1", "0")]


@pytest.mark.parametrize(("fitted", "new"), list(itertools.permutations(SPELT, 2)))
def test_a_truth_has_one_meaning_in_every_spelling(
    tmp_path: Path, fitted: tuple[str, str], new: tuple[str, str]
) -> None:
    def cells(words: tuple[str, str]) -> Cells:
        path = tmp_path / "t.csv"
        path.write_text("c,z\n" + "".join(f"{words[i % 3 == 0]},{-i * i}\n" for i in range(12)))
        return Cells.of(open_table(path, CsvForm()), "c", "t.csv")

    asked = {"c": "category"} if fitted == ("1", "0") else {}
    table = open_table(cells(fitted) and tmp_path / "t.csv", CsvForm())
    kinds = features_of(table, ["c", "z"], "t.csv", kinds=asked).kinds  # type: ignore[arg-type]
    column, _ = describe(cells(fitted), kinds["c"], 20)
    np.testing.assert_array_equal(codes_of(cells(new), column), codes_of(cells(fitted), column))


def test_truths_of_parquet_and_of_frames_are_the_words_of_the_fitted_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    words = FRAME.assign(c=np.where(FRAME["a"] > 0, "yes", "no"))
    words.to_csv(path, index=False)
    source = inspect_table(path, ["y"]).raw
    schema = {"features": list(source.features), "columns": [column.mapping() for column in source.columns]}
    truths = words.assign(c=words["c"] == "yes")
    truths["c"] = truths["c"].astype(bool)
    np.testing.assert_array_equal(frame_inputs(truths, schema), frame_inputs(words, schema))
