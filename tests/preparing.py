"""Data sets prepared as the stage prepares them: their configs, and the folders of their rows."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe import artifacts
from bdl_pipe.config import read
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.data.transform import Transform
from bdl_pipe.seeds import Seed
from pipeline.prepared import folders, preparation

SECTION: Final[dict[str, Any]] = {  # the keys of a row of ``datasets`` besides its source
    "normalise": "train",
    "whiten": False,
    "validation": 0.2,
    "fit_rows": "train_and_validation",
    "splits": 1,
    "ood": [],
    "corrupted_images": 0,
    "corruptions": "made",
}


def dataset_of(source: Any, name: str = "d", **changes: Any) -> DatasetConfig:
    """Read :data:`SECTION` with a source and changes, as params do."""
    return read(DatasetConfig, SECTION | {"source": source} | changes, f"datasets.{name}")


def prepare_at(
    root: Path, config: DatasetConfig, *, seed: int = 0, fan_out: preparation.FanOut = map, **others: DatasetConfig
) -> tuple[Path, Path]:
    """Prepare the data set ``d``, and return the folders of its fit and of its holdout."""
    fit, holdout = root / "prepare", root / "holdout"
    with artifacts.publish(fit, folders.FIT_KIND) as a, artifacts.publish(holdout, folders.HOLDOUT_KIND) as b:
        preparation.prepare("d", {"d": config, **others}, a, b, rng=Seed(seed).fold("d"), fan_out=fan_out)
    return fit, holdout


def loaded(root: Path, config: DatasetConfig, **options: Any) -> tuple[FitData, FitData, folders.Holdout]:
    """Prepare the data set ``d``; return the data of its search and of its final fit, and its holdout."""
    fit, holdout = prepare_at(root, config, **options)
    search, final = (folders.load_fit(fit, 0, final=final) for final in (False, True))
    return search, final, folders.load_holdout(holdout, 0)


def transform_of(inputs: np.ndarray, targets: np.ndarray, *, normalise: Any = "robust", **options: Any) -> Transform:
    """Fit the transform of a table."""
    return fit_transform(inputs, targets, kind="table", normalise=normalise, whiten=False, **options)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def table_of(values: np.ndarray, targets: Any, folder: Path) -> FitData:
    """Prepare a table whose last column is the target; return its first standard split, a fifth for validation."""
    folder.mkdir()
    names = ",".join([*"abcdefgh"[: values.shape[1] - 1], "y"])
    np.savetxt(folder / "rows.csv", values, delimiter=",", header=names, comments="")
    source = {"name": "table", "path": str(folder / "rows.csv"), "target": ["y"], "task": "regression"}
    data = folders.load_fit(prepare_at(folder, dataset_of(source, targets=targets))[0], 0, final=True)
    assert data.search is not None and len(data.search.validation) > 0
    return data
