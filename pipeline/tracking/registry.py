"""MLflow's registry of models."""

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any, Final

from . import store

_DIGEST: Final = "artifact.sha256"  # the tag of a version with the hash of its posterior


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
        # a model is no work to measure; MLflow prints what the caller prints, too, and its errors are exceptions
        with mlflow.start_run(run_id=run_id, log_system_metrics=False), redirect_stderr(io.StringIO()):
            logged = mlflow.pyfunc.log_model(name="model", registered_model_name=name, **contents())
        version = str(logged.registered_model_version)
        client.set_model_version_tag(name, version, _DIGEST, digest)
    for alias in aliases:
        client.set_registered_model_alias(name, alias, version)
    return version
