"""Tables: one of numbers on disk, prepared as the stage does, and one as a user might have it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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


def houses(rows: int = 300) -> pd.DataFrame:
    """Return houses with a price: numbers, categories, dates, truths, empty cells and a skewed target."""
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
