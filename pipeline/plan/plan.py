"""The plan: all stages of params.yaml, with their inputs, outputs, parameters and digests of code.

``dvc.yaml`` describes the same graph for DVC (tests/pipeline/test_plan.py compares them stage by stage), so that both
find the same stages out of date.

``work/identity/<kind>/<key>.json`` records the parameters, code and inputs of a result, and the result's hashes. The
file is written last, so after an interrupt it is missing or belongs to the earlier result. It is one of the stage's
outputs for DVC, so DVC moves it with the result.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdl_pipe.artifacts import MANIFEST, sha256
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..core import places
from ..core.model import FIT_KINDS, SECTIONS, Params, Run
from . import code, sources


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
    params: Mapping[str, Any]
    digests: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the stage's name in DVC."""
        return f"{self.kind}@{self.key}" if self.key else self.kind


Plan = Mapping[str, Stage]  # name -> stage, each after its needs


def plan(params: Params) -> Plan:
    """Return all stages of ``params``, each after its needs."""
    stages = [_prepare(key, params) for key in params.datasets]
    stages += [_fit(run, params) for kind in FIT_KINDS for run in params.of(kind)]
    stages += [_inputs(key, params) for key in params.inputs]
    stages += [of_run(run, params) for run in params.of("student") for of_run in (_evaluate, _scores)]
    stages += [_decide(key, params) for key in params.decisions]
    stages.append(_report(params))
    named, ordered = {stage.name: stage for stage in stages}, dict[str, Stage]()

    def add(name: str) -> None:
        for need in sorted(named[name].needs - ordered.keys()):
            add(need)
        ordered[name] = named[name]

    for name in named:
        if name not in ordered:
            add(name)
    return ordered


def one(kind: str, key: str, params: Params) -> Stage:
    """Return one stage of the plan.

    Raises:
        ConfigError: params.yaml has no such run or data set.
    """
    if kind == "report":
        return _report(params)
    if kind == "prepare":
        return _prepare(key, params)
    if kind == "inputs":
        return _inputs(key, params)
    if kind == "decide":
        return _decide(key, params)
    of_run = {"evaluate": _evaluate, "scores": _scores}
    return of_run[kind](params.run("student", key), params) if kind in of_run else _fit(params.run(kind, key), params)


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
        known = json.loads(place.read_text(encoding="utf-8"))
        made, since = known.pop("made"), place.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return "it has no result yet"
    except (OSError, ValueError, AttributeError, KeyError):
        return f"{place} is damaged"
    changed = _difference(known, made_from(stage))
    if changed is not None:
        return changed
    for path in stage.makes:
        if _hash(path) != made.get(str(path)):
            return f"{path} was changed after the stage wrote it"
        altered = _altered(path, since)
        if altered is not None:
            return altered
    return None


def record(stage: Stage, made_from: Mapping[str, Any]) -> None:
    """Write the identity of a finished stage; ``made_from`` must have been collected before the work."""
    made = {str(path): _hash(path) for path in stage.makes}
    place = places.identity(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    places.sweep(place)
    write_bytes(place, json.dumps({**made_from, "made": made}, sort_keys=True, indent=1).encode())


def made_from(stage: Stage) -> dict[str, Any]:
    """Collect a stage's present parameters, digests of code and data, and hashes of inputs, as JSON-able values."""
    inputs = {str(path): _hash(path) for path in stage.reads}
    facts = {"params": dict(stage.params), "sources": dict(stage.digests), "inputs": inputs}
    return json.loads(json.dumps(facts))


def _difference(known: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Name the first key, digest or input that differs between ``known`` and ``now``; None if all are equal."""
    for section, what in (("params", "the key"), ("sources", "the code or data"), ("inputs", "the input")):
        before, after = known.get(section, {}), now[section]
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


def _prepare(key: str, params: Params) -> Stage:
    if key not in params.datasets:
        raise UserError(f"datasets.{key} is not a data set (known: {', '.join(params.datasets)})")
    return Stage(
        kind="prepare",
        key=key,
        needs=frozenset(),
        reads=(),
        makes=(places.artifact("prepare", key), places.artifact("holdout", key)),
        params={"seed": params.seed, f"datasets.{key}": params.raw["datasets"][key]},
        digests={"code.prepare": code.digest("prepare"), f"data.{key}": sources.data_digest(key, params)},
    )


def _inputs(key: str, params: Params) -> Stage:
    if key not in params.inputs:
        raise UserError(f"inputs.{key} is not an entry (known: {', '.join(params.inputs) or 'none'})")
    names = params.inputs[key].values()
    return Stage(
        kind="inputs",
        key=key,
        needs=frozenset(name.replace("/", "@", 1) for name in names),
        reads=tuple(places.artifact(*name.split("/", 1)) for name in names),
        makes=(places.artifact("inputs", key),),
        params={f"inputs.{key}": dict(params.raw["inputs"][key])},
        digests={"code.inputs": code.digest("inputs")},
    )


def _fit(run: Run, params: Params) -> Stage:
    spec = run.spec
    kind, _, key = spec.input.partition("/")
    reads = (places.artifact("prepare", spec.dataset) / MANIFEST, places.artifact(kind, key))
    needs = {f"prepare@{spec.dataset}", f"{kind}@{key}"}
    return Stage(
        kind=run.kind,
        key=run.key,
        needs=frozenset(needs),
        reads=reads,
        makes=(places.artifact(run.kind, run.key), places.record(run.kind, run.key)),
        params=_numbers(run, params) | {f"methods.{spec.method}": params.raw["methods"][spec.method]},
        digests={f"code.fit.{spec.method}": sources.fit_digest(spec.method, params)},
    )


def _evaluate(run: Run, params: Params) -> Stage:
    spec = run.spec
    return Stage(
        kind="evaluate",
        key=run.key,
        needs=frozenset({f"prepare@{spec.dataset}", f"student@{run.key}"}),
        reads=(
            places.artifact("prepare", spec.dataset) / MANIFEST,
            places.artifact("holdout", spec.dataset),
            places.artifact("student", run.key),
            places.record("student", run.key),
        ),
        makes=(places.artifact("evaluate", run.key),),
        params=_numbers(run, params) | {"evaluate": params.raw["evaluate"]},
        digests={f"code.evaluate.{spec.method}": sources.evaluate_digest(spec.method, params)},
    )


def _scores(run: Run, params: Params) -> Stage:
    return Stage(
        kind="scores",
        key=run.key,
        needs=frozenset({f"evaluate@{run.key}"}),
        reads=(places.artifact("evaluate", run.key),),
        makes=(places.artifact("scores", run.key),),
        params={"seed": params.seed},
        digests={"code.scores": sources.scores_digest(params)},
    )


def _decide(key: str, params: Params) -> Stage:
    if key not in params.decisions:
        raise UserError(f"decisions.{key} is not an entry (known: {', '.join(params.decisions) or 'none'})")
    return Stage(
        kind="decide",
        key=key,
        needs=frozenset(),
        reads=(),
        makes=(places.artifact("decide", key),),
        params={"seed": params.seed, f"decisions.{key}": params.raw["decisions"][key]},
        digests={f"code.decide.{key}": sources.decide_digest(key, params)},
    )


def _numbers(run: Run, params: Params) -> dict[str, Any]:
    """Return the values that a run's stage depends on, except its method's section."""
    section, dataset = SECTIONS[run.kind], run.spec.dataset
    return {
        "seed": params.seed,
        f"datasets.{dataset}.splits": params.raw["datasets"][dataset]["splits"],
        f"{section}.{run.key}": params.raw[section][run.key],
    }


def _report(params: Params) -> Stage:
    made = [(kind, run.key) for run in params.of("student") for kind in ("evaluate", "scores")]
    made += [("decide", key) for key in params.decisions]
    return Stage(
        kind="report",
        key="",
        needs=frozenset(f"{kind}@{key}" for kind, key in made),
        reads=tuple(places.artifact(kind, key) for kind, key in made),
        makes=tuple(places.REPORT / name for name in places.REPORT_FILES),
        params={"seed": params.seed, **{name: params.raw[name] for name in ("report", "runs", "coresets")}},
        digests={"code.report": sources.report_digest(params)},
    )
