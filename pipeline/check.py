"""``python -m pipeline check``: is params.yaml right?"""

from argparse import Namespace

from .params import load
from .settings import Settings


def main(args: Namespace) -> None:
    """Raises UserError with the first thing that is wrong."""
    Settings.read()
    params = load()
    print(f"ok: {len(params.datasets)} data sets, {len(params.rows)} rows")
