"""The stage ``inputs``: artifacts that are read together, under one name.

DVC's ``foreach`` cannot list a varying number of dependencies for each run, so a row has one ``input``, and several
artifacts are one by this stage: its own artifact holds the hash of each, and nothing of them is copied.
"""

import json

from bdl_pipe import artifacts
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError

from ..core import places
from ..core.params import Params


def bundle(key: str, params: Params) -> None:
    """Make ``work/inputs/<key>``.

    Raises:
        UserError: there is no such spec, or one of its artifacts is not there.
    """
    if key not in params.inputs:
        raise ConfigError(f"inputs.{key}", f"is not an entry{nearest(key, params.inputs)}")
    hashes = {}
    for kind, name in params.inputs[key].items():
        place = places.artifact(kind, name.partition("/")[2])
        artifacts.load(place, kind, verify=False)
        hashes[name] = artifacts.sha256(place / artifacts.MANIFEST)
    place = places.artifact("inputs", key)
    places.sweep(place)
    with artifacts.publish(place, "inputs", about={"inputs": dict(params.inputs[key])}) as folder:
        artifacts.write_bytes(folder / "hashes.json", json.dumps(hashes, sort_keys=True, indent=1).encode())
