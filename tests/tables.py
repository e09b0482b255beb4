"""A table on disk, prepared as the stage does: what test rows could leak through."""

from pathlib import Path
from typing import Any

import numpy as np

from bdl_pipe import artifacts
from bdl_pipe.data import prepare, prepared
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.sources.table import Table
from bdl_pipe.seeds import Seed


def table_of(values: np.ndarray, targets: Any, folder: Path) -> FitData:
    """The last column is the target; rows of the first standard split, a fifth of them for validation."""
    folder.mkdir()
    names = ",".join([*"abcdefgh"[: values.shape[1] - 1], "y"])
    np.savetxt(folder / "rows.csv", values, delimiter=",", header=names, comments="")
    dataset = DatasetConfig(
        source=Table(str(folder / "rows.csv"), ("y",), "regression"),
        normalise="train",
        targets=targets,
        whiten=False,
        validation=0.2,
        fit_rows="train_and_validation",
        splits=1,
        ood=(),
        corrupted_images=0,
        corruptions="made",
    )
    with artifacts.publish(folder / "fit", "prepare") as fit, artifacts.publish(folder / "held", "holdout") as held:
        prepare.prepare("rows", {"rows": dataset}, fit, held, rng=Seed(0))
    data = prepared.load_fit(folder / "fit", 0, final=True)
    assert data.search is not None and len(data.search.validation) > 0
    return data
