"""The plan: every stage that params.yaml asks for, what it reads, what it makes, and which numbers it depends on.

``dvc.yaml`` says the same to DVC (tests/pipeline/test_plan.py compares them stage by stage), so that both find the
same stages out of date.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdl_pipe.artifacts import MANIFEST
from bdl_pipe.errors import UserError

from ..core import places
from ..core.params import FIT_KINDS, SECTIONS, Params, Row
from . import code, sources


@dataclass(frozen=True)
class Stage:
    """One stage of the plan.

    Attributes:
        kind, key: of ``python -m stages.<kind> [KEY]``; the report has no key.
        needs: the names of the stages whose artifacts it reads.
        reads: those artifacts; a manifest stands for the whole of one, since it holds the hash of every file.
        makes: its own artifacts, and files beside them.
        params: dotted key of params.yaml -> value, of all that it depends on.
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
        """As DVC calls it."""
        return f"{self.kind}@{self.key}" if self.key else self.kind

    @property
    def arguments(self) -> list[str]:
        return [self.key] if self.key else []


Plan = Mapping[str, Stage]  # name -> stage, each after all that it needs


def plan(params: Params) -> Plan:
    """Every stage of ``params``, each after all that it needs."""
    stages = [_prepare(key, params) for key in params.datasets]
    stages += [_fit(row, params) for kind in FIT_KINDS for row in params.of(kind)]
    stages += [_inputs(key, params) for key in params.inputs]
    stages += [_evaluate(row, params) for row in params.of("student")]
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
    """One stage of the plan.

    Raises:
        ConfigError: params.yaml has no such row or data set.
    """
    if kind == "report":
        return _report(params)
    if kind == "prepare":
        return _prepare(key, params)
    if kind == "inputs":
        return _inputs(key, params)
    row = params.row("student" if kind == "evaluate" else kind, key)
    return _evaluate(row, params) if kind == "evaluate" else _fit(row, params)


def matching(targets: Collection[str], plan: Plan) -> Plan:
    """The stages that ``targets`` name, and all that they need; without targets all of them.

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
    """Everything that ``names`` need, directly or not."""
    reached, new = set[str](), set(names)
    while new := {need for name in new for need in plan[name].needs} - reached:
        reached |= new
    return reached


def descendants(plan: Plan, names: Collection[str]) -> set[str]:
    """Everything that needs one of ``names``, directly or not."""
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


def _fit(row: Row, params: Params) -> Stage:
    entry = row.entry
    kind, _, key = entry.input.partition("/")
    reads = (places.artifact("prepare", entry.dataset) / MANIFEST, places.artifact(kind, key))
    needs = {f"prepare@{entry.dataset}", f"{kind}@{key}"}
    return Stage(
        kind=row.kind,
        key=row.key,
        needs=frozenset(needs),
        reads=reads,
        makes=(places.artifact(row.kind, row.key), places.record(row.kind, row.key)),
        params=_numbers(row, params) | {f"methods.{entry.method}": params.raw["methods"][entry.method]},
        digests={f"code.fit.{entry.method}": code.digest(row.kind, entry.method)},
    )


def _evaluate(row: Row, params: Params) -> Stage:
    entry = row.entry
    return Stage(
        kind="evaluate",
        key=row.key,
        needs=frozenset({f"prepare@{entry.dataset}", f"student@{row.key}"}),
        reads=(
            places.artifact("holdout", entry.dataset),
            places.artifact("student", row.key),
            places.record("student", row.key),
        ),
        makes=(places.artifact("evaluate", row.key),),
        params=_numbers(row, params) | {"evaluate": params.raw["evaluate"]},
        digests={f"code.evaluate.{entry.method}": code.digest("evaluate", entry.method)},
    )


def _numbers(row: Row, params: Params) -> dict[str, Any]:
    """What a stage of a row depends on, but for its method's section."""
    section, dataset = SECTIONS[row.kind], row.entry.dataset
    return {
        "seed": params.seed,
        f"datasets.{dataset}.splits": params.raw["datasets"][dataset]["splits"],
        f"{section}.{row.key}": params.raw[section][row.key],
    }


def _report(params: Params) -> Stage:
    runs = params.of("student")
    return Stage(
        kind="report",
        key="",
        needs=frozenset(f"evaluate@{row.key}" for row in runs),
        reads=tuple(places.artifact("evaluate", row.key) for row in runs),
        makes=tuple(places.REPORT / name for name in places.REPORT_FILES),
        params={"seed": params.seed, **{name: params.raw[name] for name in ("report", "runs", "coresets")}},
        digests={"code.report": code.digest("report")},
    )
