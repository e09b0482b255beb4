"""Images of one's own become a data set with runs; what cannot be used is named, and nothing is written."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bdl_pipe.data import sources
from bdl_pipe.yaml_files import read_yaml
from pipeline import cli
from pipeline.core.load import load
from tests.pipeline import walk

PARAMS = Path(__file__).parents[2] / "params.yaml"


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
    """A project with the default params, a folder of images and an ``.npz``."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS, "params.yaml")
    images, labels = stripes(80)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = Path("data/photos") / ("rows", "columns")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    np.savez("data/photos.npz", x=images, y=labels)
    return tmp_path


@pytest.mark.slow
def test_what_is_found_is_said_and_what_is_written_is_valid(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data/photos/rows/bad.png").write_bytes(b"no image")
    assert cli.main(["add", "data/photos", "--skip-broken"]) == 0
    said = capsys.readouterr().out
    for line in (
        "note: 1 files are no readable images and are left out, the first data/photos/rows/bad.png",
        "data/photos: 80 grey images of 12×12 pixels",
        "2 classes: columns 40, rows 40",
        "photos: 20 methods, 5 splits; a network sees 1×12×12 pixels",
    ):
        assert line in said
    read = load()
    assert {run.method.name for run in read.of("coreset") if run.spec.dataset == "photos"} == {"vbpc", "random_coreset"}
    own = [run for run in read.of("student") if run.spec.dataset == "photos"]
    same = {
        str(run.config.network) for run in own if run.method.name in ("d_vbll", "g_vbll", "dropout", "bnn", "ffg_u")
    }
    assert len(same) == 1
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


def test_images_of_many_sizes_are_brought_to_one(project: Path) -> None:
    random = np.random.default_rng(0)
    for path in Path("data/photos").rglob("*.png"):
        wide, high = random.integers(9, 30, 2)
        Image.open(path).convert("RGB").resize((int(wide), int(high))).save(path)
    assert cli.main(["add", "data/photos", "--size", "10"]) == 0
    command = "# made by: python -m pipeline add data/photos --size 10 --minutes 10\n"
    assert command in Path("params/data/photos.yaml").read_text()
    raw = sources.load(load().datasets["photos"].source)
    assert raw.train.inputs.shape == (80, 3, 10, 10)
    path = sorted(Path("data/photos/columns").iterdir())[3]
    with Image.open(path) as image:
        scale = 10 / min(image.size)
        middle = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (middle.width - 10) / 2, (middle.height - 10) / 2
        meant = np.asarray(middle.crop((round(left), round(top), round(left) + 10, round(top) + 10))).transpose(2, 0, 1)
    found = raw.train.inputs[3].astype(int)
    assert np.abs(found - meant).mean() < 12, "scaled, then cut around the middle, up to half a pixel"


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ("broken", [], "data/photos/rows/bad.png: is not a readable image"),
        ("other size", [], "every image must be 12×12 pixels, got 9×12; bring all to one size with --size 64"),
        ("few", [], "must have at least 5 images of each class, got 1 with fewer: third"),
        ("one class", [], "data/photos: must have at least 2 classes, got only rows"),
        ("empty class", [], "data/photos/third: must hold images"),
        ("", ["--target", "y"], "--target: is for tables; the classes of data/photos are its folders, or its y"),
        ("", ["--methods", "vbll"], "--methods: 'vbll' is not among the methods for classification of 80 images"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], change: str, options: list[str], said: str
) -> None:
    photos, before = Path("data/photos"), Path("params.yaml").read_bytes()
    if change == "broken":
        (photos / "rows/bad.png").write_bytes(b"no image")
    if change == "other size":
        Image.new("L", (9, 12)).save(photos / "rows/zz.png")
    if change in ("few", "empty class"):
        (photos / "third").mkdir()
    if change == "few":
        Image.fromarray(stripes(1)[0][0]).save(photos / "third/a.png")
    if change == "one class":
        shutil.rmtree(photos / "columns")
    assert cli.main(["add", "data/photos", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert Path("params.yaml").read_bytes() == before
    assert not Path("params/data").exists()


def test_options_of_folders_are_for_folders(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.DataFrame({"a": [1.0], "b": [2.0]}).to_csv("data/t.csv", index=False)
    assert cli.main(["add", "data/t.csv"]) == 2
    assert "--target: is missing; name the column of data/t.csv" in capsys.readouterr().err
    assert cli.main(["add", "data/t.csv", "--target", "a", "--size", "8"]) == 2
    assert "--size: is for folders of images, not for data/t.csv" in capsys.readouterr().err
    assert cli.main(["add", "data/photos.npz", "--size", "8"]) == 2
    assert "--size is for folders of images; those of an .npz have one size" in capsys.readouterr().err


@pytest.mark.slow
def test_the_transcript_of_the_docs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scikit-learn's digits, as pictures of many sizes."""
    from sklearn.datasets import load_digits

    shutil.rmtree("data/photos")
    digits, random = load_digits(), np.random.default_rng(0)
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = Path(f"data/photos/{label}")
        folder.mkdir(parents=True, exist_ok=True)
        wide, high = random.integers(24, 60, 2).tolist()
        Image.fromarray((15 * pixels).astype(np.uint8)).resize((wide, high)).save(folder / f"{number:04d}.png")
    page = (PARAMS.parent / "docs/your-data.md").read_text()
    command, transcript = (
        page.split("```sh\npython -m pipeline ")[2].split("```")[0],
        page.split("```text\n")[2].split("```")[0],
    )
    assert cli.main([*command.split(), "--dry-run"]) == 0
    lines = transcript.splitlines()
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


@pytest.mark.slow
def test_from_a_folder_to_predictions(project: Path) -> None:
    methods = ["d_vbll", "vbpc"]
    assert cli.main(["add", "data/photos", "--size", "8", "--splits", "1", "--methods", *methods]) == 0
    for name in ("fashion_mnist", "boston"):
        assert cli.main(["remove", name]) == 0
    walk.walk()
    comparison = pd.read_csv("report/comparison.csv")
    scores = comparison[(comparison["set"] == "test") & (comparison["metric"] == "nll") & (comparison["split"] == 0)]
    nll = scores.set_index("method")["value"]
    assert set(nll.index) == set(methods)
    assert (nll < np.log(2)).all(), nll
    Image.fromarray(stripes(1, side=31)[0][0]).save("new.png")  # of another size than any
    assert cli.main(["predict", "photos-d_vbll", "--input", "new.png", "--output", "found.parquet"]) == 0
    assert np.isclose(pd.read_parquet("found.parquet").filter(like="p_").sum(axis=1), 1).all()
