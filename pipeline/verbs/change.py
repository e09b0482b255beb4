"""``python -m pipeline apply`` and ``remove``: change params.yaml, and print what changed."""

from pathlib import Path

from ..add import FOLDER
from ..core import overlays


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
