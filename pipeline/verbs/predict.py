"""``python -m pipeline predict RUN --input FILE --output FILE.parquet``."""

from argparse import Namespace
from pathlib import Path

from ..export import predict
from .export import root_of


def main(args: Namespace) -> int:
    """Write the predictions.

    Raises:
        UserError: see :func:`predict.predict`.
    """
    root = root_of(args.paper)
    predict.predict(args.run, Path(args.input), Path(args.output), args.split, args.seed, root, args.level)
    return 0
