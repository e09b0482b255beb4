"""A fitted posterior as a model for MLflow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bdl_pipe import logged_artifact

from ... import tracking
from ..shared import student_of, whole


def export(run: str, target: Path, split: int = 0, seed: int = 0, paper: str | None = None) -> None:
    """Write the folder ``target`` with a model that predicts with one fit of the run.

    Raises:
        UserError: the run is not fitted, has no such fit, or the folder is not empty.
    """
    student = student_of(run, paper)
    with whole(target) as folder, quiet():
        import mlflow

        folder.rmdir()  # MLflow creates it
        mlflow.pyfunc.save_model(path=str(folder), **logged_artifact.contents(student, split, seed))
    print(f"{target}: a model of {run}; mlflow models serve -m {target} --env-manager local")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MLflow's progress bars and advice."""
    tracking.quieten()
    import mlflow  # noqa: F401  # sets the level of its loggers

    with logged_artifact.quiet():
        yield
