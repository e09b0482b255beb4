"""``python -m pipeline export coreset|model RUN --to DIR``."""

from argparse import Namespace

from bdl_pipe.errors import UserError

from . import coreset, model


def main(args: Namespace) -> int:
    """Write the folder.

    Raises:
        UserError: see :func:`coreset.export` and :func:`model.export`.
    """
    if args.what == "model":
        model.export(args.run, args.to, args.split, args.seed, args.paper)
    elif args.paper:
        raise UserError("--paper: is for export model; a coreset is one of params.yaml")
    else:
        coreset.export(args.run, args.to, args.split, args.seed)
    return 0
