"""Wrong arrays, numbers and files for metrics: the error names the rule and the value."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import bdl_pipe
from bdl_pipe.errors import ArtifactError, ConfigError, DataError
from bdl_pipe.metrics import calibration, calibration_tests, comparison, conformal, ood, pit, selective, stored
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed

PROBS, LABELS = np.full((6, 4), 0.25), np.arange(6) % 4
ADAPTIVE = (calibration.adaptive, PROBS, LABELS, Seed(0))
check, interval = (partial(function, *ADAPTIVE) for function in (calibration_tests.check, calibration_tests.interval))
SCORES = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])

CALLS: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (DataError, lambda: calibration.stated(PROBS[:0], LABELS[:0]), r"must be \[row, class\]"),
    (DataError, lambda: calibration.stated(PROBS, LABELS[:5]), r"must be \[row, class\]"),
    (DataError, lambda: calibration.stated(2 * PROBS, LABELS), "sum to 1"),
    (DataError, lambda: calibration.stated(PROBS * np.nan, LABELS), "sum to 1"),
    (DataError, lambda: calibration.stated(PROBS, LABELS + 9), "from 0 to 3"),
    (DataError, lambda: calibration.stated(PROBS, LABELS + 0.5), "from 0 to 3"),
    (ConfigError, lambda: check(draws=0), "draws must be at least 1"),
    (ConfigError, lambda: check(draws=19).miscalibrated(0.01), "false_alarms must be in"),
    (ConfigError, lambda: interval(draws=18), r"draws must be more at the level 0\.9, got 18"),
    (ConfigError, lambda: interval(level=1), r"level must be in \(0, 1\), got 1"),
    (ConfigError, lambda: conformal.threshold(np.arange(9.0), 1), r"level must be in \(0, 1\), got 1"),
    (DataError, lambda: conformal.threshold(np.array([np.nan]), 0.5), "got NaN"),
    (
        ConfigError,
        lambda: bdl_pipe.conformal.class_sets(
            [bdl_pipe.Categorical(torch.zeros(1, 1, 2).log_softmax(-1))] * 2,
            [Recalibration((1.0,), (1.0,), torch.arange(n)) for n in (4.0, 5.0)],
            0.95,
        ),
        r"level must be at most 0\.9 with 9 rows, got 0\.95",
    ),
    (DataError, lambda: list(conformal.halves(1, Seed(0))), "at least 2 rows, got 1"),
    (
        DataError,
        lambda: comparison.mean_ranks("abc", SCORES),
        "the score of b on data set 1 must be a number to be ranked, got NaN",
    ),
    (
        DataError,
        lambda: ood.nearest(np.ones((90, 8)), np.ones((3, 8)), 91),
        "neighbours must be 1 … 90, the number of training rows, got 91",
    ),
    (DataError, lambda: pit.quantile_error(np.zeros(0)), r"in \[0, 1\]"),
    (DataError, lambda: pit.quantile_error(np.array([1.1])), r"in \[0, 1\]"),
    (DataError, lambda: pit.quantile_error(np.array([np.nan])), r"in \[0, 1\]"),
    (ConfigError, lambda: pit.quantile_error(np.array([0.5]), levels=0), "levels must be at least 1, got 0"),
    (ConfigError, lambda: pit.pit_histogram(np.array([0.5]), bins=0), "bins must be at least 1, got 0"),
    (DataError, lambda: selective.risk_coverage(np.zeros(0), np.zeros(0)), r"must be \[row\], got \(0,\)"),
    (DataError, lambda: selective.risk_coverage(np.zeros(2), np.zeros(3)), r"got \(2,\) and \(3,\)"),
    (DataError, lambda: selective.risk_coverage(np.zeros(2), np.array([0, np.nan])), "must be finite"),
    (ConfigError, lambda: selective.by_chance(np.zeros(2)).risk_at(0), r"coverage must be in \(0, 1\], got 0"),
    (
        DataError,
        lambda: stored.StoredValues(np.zeros((2, 1)), np.zeros((3, 1)), np.ones((2, 1)), np.zeros(2), Seed(0)),
        r"must have targets, means and variances \[row, output\]",
    ),
    (DataError, lambda: stored.of_table(pa.table({"mean": [0.0]})), "must have a column target, got mean"),
]


@pytest.mark.parametrize(("error", "call", "message"), CALLS)
def test_a_wrong_argument_is_refused(error: type[Exception], call: Callable[[], Any], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    (path / "text.parquet").write_text("no table")
    pq.write_table(pa.table({"split": [0], "seed": [0]}), path / "columns.parquet")
    pq.write_table(pa.table({"fits": [1]}), path / "fits.parquet")
    return path


FILES: list[tuple[Callable[[Path], Any], str, type[Exception], str]] = [
    (stored.read, "text.parquet", DataError, r"text\.parquet must be a table of predictions"),
    (stored.read, "missing.parquet", DataError, "must be a table of predictions"),
    (stored.read, "columns.parquet", DataError, r"got no \['log_prob'\]"),
    (
        ood.load,
        "fits.parquet",
        ArtifactError,
        "fits.parquet: must have the columns fits, group, .* got fits; make it",
    ),
    (ood.load, "missing.parquet", ArtifactError, "is missing or not a Parquet table"),
    (
        ood.read,
        "columns.parquet",
        DataError,
        r"must have the columns split, seed, .*got no \['log_probs', 'row', ",
    ),
    (ood.read, "missing.parquet", DataError, "must be a table of stored rows"),
]


@pytest.mark.parametrize(("read", "name", "error", "message"), FILES)
def test_a_wrong_file_is_refused(
    read: Callable[[Path], Any], name: str, error: type[Exception], message: str, folder: Path
) -> None:
    with pytest.raises(error, match=message):
        list(read(folder / name))
