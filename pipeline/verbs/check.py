"""``python -m pipeline check``: is params.yaml right?"""

import sys
from argparse import Namespace

from ..core.params import load, unwatched
from ..core.settings import Settings


def main(args: Namespace) -> None:
    """Check params.yaml, the environment and machine.yaml; raise UserError with the first thing that is wrong."""
    settings, params = Settings.read(), load()
    settings.machine.check_methods({*params.raw["methods"], *(run.method.name for run in params.runs.values())})
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    print(f"ok: {len(params.datasets)} data sets, {len(params.runs)} runs")
