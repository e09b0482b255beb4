"""``python -m pipeline check``, ``apply`` and ``remove``: read or change params.yaml, and print what was found."""

import sys
from pathlib import Path

from ..add import FOLDER
from ..core import overlays
from ..core.load import load, unwatched
from ..core.settings import Settings


def check() -> None:
    """Check params.yaml, the environment and machine.yaml, and warn of files that DVC does not watch.

    Raises:
        UserError: the first value that breaks its rule.
    """
    settings, params = Settings.read(), load()
    settings.machine.check_methods(params.method_names)
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    print(f"ok: {len(params.datasets)} data sets, {len(params.runs)} runs")


def apply(path: Path) -> None:
    """Merge an overlay into params.yaml.

    Raises:
        UserError: the overlay cannot be read, or the merged whole would break a rule.
    """
    lines = overlays.apply(path)
    print(f"params.yaml: {'changed by' if lines else 'has all of'} {path}; now make repro")
    for line in lines:
        print(f"  {line}")


def remove(name: str) -> None:
    """Take a data set and the runs on it out of params.yaml; results that were made stay where they are.

    Raises:
        UserError: there is no such data set.
    """
    counts = overlays.remove(name)
    (FOLDER / f"{name}.yaml").unlink(missing_ok=True)
    print(f"params.yaml: without {name} ({', '.join(f'{count} {section}' for section, count in counts.items())})")
