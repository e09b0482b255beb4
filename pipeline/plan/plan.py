"""The plan: all stages of params.yaml, with their inputs, outputs, parameters and digests of code.

The project's ``dvc.yaml`` describes the stage kinds for DVC and for the plan, so that both find the same stages out of
date. The plan fills in its ``${key}`` and ``${item.…}`` for each entry of params.yaml.

``work/identity/<kind>/<key>.json`` records the parameters, code and inputs of a result, and the result's hashes. The
file is written last, so after an interrupt it is missing or belongs to the earlier result. It is one of the stage's
outputs for DVC, so DVC moves it with the result.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final

from bdl_pipe.artifacts import MANIFEST, sha256
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.yaml_files import read_yaml

from ..core import places
from ..core.model import FIT_KINDS, SECTIONS, Params
from . import code, sources

_GRAPH: Final = code.PROJECT / "dvc.yaml"
_FIELD: Final = re.compile(r"\$\{(?:item\.)?(\w+)\}")


@dataclass(frozen=True)
class Stage:
    """A stage of the plan.

    Attributes:
        kind, key: the arguments of ``python -m stages KIND [KEY]``; the report has no key.
        needs: the names of the stages whose artifacts the stage reads.
        reads: the files it reads; a manifest represents a whole artifact, since it has the hash of every file.
        makes: the stage's artifacts and their records.
        params: dotted key of params.yaml -> value, for all keys that the stage depends on.
        digests: dotted key of ``work/sources.yaml`` -> value, for all keys that the stage depends on.
    """

    kind: str
    key: str
    needs: frozenset[str]
    reads: tuple[Path, ...]
    makes: tuple[Path, ...]
    params: Mapping[str, object]
    digests: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the stage's name in DVC."""
        return f"{self.kind}@{self.key}" if self.key else self.kind


Plan = Mapping[str, Stage]  # name -> stage, each after its needs


def plan(params: Params, names: Iterable[str] | None = None) -> Plan:
    """Return all stages of ``params``; or those of ``names`` and what they need, which takes less time.

    Raises:
        UserError: params.yaml has no stage of ``names``.
    """
    if names is None:
        of_runs = [(kind, run.key) for run in params.of("student") for kind in ("evaluate", "scores")]
        keys = [("prepare", key) for key in params.datasets]
        keys += [(kind, run.key) for kind in FIT_KINDS for run in params.of(kind)]
        keys += [*(("inputs", key) for key in params.inputs), *of_runs, *(("decide", key) for key in params.decisions)]
        names = [*(f"{kind}@{key}" for kind, key in keys), "report"]
    ordered = dict[str, Stage]()

    def add(name: str) -> None:
        if name not in ordered:
            stage = one(*name.partition("@")[::2], params)
            for need in sorted(stage.needs):
                add(need)
            ordered[name] = stage

    for name in names:
        add(name)
    return ordered


def one(kind: str, key: str, params: Params) -> Stage:
    """Return one stage of the plan.

    Raises:
        UserError: params.yaml has no such run, data set or entry.
    """
    graph = _kinds()[kind]
    entries = params.raw.get(graph.section) or {}
    if graph.section in SECTIONS.values():
        params.run(kind if kind in FIT_KINDS else "student", key)  # raises for an unknown run
    elif graph.section and key not in entries:
        what = "a data set" if graph.section == "datasets" else "an entry"
        raise UserError(f"{graph.section}.{key} is not {what} (known: {', '.join(entries) or 'none'})")
    entry = entries.get(key, {})

    def filled(texts: Sequence[str]) -> list[str]:
        return [_FIELD.sub(lambda field: key if field[1] == "key" else entry[field[1]], text) for text in texts]

    if kind == "inputs":  # dvc.yaml can only name the kinds of artifacts that its stages bundle
        reads = [places.below_work(f"work/{name}") for name in entry.values()]
    elif kind == "report":  # dvc.yaml has their folders
        scored = [(kind, run.key) for run in params.of("student") for kind in ("evaluate", "scores")]
        reads = [places.artifact(*name) for name in [*scored, *(("decide", key) for key in params.decisions)]]
    else:
        reads = [places.below_work(text) for text in filled(graph.deps)]
    makers = [places.kind_and_key(path) for path in reads]
    return Stage(
        kind=kind,
        key=key,
        needs=frozenset(f"{'prepare' if of == 'holdout' else of}@{name}" for of, name in makers),
        reads=tuple(reads),
        makes=tuple(places.below_work(text) for text in filled(graph.outs) if not text.startswith("work/identity/")),
        params={name: reduce(getitem, name.split("."), params.raw) for name in filled(graph.params)},
        digests={name: sources.digest(name, params) for name in filled(graph.digests)},
    )


@dataclass(frozen=True)
class _Kind:
    """A stage kind of dvc.yaml: the section of params.yaml whose entries are its stages, and lists as written there."""

    section: str
    deps: Sequence[str]
    outs: Sequence[str]
    params: Sequence[str]
    digests: Sequence[str]


@cache
def _kinds() -> Mapping[str, _Kind]:
    stages, kinds = read_yaml(_GRAPH)["stages"], {}
    for kind in code.BODIES:
        stage = stages[kind]
        body = stage.get("do", stage)
        outs = [next(iter(out)) if isinstance(out, dict) else out for out in (*body["outs"], *body.get("metrics", ()))]
        (digests,) = (names["work/sources.yaml"] for names in body["params"] if isinstance(names, dict))
        params = [name for name in body["params"] if isinstance(name, str)]
        kinds[kind] = _Kind(stage.get("foreach", "").strip("${}"), body.get("deps", ()), outs, params, digests)
    return kinds


def matching(targets: Collection[str], plan: Plan) -> Plan:
    """Return the stages that ``targets`` name and everything that they need; all stages if there are no targets.

    Args:
        targets: names such as ``teacher@boston-sghmc``, or stage kinds, which mean all stages of the kind.

    Raises:
        UserError: a target is neither a stage nor a stage kind.
    """
    if not targets:
        return plan
    wanted = set[str]()
    for target in targets:
        names = {name for name in plan if target in (name, plan[name].kind)}
        if not names:
            raise UserError(f"{target} is not a stage (see: python -m pipeline status --all)")
        wanted |= names
    keep = wanted | ancestors(plan, wanted)
    return {name: stage for name, stage in plan.items() if name in keep}


def ancestors(plan: Plan, names: Iterable[str]) -> set[str]:
    """Return the names of everything that ``names`` need, directly or not."""
    reached, new = set[str](), set(names)
    while new := {need for name in new for need in plan[name].needs} - reached:
        reached |= new
    return reached


def descendants(plan: Plan, names: Collection[str]) -> set[str]:
    """Return the names of everything that needs one of ``names``, directly or not."""
    reached = set[str]()
    for name, stage in plan.items():  # each is after its needs
        if any(need in reached or need in names for need in stage.needs):
            reached.add(name)
    return reached


def reason(stage: Stage) -> str | None:
    """Return why a stage is out of date with respect to its present inputs; None if it is up to date."""
    place = places.identity(stage.kind, stage.key)
    try:
        stored = {name: dict(facts) for name, facts in json.loads(place.read_text(encoding="utf-8")).items()}
        outputs, since = stored.pop("made"), place.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return "it has no result yet"
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return f"{place} is damaged"
    changed = _difference(stored, made_from(stage))
    if changed is not None:
        return changed
    for path in stage.makes:
        if _hash(path) != outputs.get(str(path)):
            return f"{path} was changed after the stage wrote it"
        altered = _altered(path, since)
        if altered is not None:
            return altered
    return None


def was_made_from(kind: str, key: str, path: Path) -> bool:
    """Return True if a result was made from the present file or artifact ``path``, one of the stage's inputs."""
    try:
        stored = json.loads(places.identity(kind, key).read_text(encoding="utf-8"))
        return bool(stored["inputs"][str(path)] == _hash(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def record(stage: Stage, made_from: Mapping[str, object]) -> None:
    """Write the identity of a finished stage; ``made_from`` must have been collected before the work."""
    outputs = {str(path): _hash(path) for path in stage.makes}
    place = places.identity(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    places.sweep(place)
    write_bytes(place, json.dumps({**made_from, "made": outputs}, sort_keys=True, indent=1).encode())


def made_from(stage: Stage) -> dict[str, Any]:
    """Collect a stage's present parameters, digests of code and data, and hashes of inputs, as JSON-able values."""
    inputs = {str(path): _hash(path) for path in stage.reads}
    facts = {"params": dict(stage.params), "sources": dict(stage.digests), "inputs": inputs}
    return json.loads(json.dumps(facts))


def _difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Name the first key, digest or input that differs between ``stored`` and ``now``; None if all are equal."""
    for section, what in (("params", "the key"), ("sources", "the code or data"), ("inputs", "the input")):
        before, after = stored.get(section, {}), now[section]
        for name in sorted({*before, *after}):
            if name not in before or name not in after or before[name] != after[name]:
                return f"{what} {name} has changed"
    return None


def _hash(path: Path) -> str | None:
    """Hash a file or an artifact's manifest, which has the hash of every file; None if it does not exist."""
    path = path / MANIFEST if path.is_dir() else path
    return sha256(path) if path.is_file() else None


def _altered(path: Path, since: int) -> str | None:
    """Return a file of an artifact that is missing or differs from the manifest; None if there is none.

    Args:
        since: nanoseconds; for a file that was written before this time only the size is checked.
    """
    if not path.is_dir():
        return None
    for name, facts in json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"].items():
        file = path / name
        if not file.is_file():
            return f"{file} is missing"
        status = file.stat()
        same = status.st_size == facts["bytes"]
        if not same or (status.st_mtime_ns > since and sha256(file) != facts["sha256"]):
            return f"{file} was changed after the stage wrote it"
    return None
