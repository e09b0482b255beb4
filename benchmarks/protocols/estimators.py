"""Estimators of both protocols: a method of the project with its defaults, or a rival of ``benchmarks.rivals``."""

from pathlib import Path
from typing import Any, Final

from bdl_pipe import BayesianClassifier, BayesianRegressor
from bdl_pipe.errors import UserError
from bdl_pipe.registry import METHODS
from benchmarks.rivals import run
from benchmarks.rivals.settings import RIVALS
from benchmarks.your_data import project

PLUGINS: Final = project.ROOT / ".state" / "rivals" / "plugins"


def of(name: str, task: str, seed: int, plugins: Path = PLUGINS) -> Any | None:
    """Return the estimator of a method or a rival, or None if it has no such task.

    A rival that comes as a plugin has the defaults that results/your_data names; a method has the estimators'.

    Args:
        task: ``regression``, or another name for classes.
        plugins: the folder of the plugins of docs/rivals.md.

    Raises:
        UserError: a rival's package is missing, or there is no such method.
    """
    kind, of_task = (
        (BayesianRegressor, "regression") if task == "regression" else (BayesianClassifier, "classification")
    )
    method, settings = METHODS.get(name), dict[str, Any]()
    if name in RIVALS and RIVALS[name].plugin:
        plugins.mkdir(parents=True, exist_ok=True)
        method, settings = run.method_of(RIVALS[name], plugins), {"override": RIVALS[name].config}
    if method is None:
        raise UserError(f"--methods must name methods or rivals with a plugin, got {name}")
    return kind(method.name, random_state=seed, threads=1, **settings) if of_task in method.tasks else None
