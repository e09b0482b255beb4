"""Damaged artifacts: what is read is what was written, or a refusal names the file."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.data import prepare, prepared
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.sources.images import ImageFolder
from bdl_pipe.data.sources.table import Table
from bdl_pipe.errors import ArtifactError
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from pipeline.report import tables
from tests.pipeline import fitted_cases, report_cases

from .judge import Case, cases, judge
from .test_data import wounded

ODD: Final[list[Any]] = [None, True, 0, -1, 1.5, "", "x", "../../x", [], [1], {}, {"a": 1}, 10**30]


def table(path: Path) -> Table:
    lines = ["a,b,y", *(f"{0.5 * i},{i % 7},{1.5 * i}" for i in range(40))]
    path.write_text("\n".join(lines) + "\n")
    return Table(str(path), ("y",), "regression")


def prepare_both(root: Path) -> None:
    """The two folders of a table with two splits, and those of images with another set and corruptions."""
    common = {"whiten": False, "validation": 0.2, "fit_rows": "train_and_validation", "corruptions": "made"}
    datasets = {
        "table": DatasetConfig(
            table(root / "t.csv"), "train", splits=2, ood=(), corrupted_images=0, **common  # type: ignore[arg-type]
        ),
        "images": DatasetConfig(
            ImageFolder(str(pictures(root / "pictures"))), "train", splits=1, ood=("noise",), corrupted_images=0,
            targets="none", **common,  # type: ignore[arg-type]
        ),
    }  # fmt: skip
    for name in datasets:
        fit, holdout = root / f"prepare-{name}", root / f"holdout-{name}"
        with artifacts.publish(fit, "prepare") as one, artifacts.publish(holdout, "holdout") as other:
            prepare.prepare(name, datasets, one, other, rng=Seed(0))


def pictures(root: Path) -> Path:
    values = np.random.default_rng(0).integers(0, 256, (16, 3, 4, 5), dtype=np.uint8)
    for i, image in enumerate(values):
        path = root / ("cat" if i % 2 else "eel") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path)
    return root


def numbers(value: Any) -> Any:
    """Nested tuples of all that an object holds, to compare two answers by."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes(), tuple(value.shape), str(value.dtype)
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.shape, value.dtype.str
    if isinstance(value, pd.DataFrame):
        return value.to_json(), tuple(value.columns)
    if isinstance(value, dict):
        return tuple((key, numbers(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(numbers(item) for item in value)
    return numbers(vars(value)) if hasattr(value, "__dict__") else value


def fit_data(path: Path) -> Any:
    splits = 2 if path.name.endswith("table") else 1
    read = [prepared.load_fit(path, split, final=final) for split in range(splits) for final in (False, True)]
    return read, prepared.load_schema(path)


def holdout(path: Path) -> Any:
    held = prepared.load_holdout(path, 0)
    return held.test, held.ood(), held.transfer(), held.corruptions()


def student(path: Path) -> Any:
    fitted = load_predictor(path)
    shape = (1, 4, 4) if path.name.endswith("images") else (2,)
    raw = np.zeros((3, *shape), np.uint8 if len(shape) == 3 else np.float64)
    return fitted.predict(raw, rng=Seed(0)).mean, fitted.classes, artifacts.load(path, "student").json("schema.json")


def evaluated(path: Path) -> Any:
    table = tables.gather([tables.RunInfo("d-m-s", "d", "m", "s", path)])
    if not table.scores:  # what the report says of a run without a manifest
        raise ArtifactError(f"{path}: {tables.ABSENT}")
    return table.scores, table.bins


READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "prepare-table": fit_data,
    "prepare-images": fit_data,
    "holdout-table": holdout,
    "holdout-images": holdout,
    "student-table": student,
    "student-images": student,
    "evaluate": evaluated,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One artifact of each kind."""
    root = tmp_path_factory.mktemp("artifacts")
    prepare_both(root)
    fitted_cases.student(root / "student-table", "regression")
    fitted_cases.student(root / "student-images", images=True)
    rng = np.random.default_rng(0)
    scores = report_cases.image_scores(report_cases.IMAGES[2], rng, corrupted=False)
    run = report_cases.write_run(
        root, "d", "m", "s", scores, calibration=report_cases.bins(report_cases.IMAGES[2], rng)
    )
    shutil.copytree(run.evaluate, root / "evaluate", dirs_exist_ok=True)
    shutil.rmtree(root / "evaluate" / run.key)
    return root


def hurt(folder: Path, rng: random.Random) -> str:
    """Damage one file of an artifact; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice([*files, folder / artifacts.MANIFEST])
    how = rng.choice(["bytes", "bytes", "bytes", "gone", "folder", "exchanged", "value", "value"])
    about = f"{how} at {path.relative_to(folder)}"
    if how == "value" and path.suffix == ".json":
        content = json.loads(path.read_text())
        return f"{about}: {_other_value(path, content, rng)}"
    if how == "exchanged":
        path.write_bytes(rng.choice(files).read_bytes())
    elif how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        blob, more = wounded(path.read_bytes(), rng)
        path.write_bytes(blob)
        about += f", {more}"
    return about


def _other_value(path: Path, content: Any, rng: random.Random) -> str:
    """Put another value at one place of a JSON file."""
    node, where = content, list[Any]()
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return "nothing to change"
        key = rng.choice(keys)
        where.append(key)
        if not isinstance(node[key], (dict, list)) or rng.random() < 0.3:
            break
        node = node[key]
    node[key] = value = rng.choice(ODD)
    path.write_text(json.dumps(content, sort_keys=True, indent=1))
    return f"{value!r} at {where}"


def test_damaged_artifacts(whole: Path, tmp_path: Path) -> None:
    right = {name: numbers(read(whole / name)) for name, read in READERS.items()}

    def make(rng: random.Random, number: int) -> Case:
        name = rng.choice([*READERS])
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole / name, folder)
        about = hurt(folder, rng)

        def work() -> None:
            assert numbers(READERS[name](folder)) == right[name], "accepted, and not what was written"

        return Case(f"{name}: {about}", work, [str(folder)])

    judge("artifact", cases(250), make)
