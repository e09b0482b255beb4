"""The script that MLflow runs to serve a program of :meth:`.posterior.ModulePosterior.log_model`.

MLflow copies this file into the model, so that it needs torch, NumPy, pandas and MLflow, but not this package.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from torch import Tensor


class Served(PythonModel):
    """A model that returns a row for each row of its input.

    The columns are ``predicted`` and ``p_<class>``, or ``mean`` and ``sd``, with a number if there are several targets.
    """

    def load_context(self, context: PythonModelContext) -> None:
        self.program = torch.export.load(context.artifacts["program"]).module()
        self.parts: dict[str, str] = dict(context.model_config["parts"])  # input's name -> its type

    def predict(self, context: PythonModelContext, model_input: np.ndarray, params: Any = None) -> pd.DataFrame:
        """Return the predictions for an array [row, ...], or for named arrays of several inputs.

        MLflow accepts no union as a type hint, and warns of ``Any``; it does not convert inputs by this one.

        Raises:
            MlflowException: a number is not finite.
        """
        inputs = {name: self._tensor(model_input[name], name) for name in self.parts if name}
        with torch.no_grad():
            answers = self.program(inputs or self._tensor(model_input, ""))
        first, *others = (answer.double().numpy() for answer in answers)
        if not others:
            columns = {f"p_{k}": first[:, k] for k in range(first.shape[1])}
            return pd.DataFrame({"predicted": first.argmax(1), **columns})
        ends = [""] if first.shape[1] == 1 else [f"_{k}" for k in range(first.shape[1])]
        named = {"mean": first, "sd": np.sqrt(others[0])}
        return pd.DataFrame({f"{n}{end}": v[:, k] for k, end in enumerate(ends) for n, v in named.items()})

    def _tensor(self, values: Any, name: str) -> Tensor:
        tensor = torch.from_numpy(np.array(values)).to(getattr(torch, self.parts[name]))
        if not tensor.isfinite().all():
            raise MlflowException.invalid_parameter_value(
                f"{name or 'inputs'}: must be finite, but contains NaN or inf"
            )
        return tensor


set_model(Served())
