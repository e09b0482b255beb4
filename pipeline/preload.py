"""What the stages import, imported once by the server that :mod:`pipeline.warm` forks them from.

Whatever cannot be imported here is left to the stage that needs it, which says why.
"""

import contextlib
import importlib
from typing import Final

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

with contextlib.suppress(ImportError):  # before mlflow and ray are imported
    from .core.executors import cluster
    from .rows import tracking

    tracking.quiet()
    cluster.prepare_environment()
for module in _MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
