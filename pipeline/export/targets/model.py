"""A fitted posterior as a model for MLflow.

The model is a script and the artifact, which is safetensors and JSON without pickles.
"""

import json
import logging
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe.registry import load_predictor

from ... import tracking
from ..shared import student_of, whole

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

_SCRIPT: Final = Path(__file__).parents[1] / "serving.py"
_NEEDS: Final = ("torch", "numpy", "pandas", "safetensors", "jaxtyping", "gpytorch", "mlflow", "pyarrow")


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


def _signature(schema: dict[str, Any]) -> "ModelSignature | None":
    """Return the signature of the fitted columns; None for images, since MLflow would cast 0.9 to 0."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    if len(schema["input_shape"]) == 3:
        return None
    return ModelSignature(Schema([ColSpec(AnyType(), name) for name in schema["features"]]))
