"""An artifact as a model of MLflow: a script, and the artifact's safetensors and JSON, without pickles."""

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import UserError
from .registry import load_predictor

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

_SCRIPT: Final = Path(__file__).with_name("served_artifact.py")
_NEEDS: Final = ("torch", "numpy", "pandas", "safetensors", "jaxtyping", "gpytorch", "mlflow", "pyarrow")


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
        "pip_requirements": requirements(_NEEDS),
    }


def log_model(name: str, contents: Callable[[], dict[str, Any]], options: dict[str, Any]) -> Any:
    """Log a pyfunc model to MLflow; return MLflow's description of it.

    Args:
        contents: returns the arguments of ``mlflow.pyfunc.log_model`` that describe the model; it may import MLflow.

    Raises:
        UserError: MLflow is not installed.
    """
    try:
        import mlflow
    except ImportError as error:
        raise UserError(f"log_model needs MLflow ({error}): pip install mlflow") from None
    with quiet():
        return mlflow.pyfunc.log_model(name=name, **contents(), **options)


def requirements(packages: Iterable[str]) -> list[str]:
    """Return the installed version of each package that is installed."""
    return [f"{name}=={metadata.version(name)}" for name in packages if util.find_spec(name)]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MLflow's advice on type hints, examples and a signature for images."""
    logger = logging.getLogger("mlflow.pyfunc")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _signature(schema: dict[str, Any]) -> "ModelSignature | None":
    """Return the signature of the fitted columns; None for images, since MLflow would cast 0.9 to 0."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    if len(schema["input_shape"]) == 3:
        return None
    return ModelSignature(Schema([ColSpec(AnyType(), name) for name in schema["features"]]))
