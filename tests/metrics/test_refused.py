"""Wrong arrays, numbers and files for metrics: the error names the rule and the value."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import bdl_pipe
from bdl_pipe import errors
from bdl_pipe.metrics import calibration, calibration_tests, comparison, conformal, ood, pit, selective, stored
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

cases = cases_of(__file__)
MODULES = (calibration, calibration_tests, comparison, conformal, ood, pit, selective, stored)
NAMES = {module.__name__.rpartition(".")[2]: module for module in MODULES} | {"np": np, "pa": pa, "Seed": Seed}
NAMES |= {"bdl_pipe": bdl_pipe, "torch": torch, "Recalibration": Recalibration}
NAMES |= {"PROBS": np.full((6, 4), 0.25), "LABELS": np.arange(6) % 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    (path / "text.parquet").write_text("no table")
    pq.write_table(pa.table({"split": [0], "seed": [0]}), path / "columns.parquet")
    pq.write_table(pa.table({"fits": [1]}), path / "fits.parquet")
    return path


@cases("calls", "error call message")
def test_a_wrong_argument_is_refused(error: str, call: str, message: str, folder: Path) -> None:
    with pytest.raises(getattr(errors, error), match=message):
        eval(call, {**NAMES, "folder": folder})
