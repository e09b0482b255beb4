"""A data set and all that is made from it, out of params.yaml: ``python -m pipeline remove diamonds``."""

import argparse
import io
from pathlib import Path
from typing import Any

from bdl_pipe.errors import UserError, short
from bdl_pipe.files import write_bytes

from ..add import verb as add
from ..core import params
from . import apply

ROWS = ("trajectories", "teachers", "coresets", "runs")


def main(args: argparse.Namespace) -> int:
    """Take ``args.name`` out; results that were made stay where they are.

    Raises:
        UserError: there is no such data set.
    """
    counts = remove(args.name)
    place = add.FOLDER / f"{args.name}.yaml"
    place.unlink(missing_ok=True)
    print(f"params.yaml: without {args.name} ({', '.join(f'{n} {section}' for section, n in counts.items())})")
    return 0


def remove(name: str, target: Path = Path("params.yaml")) -> dict[str, int]:
    """Take a data set and the rows on it out of ``target``, and count what is gone: section -> rows.

    Raises:
        UserError: there is no such data set, or what is left would break a rule; ``target`` is then as it was.
    """
    from ruamel.yaml import YAML

    params.read_yaml(target)
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 4096
    document: Any = yaml.load(target.read_text())
    if name not in document["datasets"]:
        raise UserError(f"{target}: has no data set {short(name)} (it has {', '.join(document['datasets'])})")
    counts = {"datasets": 1}
    _without(document, "datasets", [name])
    for section in ROWS:
        gone = [key for key, row in (document.get(section) or {}).items() if row.get("dataset") == name]
        _without(document, section, gone)
        counts |= {section: len(gone)} if gone else {}
    text = io.StringIO()
    yaml.dump(document, text)
    apply.check(text.getvalue(), target)
    write_bytes(target, text.getvalue().encode())
    return counts


def _without(document: Any, section: str, keys: list[str]) -> None:
    """Delete entries of a section; the comments of one that has none left would not be YAML, so they go, too."""
    for key in keys:
        del document[section][key]
    if keys and not document[section]:
        document[section] = {}
