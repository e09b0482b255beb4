"""A fitted posterior as an MLflow model: ``python -m pipeline export model RUN --to DIR``.

The folder holds a script and the artifact, which is safetensors and JSON; nothing in it is pickled.
"""

import json
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from bdl_pipe.registry import load_predictor

from .. import tracking
from ..core import places
from .folder import whole
from .predict import student_of

_SCRIPT: Final = Path(__file__).with_name("serving.py")
_NEEDS: Final = ("torch", "numpy", "pandas", "safetensors", "jaxtyping", "gpytorch", "mlflow", "pyarrow")


def export(run: str, target: Path, split: int = 0, seed: int = 0, root: Path = places.WORK) -> None:
    """Write the folder ``target``, whose model predicts with one fit of the run.

    Raises:
        UserError: the run is not fitted, has no such fit, or the folder is not empty.
    """
    student = student_of(run, root)
    load_predictor(student, split, seed)
    with whole(target) as folder:
        folder.rmdir()  # MLflow makes it
        save(student, folder, split, seed)
    print(f"{target}: a model of {run}; mlflow models serve -m {target} --env-manager local")


def save(student: Path, folder: Path, split: int = 0, seed: int = 0) -> None:
    """Write the artifact ``student`` as a model to ``folder``, which does not exist yet."""
    tracking.quieten()
    import mlflow

    schema = json.loads((student / "schema.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow advises type hints and examples, though it has the signature
        mlflow.pyfunc.save_model(
            path=str(folder),
            python_model=str(_SCRIPT),
            artifacts={"student": str(student.absolute())},
            model_config={"split": split, "seed": seed},
            signature=_signature(schema),
            pip_requirements=[f"{name}=={metadata.version(name)}" for name in _NEEDS],
        )


def _signature(schema: dict[str, Any]) -> Any:
    """Describe the input: uint8 images of the fitted shape, or the fitted columns by name."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    if len(schema["input_shape"]) == 3:
        return ModelSignature(Schema([TensorSpec(np.dtype("uint8"), (-1, *schema["input_shape"]))]))
    kinds = {"number": DataType.double, "category": DataType.string, "date": DataType.datetime}
    columns = schema.get("columns") or [
        {"name": name, "kind": "number", "missing": False} for name in schema["features"]
    ]
    return ModelSignature(Schema([ColSpec(kinds[c["kind"]], c["name"], required=not c["missing"]) for c in columns]))
