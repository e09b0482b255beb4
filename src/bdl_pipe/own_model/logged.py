"""Programs of a user's posterior: for torch, for onnxruntime, and as a model of MLflow."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor, nn

from .. import logged_artifact
from ..errors import UserError
from ..predictive import Categorical
from ..programs import Inputs, Program, traced, write_onnx
from ..programs import write as save_program
from ..seeds import Seed

if TYPE_CHECKING:
    from .posterior import ModulePosterior

_SCRIPT: Final = Path(__file__).with_name("served.py")
_NEEDS: Final = ("torch", "numpy", "pandas", "mlflow")
_FLOAT: Final = "float32"


@final
class _Answers(nn.Module):
    """A module whose outputs are the posterior's probabilities [row, class], or its means and variances."""

    def __init__(self, posterior: "ModulePosterior", rng: Seed) -> None:
        super().__init__()
        self._posterior, self._rng = [posterior], rng  # in a list: the posterior's modules are no parts of this one

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        (posterior,) = self._posterior
        rows = posterior.about.layout.packed({"": inputs} if isinstance(inputs, Tensor) else inputs)
        predictive = posterior.of_rows(rows, self._rng)
        return (predictive.mean,) if isinstance(predictive, Categorical) else (predictive.mean, predictive.variance)


def program(posterior: "ModulePosterior", inputs: Inputs) -> Program:
    """Return the posterior as a program, compared with it on ``inputs``."""
    return traced(_Answers(posterior, Seed(0)), _Answers(posterior, Seed(1)), inputs)


def write(posterior: "ModulePosterior", path: Path, inputs: Inputs) -> float:
    """Write a program; return its largest difference from the posterior.

    Raises:
        UserError: see :meth:`.posterior.ModulePosterior.export`.
    """
    if path.suffix not in (".pt2", ".onnx"):
        raise UserError(f"path must end in .pt2 (for torch) or .onnx (for onnxruntime), got {path.name}")
    made = program(posterior, inputs)
    with tempfile.TemporaryDirectory(dir=path.absolute().parent) as folder:
        whole, error = Path(folder) / path.name, made.error
        if path.suffix == ".onnx":
            error = max(error, write_onnx(made, whole))
        else:
            save_program(made, whole)
        whole.replace(path)
    return error


def log_model(posterior: "ModulePosterior", name: str, inputs: Inputs, options: dict[str, Any]) -> Any:
    """Log the program to MLflow; return MLflow's description of the model.

    Raises:
        UserError: MLflow is not installed, or the posterior cannot become a program.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.pt2"
        return logged_artifact.log_model(name, lambda: _contents(posterior, path, inputs), options)


def _contents(posterior: "ModulePosterior", path: Path, inputs: Inputs) -> dict[str, Any]:
    """Write the program to ``path``, and return the arguments that describe it."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    parts = {p.name: _FLOAT if p.dtype == "float" else p.dtype for p in posterior.about.layout.parts}
    columns = [
        TensorSpec(torch.zeros(0, dtype=getattr(torch, parts[p.name])).numpy().dtype, (-1, *p.shape), p.name or None)
        for p in posterior.about.layout.parts
    ]
    write(posterior, path, inputs)
    return {
        "python_model": str(_SCRIPT),
        "artifacts": {"program": str(path)},
        "model_config": {"parts": [*parts.items()]},  # MLflow logs a mapping's keys as names, of which "" is none
        "signature": ModelSignature(Schema(columns)),
        "pip_requirements": logged_artifact.requirements(_NEEDS),
    }
