"""A fitted posterior as a model for MLflow.

The model is a script and the artifact, which is safetensors and JSON without pickles.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    with whole(target) as folder, quiet():
        import mlflow

        folder.rmdir()  # MLflow creates it
        mlflow.pyfunc.save_model(path=str(folder), **contents(student, split, seed))
    print(f"{target}: a model of {run}; mlflow models serve -m {target} --env-manager local")


def contents(student: Path, split: int = 0, seed: int = 0) -> dict[str, Any]:
    """Return the arguments of MLflow's ``save_model`` and ``log_model`` that describe one fit of an artifact.

    Raises:
        UserError: the artifact has no such fit.
    """
    load_predictor(student, split, seed)
    return {
        "python_model": str(_SCRIPT),
        "artifacts": {"student": str(student.absolute())},
        "model_config": {"split": split, "seed": seed},
        "signature": _signature(json.loads((student / "schema.json").read_text(encoding="utf-8"))),
        "pip_requirements": [f"{name}=={metadata.version(name)}" for name in _NEEDS],
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MLflow's progress bars, and its advice on type hints, examples and a signature for images."""
    tracking.quieten()
    import mlflow  # noqa: F401  # sets the level of its loggers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("mlflow.pyfunc").setLevel(logging.ERROR)
        yield


def _signature(schema: dict[str, Any]) -> "ModelSignature | None":
    """Return the signature of the fitted columns; None for images, since MLflow would cast 0.9 to 0."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    if len(schema["input_shape"]) == 3:
        return None
    return ModelSignature(Schema([ColSpec(AnyType(), name) for name in schema["features"]]))
