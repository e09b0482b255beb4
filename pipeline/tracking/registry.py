"""MLflow's registry of models."""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import store

_DIGEST: Final = "artifact.sha256"  # the tag of a version with the hash of its posterior
_VERSIONS: Final = "mlflow.modelVersions"  # the tag of a logged model by which MLflow's page links its versions


def register(
    name: str, run_id: str, digest: str, aliases: Sequence[str], contents: Callable[[], dict[str, Any]]
) -> str:
    """Log a model to a run, register it and move aliases to it; return the version's number.

    A version with the same posterior is used again.

    Args:
        name: the registered model.
        digest: the hash of the posterior.
        contents: returns the arguments of ``mlflow.pyfunc.log_model``.
    """
    client = store.connect()
    same = [v for v in client.search_model_versions(f"name = '{name}'") if v.tags.get(_DIGEST) == digest]
    if same:
        version = str(same[0].version)
    else:
        import mlflow

        mlflow.set_tracking_uri(store.store_uri())
        with mlflow.start_run(run_id=run_id, log_system_metrics=False):  # a model is no work to measure
            logged = mlflow.pyfunc.log_model(name="model", **contents())
        with contextlib.suppress(mlflow.MlflowException):  # it exists
            client.create_registered_model(name)
        about = {"tags": {_DIGEST: digest}, "model_id": logged.model_id}
        number = client.create_model_version(name, logged.model_uri, **about).version
        client.set_logged_model_tags(logged.model_id, {_VERSIONS: json.dumps([{"name": name, "version": number}])})
        version = str(number)
    for alias in aliases:
        client.set_registered_model_alias(name, alias, version)
    return version
