"""Predictions for new rows and export of models: ``python -m pipeline predict RUN`` and ``… export model RUN``.

The exported folder is an MLflow model. It holds a script and the artifact, which is safetensors and JSON without
pickles.
"""

import json
import logging
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe import artifacts, summary
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import load_predictor, stored_address
from bdl_report import papers

from .. import tracking
from ..core import places
from ..core.settings import Settings, require_device
from . import whole

_SCRIPT: Final = Path(__file__).with_name("serving.py")
_NEEDS: Final = ("torch", "numpy", "pandas", "safetensors", "jaxtyping", "gpytorch", "mlflow", "pyarrow")


def predict(
    run: str,
    given: Path,
    output: Path,
    split: int = 0,
    seed: int = 0,
    level: float | None = None,
    paper: str | None = None,
) -> None:
    """Write a row of predictions for each row of the input.

    Args:
        paper: ``<paper>:<table>`` of the run; None if the run is in params.yaml.

    Raises:
        UserError: the run is not fitted, or the input does not fit its data.
    """
    from bdl_pipe.data.new_inputs import image_inputs, left_out, new_inputs, unseen

    if output.suffix.lower() not in (".parquet", ".pq"):
        raise UserError(f"--output: is written as Parquet; name it {output.with_suffix('.parquet')}")
    if output.exists() and given.exists() and output.samefile(given):
        raise UserError(f"--output: must not be the input {given}, which would be lost")
    device = Settings.read().device
    require_device(device)
    student = student_of(run, paper)
    fitted = load_predictor(student, split, seed, device)
    schema = artifacts.load(student, "student", verify=False).json("schema.json")
    inputs = new_inputs(given, schema)
    for line in unseen(inputs, schema):
        print(f"note: {line}")
    if level is not None and fitted.recalibration is None:
        raise UserError(f"--level: {run} has no conformal sets: its data set has no calibration rows")
    names, rng = schema["classes"] or schema["targets"], stored_address(student, split, seed)
    predictions = summary.predictions(fitted, inputs, names, rng=rng, level=level, device=device)
    files = [str(file.relative_to(given)) for file in image_inputs(given)] if given.is_dir() else []
    if files and (others := left_out(given)):
        what = "files are not predicted, as no images of a known kind or too deep"
        print(f"note: {len(others)} {what}; the first is {others[0].relative_to(given)}")
    first = {"file": files} if files else {"row": np.arange(len(inputs))}
    _write(output, {**first, **predictions})
    print(f"{output}: {len(inputs)} rows, {', '.join([*first, *predictions])}")


def export(run: str, target: Path, split: int = 0, seed: int = 0, paper: str | None = None) -> None:
    """Write the folder ``target`` with a model that predicts with one fit of the run.

    Raises:
        UserError: the run is not fitted, has no such fit, or the folder is not empty.
    """
    student = student_of(run, paper)
    load_predictor(student, split, seed)
    tracking.quieten()
    import mlflow

    with whole(target) as folder, warnings.catch_warnings():
        folder.rmdir()  # MLflow creates it
        warnings.simplefilter("ignore")  # MLflow's advice on type hints, examples and a signature for images
        logging.getLogger("mlflow.pyfunc").setLevel(logging.ERROR)
        mlflow.pyfunc.save_model(
            path=str(folder),
            python_model=str(_SCRIPT),
            artifacts={"student": str(student.absolute())},
            model_config={"split": split, "seed": seed},
            signature=_signature(json.loads((student / "schema.json").read_text(encoding="utf-8"))),
            pip_requirements=[f"{name}=={metadata.version(name)}" for name in _NEEDS],
        )
    print(f"{target}: a model of {run}; mlflow models serve -m {target} --env-manager local")


def student_of(run: str, paper: str | None = None) -> Path:
    """Return the artifact of a fitted run of params.yaml or a paper's table."""
    root = places.WORK / "paper" / papers.load(paper).source if paper else places.WORK
    with places.rooted(root):
        student = places.artifact("student", run)
    if (student / artifacts.MANIFEST).is_file():
        return student
    known = sorted(p.parent.name for p in student.parent.glob(f"*/{artifacts.MANIFEST}"))
    raise UserError(f"{run}: is not a fitted run ({'fitted: ' + ', '.join(known) if known else 'none is fitted yet'})")


def _write(path: Path, table: dict[str, Any]) -> None:
    """Write the table as Parquet, completely or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        raise UserError(f"{path}: is a folder; --output must be a file")
    blob = pa.BufferOutputStream()
    pq.write_table(pa.table(table), blob)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, blob.getvalue().to_pybytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


def _signature(schema: dict[str, Any]) -> Any:
    """Return the signature of the fitted columns; None for images, since MLflow would cast 0.9 to 0."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    if len(schema["input_shape"]) == 3:
        return None
    return ModelSignature(Schema([ColSpec(AnyType(), name) for name in schema["features"]]))
