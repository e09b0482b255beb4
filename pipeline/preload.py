"""What the stages import, imported once by the server that :mod:`pipeline.warm` forks them from."""

import contextlib
import importlib
from typing import Final

from .core.executors import cluster
from .rows import tracking

_MODULES: Final = (
    "dvc.cli",
    "dvc.commands.repro",
    "dvc.repo.reproduce",
    "dvc.stage.run",
    "torch._dynamo",  # what optimisers import when they are first called
    "pipeline.evaluating",
    "pipeline.rows.model",
    "pipeline.rows.stage",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "ray",
)

tracking.quiet()
cluster.prepare_environment()
for module in _MODULES:
    with contextlib.suppress(ImportError):  # mlflow and ray may be missing
        importlib.import_module(module)
