"""The tables of ``dvc plots``: their points against the rows that the stored counts are of."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdl_report import RunInfo, plots
from bdl_report.tables import Table

U = np.random.default_rng(0).uniform(size=400) ** 1.5  # F(y) of 400 targets, more of them small


@pytest.mark.parametrize("bins", [10, 7])
def test_the_coverage_of_intervals_is_the_share_of_targets_in_them(tmp_path: Path, bins: int) -> None:
    """Stored are counts of equal bins; the oracle takes F(y) itself, and one-sided intervals have other shares."""
    frame = pd.DataFrame({"count": [0, 3], "confidence": [np.nan, 0.7], "accuracy": [np.nan, 0.5]})
    counts = pd.Series(np.histogram(U, bins, (0, 1))[0])
    drawn: Any = {"calibration": {"b": frame}, "pit": {"a": counts}, "risk": {}}
    fits = {"shared": [(1, 0.5), (2.5, 0.25)]}
    runs = tuple(RunInfo(key, f"set {of}", "gp", "", tmp_path, training=fits) for key, of in ("aa", "bb", "cb"))
    plots.write(Table(runs, {}, drawn, {}), tmp_path / "plots")
    read = {path.stem: [*csv.reader(path.open())] for path in (tmp_path / "plots").iterdir()}
    assert read["reliability"] == [["dataset", "run", "confidence", "accuracy"], ["set b", "b", "0.7", "0.5"]]
    loss = [[f"set {of}", "shared", *at] for of in "ab" for at in (["1", "0.5"], ["2.5", "0.25"])]
    assert read["training"] == [["dataset", "run", "step", "loss"], *loss]
    points = [(float(level), float(share)) for _, _, level, share in read["intervals"][1:]]
    assert points[-1] == (1.0, 1.0) and len(points) == (bins + 1) // 2
    for level, share in points[:-1]:
        assert share == pytest.approx(np.mean(abs(U - 0.5) < level / 2))
        assert share != pytest.approx(np.mean(U - level < 0), abs=0.01)
