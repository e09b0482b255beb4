"""The plan: every stage that params.yaml asks for, with its inputs, outputs, parameters and digests of code.

``dvc.yaml`` describes the same graph for DVC (tests/pipeline/test_plan.py compares them stage by stage), so that both
find the same stages out of date.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdl_pipe.artifacts import MANIFEST
from bdl_pipe.errors import UserError

from ..core import places
from ..core.model import FIT_KINDS, SECTIONS, Params, Run
from . import code, sources


@dataclass(frozen=True)
class Stage:
    """A stage of the plan.

    Attributes:
        kind, key: of ``python -m stages KIND [KEY]``; the report has no key.
        needs: the names of the stages whose artifacts it reads.
        reads: these artifacts; a manifest stands for a whole artifact, since it holds the hash of every file.
        makes: its own artifacts, and the records beside them.
        params: dotted key of params.yaml -> value, for all keys that it depends on.
        digests: dotted key of ``work/sources.yaml`` -> value.
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
        """Return the stage's name, as DVC calls it."""
        return f"{self.kind}@{self.key}" if self.key else self.kind


Plan = Mapping[str, Stage]  # name -> stage, each after all that it needs


def plan(params: Params) -> Plan:
    """Plan every stage of ``params``, each after all that it needs."""
    stages = [_prepare(key, params) for key in params.datasets]
    stages += [_fit(run, params) for kind in FIT_KINDS for run in params.of(kind)]
    stages += [_inputs(key, params) for key in params.inputs]
    stages += [_evaluate(run, params) for run in params.of("student")]
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
    run = params.run("student" if kind == "evaluate" else kind, key)
    return _evaluate(run, params) if kind == "evaluate" else _fit(run, params)


def matching(targets: Collection[str], plan: Plan) -> Plan:
    """Return the part of a plan that ``targets`` name, with all that they need; without targets all of it.

    Args:
        targets: names such as ``teacher@boston-sgld``, or stage kinds, which stand for every stage of the kind.

    Raises:
        UserError: a target is neither.
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
    for name, stage in plan.items():  # each stands after what it needs
        if any(need in reached or need in names for need in stage.needs):
            reached.add(name)
    return reached


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
            places.artifact("holdout", spec.dataset),
            places.artifact("student", run.key),
            places.record("student", run.key),
        ),
        makes=(places.artifact("evaluate", run.key),),
        params=_numbers(run, params) | {"evaluate": params.raw["evaluate"]},
        digests={f"code.evaluate.{spec.method}": sources.evaluate_digest(spec.method, params)},
    )


def _numbers(run: Run, params: Params) -> dict[str, Any]:
    """Return the numbers that a run's stage depends on, but for its method's section."""
    section, dataset = SECTIONS[run.kind], run.spec.dataset
    return {
        "seed": params.seed,
        f"datasets.{dataset}.splits": params.raw["datasets"][dataset]["splits"],
        f"{section}.{run.key}": params.raw[section][run.key],
    }


def _report(params: Params) -> Stage:
    runs = params.of("student")
    return Stage(
        kind="report",
        key="",
        needs=frozenset(f"evaluate@{run.key}" for run in runs),
        reads=tuple(places.artifact("evaluate", run.key) for run in runs),
        makes=tuple(places.REPORT / name for name in places.REPORT_FILES),
        params={"seed": params.seed, **{name: params.raw[name] for name in ("report", "runs", "coresets")}},
        digests={"code.report": code.digest("report")},
    )
