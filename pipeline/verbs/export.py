"""Take results away: ``python -m pipeline export coreset|model RUN --to DIR``, and ``python -m pipeline predict``."""

from pathlib import Path

from .. import papers
from ..core import places
from ..export import model, predict


def export_model(run: str, to: Path, split: int, seed: int, paper: str | None) -> None:
    """Write a fitted posterior of params.yaml, or of a paper's table, as a model for MLflow."""
    model.export(run, to, split, seed, _root(paper))


def predict_rows(
    run: str, source: Path, output: Path, split: int, seed: int, level: float | None, paper: str | None
) -> None:
    """Predict new rows with a fitted posterior of params.yaml, or of a paper's table."""
    predict.predict(run, source, output, split, seed, _root(paper), level)


def _root(paper: str | None) -> Path:
    return places.WORK / "paper" / papers.load(paper).tree if paper else places.WORK
