"""The exported model gives the library's predictions, when MLflow loads it and when its server answers a request."""

import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from fitted_cases import FEATURES, student
from mlflow.models.utils import _enforce_schema
from mlflow.utils.proto_json_utils import dataframe_from_parsed_json

from bdl_pipe import summary
from bdl_pipe.data.new_inputs import frame_inputs
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.errors import ArtifactError, DataError
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from pipeline import cli
from pipeline.export.targets import model

CASES = [("classification", False), ("classification", True), ("regression", False)]


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Any, dict[str, Any]]:
    """An exported model, rows to send, and the columns that the library itself gives."""
    task, images = request.param
    monkeypatch.chdir(tmp_path)
    place, saved = student(tmp_path / "work/student/toy", task, images), tmp_path / "saved"
    assert cli.main(["export", "model", "toy", "--to", str(saved)]) == 0
    random = np.random.default_rng(2)
    rows = random.integers(0, 256, (3, 1, 4, 4), dtype=np.uint8) if images else random.normal(20, 9, (3, 2))
    schema = json.loads((place / "schema.json").read_text())
    direct = load_predictor(place).predict(rows, rng=Seed(0))
    return saved, rows, summary.columns(direct, schema["classes"] or schema["targets"])


def same(made: pd.DataFrame, expected: dict[str, Any]) -> None:
    assert list(made.columns) == list(expected)
    for name, values in expected.items():
        if name == "predicted":
            assert list(made[name]) == list(values)
        else:
            assert np.allclose(made[name], values, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_model_loaded_by_mlflow_gives_the_posteriors_predictions(case: tuple[Path, Any, dict[str, Any]]) -> None:
    saved, rows, expected = case
    kinds = {path.suffix for path in saved.rglob("*") if path.is_file()}  # the import of its code adds .pyc
    loaded = mlflow.pyfunc.load_model(str(saved))
    same(loaded.predict(rows if rows.ndim == 4 else pd.DataFrame(rows, columns=FEATURES)), expected)
    assert kinds <= {"", ".json", ".py", ".safetensors", ".txt", ".yaml"}, "nothing is pickled"


def test_the_export_of_a_missing_seed_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    student(tmp_path / "work/student/toy")
    with pytest.raises(ArtifactError, match="has no seed 4 of split 0"):
        model.export("toy", tmp_path / "saved", seed=4)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_served_model_answers_a_request_with_the_posteriors_predictions(
    case: tuple[Path, Any, dict[str, Any]], tmp_path: Path
) -> None:
    """The request is read as MLflow's server reads JSON."""
    saved, rows, expected = case
    table = {"columns": FEATURES, "data": rows.tolist()}
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps({"inputs": rows.tolist()} if rows.ndim == 4 else {"dataframe_split": table}))
    mlflow.models.predict(
        str(saved), input_path=str(request), content_type="json", output_path=str(answer), env_manager="local"
    )
    same(pd.DataFrame(json.loads(answer.read_text())["predictions"]), expected)


@pytest.mark.parametrize(("answer", "written"), [(0.0, "false"), (1.0, "true")])
def test_the_cells_of_a_request_are_read_like_the_cells_of_a_file(tmp_path: Path, answer: float, written: str) -> None:
    """Booleans, gaps, dates and numbers of JSON pass the signature and reach the reader that files use, too."""
    kinds = [("flag", "category"), ("seen", "date"), ("size", "number")]
    columns = [
        Column(name, kind, ("False", "True") if kind == "category" else (), kind == "number") for name, kind in kinds
    ]
    schema = {"kind": "table", "features": [name for name, _ in kinds], "input_shape": [3]}
    schema["columns"] = [column.mapping() for column in columns]
    record = {"flag": json.loads(written), "seen": "2024-01-02", "size": None}
    signature = model._signature(schema)
    sent = dataframe_from_parsed_json([record, {**record, "size": 3}], "records", signature.inputs)
    frame = _enforce_schema(sent, signature.inputs)
    np.testing.assert_array_equal(frame_inputs(frame, schema), [[answer, 19724, np.nan], [answer, 19724, 3]])
    late = dataframe_from_parsed_json([{**record, "seen": 1_704_153_600}], "records", signature.inputs)
    with pytest.raises(DataError, match="'seen' must be dates, got '1704153600' in row 1"):
        frame_inputs(_enforce_schema(late, signature.inputs), schema)
