"""``python -m pipeline export coreset|model RUN --to DIR``."""

from argparse import Namespace
from pathlib import Path

from bdl_pipe.errors import UserError

from .. import papers
from ..core import places
from ..export import coreset, model


def main(args: Namespace) -> int:
    """Write the folder.

    Raises:
        UserError: see :func:`coreset.export` and :func:`model.export`.
    """
    if args.what == "model":
        model.export(args.run, args.to, args.split, args.seed, root_of(args.paper))
    elif args.paper:
        raise UserError("--paper: is for export model; a coreset is one of params.yaml")
    else:
        coreset.export(args.run, args.to, args.split, args.seed)
    return 0


def root_of(paper: str | None) -> Path:
    """Return the folder of the artifacts of params.yaml, or of a paper's table."""
    return places.WORK / "paper" / papers.load(paper).tree if paper else places.WORK
