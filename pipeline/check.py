"""``python -m pipeline check``: is params.yaml right?"""

import sys
from argparse import Namespace

from .core.params import load, unwatched
from .core.settings import Settings


def main(args: Namespace) -> None:
    """Check params.yaml and the environment; raise UserError with the first thing that is wrong."""
    Settings.read()
    params = load()
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    print(f"ok: {len(params.datasets)} data sets, {len(params.runs)} runs")
