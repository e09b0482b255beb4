"""What is out of date, without DVC: a stage is left alone where the same numbers, data and code made its artifact.

Beside each artifact lies ``<artifact>.identity.json``: a hash of all that it was made from, and what
was made. It is written last, so a stage that was interrupted runs again, from its checkpoints.
"""

import hashlib
import importlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts, config
from bdl_pipe.data.config import ImageFolder, Npz, Table, Uci
from bdl_pipe.data.partners import ood_source, transfer_source
from bdl_pipe.files import write_bytes

from .core import places
from .core.executors import Executor
from .core.params import FIT_KINDS, Params, Row
from .core.settings import Settings
from .rows import stage

_SHELLS: Final = ("rows/stage.py", "preparing.py", "evaluating.py")  # what else of our code the artifacts depend on


@dataclass(frozen=True)
class Step:
    """One stage of one row, or ``prepare`` of one data set."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"

    @property
    def made(self) -> list[Path]:
        kinds = ("prepare", "holdout") if self.kind == "prepare" else (self.kind,)
        return [places.artifact(kind, self.key) for kind in kinds]


def steps(params: Params, runs: Iterable[Row]) -> list[Step]:
    """The stages of ``runs`` and of all that they are made from, each after what it needs."""
    runs = list(runs)
    needed = dict.fromkeys((row.kind, row.key) for run in runs for row in params.lineage(run))
    ordered = sorted(needed, key=lambda row: (FIT_KINDS.index(row[0]), list(params.rows).index(row)))
    prepared = dict.fromkeys(run.entry.dataset for run in runs)
    return [
        *(Step("prepare", key) for key in prepared),
        *(Step(kind, key) for kind, key in ordered),
        *(Step("evaluate", run.key) for run in runs),
    ]


def is_current(step: Step, params: Params, settings: Settings) -> bool:
    """Whether its artifact is there and was made from what there is now."""
    if not all((path / artifacts.MANIFEST).is_file() for path in [*_inputs(step, params), *step.made]):
        return False
    try:
        return json.loads(_place(step).read_text()) == _identity(step, params, settings)
    except (OSError, json.JSONDecodeError):
        return False


def bring(step: Step, params: Params, executor: Executor, settings: Settings) -> bool:
    """Run it unless it is current; whether it ran.

    Raises:
        UserError: what the stage raises.
    """
    if is_current(step, params, settings):
        return False
    importlib.import_module(f"stages.{step.kind}").run(step.key, params, executor, settings)
    blob = json.dumps(_identity(step, params, settings), sort_keys=True, indent=1).encode()
    write_bytes(_place(step), blob)
    return True


def _place(step: Step) -> Path:
    path = step.made[0]
    return path.with_name(f"{path.name}.identity.json")


def _inputs(step: Step, params: Params) -> list[Path]:
    if step.kind == "prepare":
        return []
    if step.kind == "evaluate":
        row = params.row("student", step.key)
        return [places.artifact("student", step.key), places.artifact("holdout", row.entry.dataset)]
    return stage.inputs_of(params.row(step.kind, step.key))


def _identity(step: Step, params: Params, settings: Settings) -> dict[str, Any]:
    """``made from``: numbers, seed, inputs, code, torch, device and threads; ``made``: the manifests."""
    about = {"step": str(step), "shells": _shells(), **_about(step, params)}
    return {
        "made from": stage.identity(about, settings, _inputs(step, params)),
        "made": [artifacts.sha256(path / artifacts.MANIFEST) for path in step.made],
    }


def _about(step: Step, params: Params) -> dict[str, Any]:
    if step.kind == "prepare":
        return {"seed": params.seed, **_data(step.key, params)}
    row = params.row("student" if step.kind == "evaluate" else step.kind, step.key)
    about = {**stage.facts(row, params), "count": row.entry.members}  # a checkpoint does not depend on the count
    if step.kind == "evaluate":
        about |= {"setting": row.entry.setting, "evaluate": params.raw["evaluate"]}
    return about


def _data(key: str, params: Params) -> dict[str, Any]:
    """A data set's numbers, those of its OOD and transfer sets, and the users' files behind them."""
    dataset, known = params.datasets[key], dict(params.datasets)
    ood = {name: ood_source(name, known, key) for name in dataset.ood}
    transfer = {name: transfer_source(name, key, known, key) for name in dataset.transfer}
    files = {}
    for source in (dataset.source, *ood.values(), *transfer.values()):
        if isinstance(source, (Table, ImageFolder, Npz, Uci)):
            root = Path(source.path)
            for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
                if path.is_file():
                    files[str(path)] = artifacts.sha256(path)
    return {
        "config": config.to_mapping(dataset),
        "ood": {name: config.to_mapping(source) for name, source in ood.items()},
        "transfer": {name: config.to_mapping(source) for name, source in transfer.items()},
        "files": files,
    }


@cache
def _shells() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in _SHELLS)).hexdigest()
