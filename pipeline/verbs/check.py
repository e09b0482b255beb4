"""``python -m pipeline check``: read and check params.yaml, the environment and machine.yaml."""

import sys

from ..core.load import load, unwatched
from ..core.settings import Settings


def check() -> None:
    """Print that all is well, and warn of files that DVC does not watch.

    Raises:
        UserError: the first value that breaks its rule.
    """
    settings, params = Settings.read(), load()
    settings.machine.check_methods(params.method_names)
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    print(f"ok: {len(params.datasets)} data sets, {len(params.runs)} runs")
