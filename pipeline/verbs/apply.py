"""Overlays on params.yaml: ``python -m pipeline apply params/paper.yaml``.

An overlay names only what it changes. It is merged key by key into params.yaml, whose comments and
order stay, and only if the result is valid as a whole.
"""

import argparse
import io
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from bdl_pipe.config import same_variant
from bdl_pipe.errors import DataError
from bdl_pipe.files import write_bytes

from ..core import params

_SHOWN: Final = 4  # names of a section's new entries


def main(args: argparse.Namespace) -> int:
    """Merge ``args.overlay`` into params.yaml."""
    lines = apply(Path(args.overlay))
    print(f"params.yaml: {'changed by' if lines else 'has all of'} {args.overlay}; now make repro")
    for line in lines:
        print(f"  {line}")
    return 0


def apply(overlay: Path, target: Path = Path("params.yaml")) -> list[str]:
    """Merge the file ``overlay`` into ``target``, and return what changed: a line each, new entries a line a section.

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
    new: dict[str, list[str]] = {}
    _merge(document, changes, "", lines, new)
    text = io.StringIO()
    yaml.dump(document, text)
    check(text.getvalue(), target)
    write_bytes(target, text.getvalue().encode())
    return lines + [_brief(section, names) for section, names in new.items()]


def write(path: Path, overlay: Mapping[str, Any], comments: list[str]) -> None:
    """Write an overlay file, with where its numbers come from at its head."""
    import yaml

    head = "".join(f"# {line}\n" for line in comments)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (head + yaml.safe_dump(dict(overlay), sort_keys=False)).encode())


def _merge(
    base: MutableMapping[str, Any],
    overlay: Mapping[str, Any],
    prefix: str,
    lines: list[str],
    new: MutableMapping[str, list[str]],
) -> None:
    """Merge in place as ``config.merge`` does: another variant (with another ``name``) replaces the old one whole."""
    for key, value in overlay.items():
        old = base.get(key)
        if isinstance(old, MutableMapping) and isinstance(value, Mapping) and same_variant(old, value):
            _merge(old, value, f"{prefix}{key}.", lines, new)
        elif old != value:
            base[key] = value
            if old is None and isinstance(value, Mapping):
                new.setdefault(prefix.removesuffix("."), []).append(key)
            else:
                lines.append(f"{prefix}{key}: {'(new)' if old is None else old} -> {value}")


def _brief(section: str, names: list[str]) -> str:
    """Return one line for new entries of a section, of which an overlay may have a hundred."""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{section}: {len(names)} new: {shown}"


def check(text: str, target: Path) -> None:
    """Read ``text`` as params.yaml before it becomes that."""
    trial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        trial.write_text(text)
        params.load(trial)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror})") from None
    finally:
        trial.unlink(missing_ok=True)
