"""Overlays on params.yaml: ``python -m pipeline apply params/paper.yaml``.

An overlay names only what it changes. It is merged key by key into params.yaml, whose comments and
order stay, and only if the result is valid as a whole.
"""

import argparse
import io
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from bdl_pipe.config import same_variant
from bdl_pipe.errors import DataError
from bdl_pipe.files import write_bytes

from .core import params


def main(args: argparse.Namespace) -> int:
    """Merge ``args.overlay`` into params.yaml."""
    changed = apply(Path(args.overlay))
    print(f"params.yaml: {len(changed)} changes from {args.overlay}; now make repro")
    for line in changed:
        print(f"  {line}")
    return 0


def apply(overlay: Path, target: Path = Path("params.yaml")) -> list[str]:
    """Merge the file ``overlay`` into ``target``, and return what changed, a line each.

    Raises:
        DataError: a file is missing or is not YAML.
        ConfigError: the merged whole would break a rule; ``target`` is then as it was.
    """
    from ruamel.yaml import YAML

    changes = params.read_yaml(overlay)
    params.read_yaml(target)
    yaml = YAML()  # the round trip keeps comments, order and flow style
    yaml.preserve_quotes, yaml.width = True, 4096
    document = yaml.load(target.read_text())
    lines: list[str] = []
    _merge(document, changes, "", lines)
    text = io.StringIO()
    yaml.dump(document, text)
    _check(text.getvalue(), target)
    write_bytes(target, text.getvalue().encode())
    return lines


def write(path: Path, overlay: Mapping[str, Any], comments: list[str]) -> None:
    """Write an overlay file, with where its numbers come from at its head."""
    import yaml

    head = "".join(f"# {line}\n" for line in comments)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (head + yaml.safe_dump(dict(overlay), sort_keys=False)).encode())


def _merge(base: MutableMapping[str, Any], overlay: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    """Merge in place as ``config.merge`` does: another variant (with another ``name``) replaces the old one whole."""
    for key, value in overlay.items():
        old = base.get(key)
        if isinstance(old, MutableMapping) and isinstance(value, Mapping) and same_variant(old, value):
            _merge(old, value, f"{prefix}{key}.", lines)
        elif old != value:
            base[key] = value
            lines.append(f"{prefix}{key}: {'(new)' if old is None else old} -> {value}")


def _check(text: str, target: Path) -> None:
    """Read ``text`` as params.yaml before it becomes that."""
    trial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        trial.write_text(text)
        params.load(trial)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror})") from None
    finally:
        trial.unlink(missing_ok=True)
