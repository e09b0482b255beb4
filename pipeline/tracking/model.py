"""The fitted posterior as an MLflow model: a script and the student artifact, no pickle."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

NAME: Final = "posterior"
_SCRIPT: Final = Path(__file__).with_name("serving.py")
_NEEDS: Final = ("torch", "numpy", "pandas", "safetensors", "jaxtyping", "gpytorch", "mlflow", "pyarrow")


def read_installed_packages() -> None:
    """Let MLflow list what is installed, so that processes forked from this one need not: it takes half a second."""
    from mlflow.utils.requirements_utils import warn_dependency_requirement_mismatches

    warn_dependency_requirement_mismatches(_requirements())


def log(student: Path, run_id: str) -> str:
    """Log the artifact in ``student`` as a model of an MLflow run, and return the model's URI."""
    import mlflow

    from . import experiments

    mlflow.set_tracking_uri(experiments.store_uri())
    with _suppress_warnings(), mlflow.start_run(run_id=run_id, log_system_metrics=False):
        info = mlflow.pyfunc.log_model(name=NAME, **_flavour(student))
    return info.model_uri


def save(student: Path, folder: Path) -> None:
    """Write the same model to ``folder``, for use without a tracking store."""
    import mlflow

    with _suppress_warnings():
        mlflow.pyfunc.save_model(path=str(folder), **_flavour(student))


@contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Suppress MLflow's advice on type hints and examples: the signature is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _flavour(student: Path) -> dict[str, Any]:
    schema = json.loads((student / "schema.json").read_text())
    return {
        "python_model": str(_SCRIPT),
        "artifacts": {"student": str(student.absolute())},
        "signature": _signature(schema),
        "pip_requirements": _requirements(),
    }


def _requirements() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in _NEEDS]


def _signature(schema: dict[str, Any]) -> Any:
    """Describe what goes in: uint8 images of the fitted shape, or the fitted columns by name."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    if len(schema["input_shape"]) == 3:
        inputs = Schema([TensorSpec(np.dtype("uint8"), (-1, *schema["input_shape"]))])
    else:
        kinds = {"number": DataType.double, "category": DataType.string, "date": DataType.datetime}
        described = schema.get("columns") or [
            {"name": name, "kind": "number", "missing": False} for name in schema["features"]
        ]
        columns = [ColSpec(kinds[c["kind"]], c["name"], required=not c["missing"]) for c in described]
        inputs = Schema(columns)
    return ModelSignature(inputs=inputs)
