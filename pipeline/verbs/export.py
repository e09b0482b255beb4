"""Take results away: ``python -m pipeline export coreset|model RUN --to DIR``, and ``python -m pipeline predict``."""

from argparse import Namespace
from pathlib import Path

from bdl_pipe.errors import UserError

from .. import papers
from ..core import places
from ..export import coreset, model, predict


def main(args: Namespace) -> int:
    """Export or predict by the options of the command line."""
    if args.verb == "predict":
        files = Path(args.input), Path(args.output)
        predict_rows(args.run, *files, args.split, args.seed, args.level, args.paper)
    elif args.what == "model":
        export_model(args.run, args.to, args.split, args.seed, args.paper)
    elif args.paper:
        raise UserError("--paper: is for export model; a coreset is one of params.yaml")
    else:
        coreset.export(args.run, args.to, args.split, args.seed)
    return 0


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
