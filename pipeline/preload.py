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
    # what DVC imports when it first opens a project
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.dirs",
    "dvc.lock",
    "dvc.rwlock",
    "dvc.scm",
    "dulwich.index",
    "dulwich.worktree",
    "flatten_dict",
    "pyparsing",
    "ruamel.yaml",
    "torch._dynamo",  # what optimisers import when they are first called
    "scipy.optimize.elementwise",  # and quantiles
    "bdl_pipe.summary",
    "pipeline.evaluating",
    "pipeline.rows.model",
    "pipeline.rows.stage",
    "pyarrow.pandas_compat",
    "mlflow.tracking",
    "mlflow.pyfunc",
    "mlflow.store.tracking.sqlalchemy_store",
    "alembic.command",
    "git",
    "ray",
    "ray.dashboard.optional_deps",  # what its clients import when they first connect
)

with contextlib.suppress(ImportError):  # before mlflow and ray are imported
    from .core.executors import cluster
    from .rows import tracking

    tracking.quiet()
    cluster.prepare_environment()
for module in _MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
