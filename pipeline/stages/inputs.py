"""The stage ``inputs``: it bundles artifacts that a run reads together under one name.

DVC's ``foreach`` cannot list a varying number of dependencies for each run, so a run has one ``input``. This stage's
artifact holds the hash of each bundled artifact, and no copy of its files.
"""

import json

from bdl_pipe import artifacts

from ..core import places
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.executor import Executor


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``work/inputs/<key>``.

    Raises:
        UserError: one of the artifacts does not exist.
    """
    key = stage.key
    hashes = {}
    for kind, name in params.inputs[key].items():
        place = places.artifact(kind, name.partition("/")[2])
        artifacts.load(place, kind, verify=False)
        hashes[name] = artifacts.sha256(place / artifacts.MANIFEST)
    about = {"inputs": dict(params.inputs[key])}
    with artifacts.publish(places.artifact("inputs", key), "inputs", about=about) as folder:
        artifacts.write_bytes(folder / "hashes.json", json.dumps(hashes, sort_keys=True, indent=1).encode())
