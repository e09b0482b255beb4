"""What DVC is asked to record, and in which words."""

import json
import os
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pipeline.plan.plan import Plan, Stage
from pipeline.run import dvc

ROOT = Path(__file__).parents[2]


def plan_of(**keys: int) -> Plan:
    """A plan of so many stages of each kind."""
    stages = [Stage(k, f"r{i}", frozenset(), (), (), {}, {}) for k, number in keys.items() for i in range(number)]
    return {stage.name: stage for stage in [*stages, Stage("report", "", frozenset(), (), (), {}, {})]}


def recorded(targets: list[str], plan: Plan) -> set[str]:
    """The stages that DVC records for these targets."""
    if targets == ["dvc.yaml"]:
        return {*plan, "sources"}
    return {name for target in targets for name in (*plan, "sources") if target in (name, name.partition("@")[0])}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    return tmp_path / "dvc.yaml"


def test_all_is_one_target(graph: Path) -> None:
    plan = plan_of(prepare=2, student=39, evaluate=39)
    assert dvc._targets([*plan, "sources"], list(plan), plan) == ["dvc.yaml"]


@pytest.mark.parametrize("names", [["report"], ["sources"], ["student@r3"]])
def test_one_stage_is_one_target(graph: Path, names: list[str]) -> None:
    plan = plan_of(prepare=2, student=39, evaluate=39)
    assert dvc._targets(names, list(plan), plan) == names


def test_many_of_a_kind_are_that_kind(graph: Path) -> None:
    plan = plan_of(prepare=2, student=39, evaluate=390)
    names = [f"student@r{i}" for i in range(9)]
    assert dvc._targets(names, list(plan), plan) == ["student"]


def test_a_stage_that_is_out_of_date_is_never_recorded(graph: Path) -> None:
    """Neither by its kind nor by the file; the others all are."""
    plan = plan_of(prepare=2, student=39, evaluate=39)
    fresh = [name for name in plan if name != "student@r5"]
    targets = dvc._targets([*fresh, "sources"], fresh, plan)
    assert recorded(targets, plan) == {*fresh, "sources"} and "evaluate" in targets


@pytest.mark.parametrize("damaged", [False, True])
def test_a_stage_of_somebody_else_is_left_alone(graph: Path, damaged: bool) -> None:
    """The file is no target where it holds other stages than ours, or cannot be read."""
    plan = plan_of(prepare=2, student=39, evaluate=39)
    stages = yaml.safe_load(graph.read_text())
    stages["stages"]["deploy"] = {"cmd": "true", "outs": ["deployed"]}
    graph.write_text("stages: [" if damaged else yaml.safe_dump(stages))
    assert dvc._targets([*plan, "sources"], list(plan), plan) == ["sources", "evaluate", "prepare", "report", "student"]


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_lock_of_a_container_that_is_gone_is_forgotten(kind: str, graph: Path) -> None:
    """Its process's number is one that another process has here, for which DVC would refuse every command."""
    path = graph.parent / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)

    def listed(pid: int) -> dict[str, object]:
        who = {"pid": pid, "cmd": "dvc repro"}
        return {"read": {}, "write": {}, kind: {"/project/out": [who] if kind == "read" else who}}

    alive, mine = listed(os.getppid()), listed(os.getpid())
    for lock, written, left in (
        (alive, time.time(), alive),  # it may be at work
        (mine, psutil.Process().create_time() - 60.0, {"read": {}, "write": {}}),
        (listed(2**22 + 1), time.time(), {"read": {}, "write": {}}),  # a number that no process can have
    ):
        path.write_text(json.dumps(lock))
        os.utime(path, (written, written))
        dvc.mend()
        assert json.loads(path.read_text()) == left
    path.write_text('{"read": {"/pro')
    dvc.mend()
    assert not path.exists()
