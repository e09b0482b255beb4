"""Files of ``params/``: ``base`` names a file that a file changes, and ``each`` writes similar entries once.

An overlay and a paper's params file may have two keys beside the sections of params.yaml::

    base: ../base/vbll-tables.yaml         # from this file's folder; this file's keys are merged into its content
    each: {dataset: [boston, concrete]}
    runs:
      <dataset>-gp: {dataset: <dataset>, method: gp, setting: small, seeds: 1, input: prepare/<dataset>}
      concrete-gp: {seeds: 3}              # is merged into the entry above

An entry with ``<name>`` in its key represents one entry for each value of the list ``each.<name>``, with the value in
place of ``<name>`` in its texts. params.yaml itself has neither key, because DVC reads it, too.
"""

import re
from collections.abc import Mapping
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import require
from bdl_pipe.yaml_files import read_yaml

_NAME: Final = re.compile(r"<([a-z_]+)>")


def read_params(path: Path) -> dict[str, Any]:
    """Read a params file or an overlay, with its base, and write out its repeated entries.

    Raises:
        DataError: a file is missing or is not YAML.
        ConfigError: ``base`` or ``each`` breaks its rule; the message has the file and the key.
    """
    return written_out(read_yaml(path), path)


def written_out(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Merge ``raw``, the content of the file ``path`` or a part of it, into its base, see :func:`read_params`."""
    whole = _on_base(raw, (path,))
    lists = whole.pop("each", {})
    right = isinstance(lists, Mapping) and all(isinstance(values, list) for values in lists.values())
    require(right, f"{path}: each", "must be lists (name: [value, ...])", lists)
    return {
        section: _entries(entries, lists, f"{path}: {section}") if isinstance(entries, Mapping) else entries
        for section, entries in whole.items()
    }


def _on_base(raw: Mapping[str, Any], files: tuple[Path, ...]) -> dict[str, Any]:
    """Merge ``raw`` into the file that its ``base`` names.

    Args:
        files: the file of ``raw``, after the files whose bases led to it.
    """
    rest = {key: value for key, value in raw.items() if key != "base"}
    if "base" not in raw:
        return rest
    name, folder, place = raw["base"], files[-1].parent, f"{files[-1]}: base"
    require(isinstance(name, str) and (folder / name).is_file(), place, f"must be a file in {folder.resolve()}", name)
    base = folder / name
    require(not any(base.samefile(file) for file in files), place, "must not lead back to the file itself", name)
    return config.merge(_on_base(read_yaml(base), (*files, base)), rest)


def _entries(entries: Mapping[str, Any], lists: Mapping[str, list[Any]], section: str) -> dict[str, Any]:
    """Write out the entries of a section in their order; later entries are merged into earlier ones of the same key."""
    written: dict[str, Any] = {}
    for names, group in groupby(entries.items(), lambda entry: (*dict.fromkeys(_NAME.findall(str(entry[0]))),)):
        similar = list(group)
        for name in names:
            require(name in lists, f"{section}.{similar[0][0]}", f"must name lists of each{nearest(name, lists)}", name)
        for values in product(*(lists[name] for name in names)):
            written = config.merge(written, _filled(dict(similar), dict(zip(names, values, strict=True))))
    return written


def _filled(value: Any, of: Mapping[str, Any]) -> Any:
    """Replace every ``<name>`` in the keys and texts of ``value``; a text that is only ``<name>`` becomes the value."""
    if isinstance(value, Mapping):
        return {_filled(key, of): _filled(entry, of) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, of) for entry in value]
    if not isinstance(value, str):
        return value
    whole = _NAME.fullmatch(value)
    return of.get(whole[1], value) if whole else _NAME.sub(lambda match: str(of.get(match[1], match[0])), value)
