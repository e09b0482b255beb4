"""The script with which MLflow serves an artifact; see :mod:`.logged_artifact`.

MLflow copies it into the model. It needs ``bdl_pipe`` and the artifact in the model's folder, and loads no pickle.
"""

import json
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from bdl_pipe import summary
from bdl_pipe.data.new_inputs import given_inputs
from bdl_pipe.errors import DataError
from bdl_pipe.registry import load_predictor, stored_address


class FittedPosterior(PythonModel):
    """A model that returns a row of predictions for each row of its input.

    The input is rows of features, or uint8 images [n, channel, height, width]. A process answers one request at a
    time, since threads that share Python's interpreter lock halve the throughput of small requests
    (results/scale/served.md): for more cores start more processes, by ``mlflow models serve --workers``.
    """

    def load_context(self, context: PythonModelContext) -> None:
        student, config = Path(context.artifacts["student"]), context.model_config
        fit = student, config.get("split", 0), config.get("seed", 0)
        self.schema = json.loads((student / "schema.json").read_text(encoding="utf-8"))
        self.fitted, self.rng = load_predictor(*fit), stored_address(*fit)
        self.turn = Lock()

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """Return a row of predictions for each row or image of the input.

        For images ``model_input`` is an array; MLflow does not accept a union as its type hint and warns without one.

        Raises:
            MlflowException: the input breaks a rule. MLflow's server sends this message; of any other error it sends
                the traceback.
        """
        try:
            inputs = given_inputs(model_input, self.schema)
        except DataError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        names = self.schema["classes"] or self.schema["targets"]
        index = model_input.index if isinstance(model_input, pd.DataFrame) else None
        with self.turn:
            return pd.DataFrame(summary.predictions(self.fitted, inputs, names, rng=self.rng), index)


set_model(FittedPosterior())
