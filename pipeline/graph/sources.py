"""``work/sources.yaml``: hashes of the code and of the users' files that each stage depends on.

DVC reads them as parameters, one for each stage, because its ``foreach`` cannot list other dependencies for each run:
a change of one method's module makes that method's stages out of date, and no other.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from bdl_pipe import config
from bdl_pipe.data.catalog import Noise
from bdl_pipe.data.config import ood_source, transfer_source
from bdl_pipe.data.raw import Source
from bdl_pipe.files import write_bytes

from ..core import places
from ..core.params import Params
from . import code


def write(params: Params) -> None:
    """Bring ``work/sources.yaml`` up to date; an equal file is left alone."""
    text = yaml.safe_dump(digests(params)).encode()
    path = places.sources()
    if not path.is_file() or path.read_bytes() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text)


def digests(params: Params) -> dict[str, Any]:
    """What the file holds: ``code.<stage kind>``, ``code.fit.<method>``, ``code.evaluate.<method>``, ``data.<key>``."""
    methods = code.methods()
    return {
        "code": {
            "prepare": code.digest("prepare"),
            "inputs": code.digest("inputs"),
            "fit": {name: code.digest("student", name) for name in methods},
            "evaluate": {name: code.digest("evaluate", name) for name in methods},
            "report": code.digest("report"),
        },
        "data": {key: data_digest(key, params) for key in params.datasets},
    }


def data_digest(key: str, params: Params) -> str:
    """A hash of what a data set is read from: its source, those of ``ood`` and ``transfer``, and the files behind."""
    datasets = dict(params.datasets)
    dataset = datasets[key]
    named: list[Source | Noise] = [dataset.source]
    named += [ood_source(name, datasets, f"datasets.{key}.ood") for name in dataset.ood]
    named += [transfer_source(name, key, datasets, f"datasets.{key}.transfer") for name in dataset.transfer]
    facts = [[config.to_mapping(source), _files(source)] for source in named]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _files(source: Source | Noise) -> dict[str, str]:
    """Hash the users' files behind a source: path -> SHA-256; a file that is missing is found out by ``prepare``."""
    paths = [path for root in source.files() for path in (sorted(root.rglob("*")) if root.is_dir() else [root])]
    return {str(path): _sha256(path) for path in paths if path.is_file()}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
