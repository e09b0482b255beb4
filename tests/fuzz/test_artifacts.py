"""Damaged artifacts: the reader returns what was written, or its error names the folder of the artifact."""

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

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from bdl_report import tables
from pipeline.prepared import folders
from tests.data import test_user_data
from tests.data.test_user_data import TABLE
from tests.pipeline import fitted_cases
from tests.preparing import dataset_of, prepare_at
from tests.report import report_cases

from .judge import Case, cases, judge
from .test_data import wounded

ODD: Final[list[Any]] = [None, True, 0, -1, 1.5, "", "x", "../../x", [], [1], {}, {"a": 1}, 10**30]


def numbers(value: Any) -> Any:
    """Nested tuples of all values in an object, so that two answers can be compared."""
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
    splits = 2 if path.parent.name == "table" else 1
    read = [folders.load_fit(path, split, final=final) for split in range(splits) for final in (False, True)]
    return read, folders.load_schema(path)


def holdout(path: Path) -> Any:
    held = folders.load_holdout(path, 0)
    return held.test, held.ood(), held.transfer(), held.corruptions()


def student(path: Path) -> Any:
    fitted = load_predictor(path)
    shape = (1, 4, 4) if path.name.endswith("images") else (2,)
    raw = np.zeros((3, *shape), np.uint8 if len(shape) == 3 else np.float64)
    return fitted.predict(raw, rng=Seed(0)).mean, fitted.classes, artifacts.load(path, "student").json("schema.json")


def evaluated(path: Path) -> Any:
    table = tables.gather([tables.RunInfo("d-m-s", "d", "m", "s", path)])
    if not table.scores:  # the report's message for a run without a manifest
        raise ArtifactError(f"{path}: {tables.ABSENT}")
    return table.scores, table.drawn


READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "table/prepare": fit_data,
    "images/prepare": fit_data,
    "table/holdout": holdout,
    "images/holdout": holdout,
    "student-table": student,
    "student-images": student,
    "evaluate/d-m-s": evaluated,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One artifact of each kind, from a table with two splits and from images with an out-of-distribution set."""
    root = tmp_path_factory.mktemp("artifacts")
    images = {"name": "image_folder", "path": str(test_user_data.folder(root / "pictures"))}
    rows = TABLE | {"path": str(test_user_data.store(root / "t.csv", test_user_data.good())), "features": ["a", "b"]}
    prepare_at(root / "table", dataset_of(rows, splits=2))
    prepare_at(root / "images", dataset_of(images, ood=["noise"]))
    fitted_cases.student(root / "student-table", "regression")
    fitted_cases.student(root / "student-images", images=True)
    case, rng = report_cases.IMAGES[2], np.random.default_rng(0)
    scores, bins = report_cases.image_scores(case, rng, corrupted=False), report_cases.bins(case, rng)
    report_cases.write_run(root, "d", "m", "s", scores, calibration=bins)
    return root


def hurt(folder: Path, rng: random.Random) -> str:
    """Damage one file of an artifact; describe the damage."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice([*files, folder / artifacts.MANIFEST])
    damage = rng.choice(["bytes", "bytes", "bytes", "gone", "folder", "exchanged", "value", "value"])
    about = f"{damage} at {path.relative_to(folder)}"
    if damage == "value" and path.suffix == ".json":
        content = json.loads(path.read_text())
        return f"{about}: {_other_value(path, content, rng)}"
    if damage == "exchanged":
        path.write_bytes(rng.choice(files).read_bytes())
    elif damage in ("gone", "folder"):
        path.unlink()
        if damage == "folder":
            path.mkdir()
    else:
        blob, more = wounded(path.read_bytes(), rng)
        path.write_bytes(blob)
        about += f", {more}"
    return about


def _other_value(path: Path, content: Any, rng: random.Random) -> str:
    """Put another value at one place of a JSON file; describe the change."""
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


def test_a_damaged_artifact_is_read_as_written_or_refused(whole: Path, tmp_path: Path) -> None:
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
