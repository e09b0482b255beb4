"""Runs that are made from other runs: the inputs that params.yaml may name, the order of stages, and a pruned run."""

import copy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from bdl_pipe import artifacts
from bdl_pipe.errors import UserError
from bdl_pipe.inducing.methods import RandomWeightsPosterior
from bdl_pipe.registry import load_predictor
from pipeline.core import places, records
from pipeline.core.load import load
from pipeline.core.model import Params
from pipeline.core.settings import Settings
from pipeline.plan import plan
from pipeline.plan.plan import one
from pipeline.stages import evaluate, fit, prepare
from pipeline.work.executor import Inline
from tests.cases import RANDOM
from tests.pipeline.test_params import GOOD

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(executor="inline", checkpoint_seconds=1e6)
LEARN = {"epochs": 2, "batch": 64, "optimiser": {"name": "adam", "lr": 1.0e-3}}
FFG_U = {**RANDOM, "training": LEARN, "annealing": None}
WHOLE = {"dataset": "boston", "method": "ffg_u", "setting": "whole", "seeds": 2, "input": "prepare/boston"}
PRUNED = {**WHOLE, "setting": "half", "input": "student/b-whole", "override": {"prune": 0.5, "training": {"epochs": 1}}}
RAW: dict[str, Any] = {
    **GOOD,
    "methods": {
        "ffg_u": FFG_U,
        "ffg_w": {**FFG_U, "weights": {"kind": "ffg_w"}},
        "sgd": {
            "network": RANDOM["network"],
            "epochs": 1,
            "snapshots": 1,
            "batch": 64,
            "optimiser": {"name": "adam", "lr": 1e-2},
        },
    },
    "trajectories": {"b-sgd": {"dataset": "boston", "method": "sgd", "seeds": 2, "input": "prepare/boston"}},
    "runs": {"b-whole": WHOLE, "b-half": PRUNED},
}


def read(folder: Path, raw: dict[str, Any]) -> Params:
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return load(folder / "params.yaml")


def changed(**runs: dict[str, Any]) -> dict[str, Any]:
    """RAW with keys of its runs changed, or with further runs."""
    raw = copy.deepcopy(RAW)
    for key, change in runs.items():
        name = key.replace("_", "-")
        raw["runs"][name] = raw["runs"].get(name, {}) | change
    return raw


WRONG: dict[str, tuple[dict[str, dict[str, Any]], str]] = {  # the method's own tests check the rules of ``prune``
    "a share and a trajectory": (
        {"b_half": {"method": "ffg_w", "input": "trajectory/b-sgd"}},
        "runs.b-half.prune must be null without a posterior as input (input: student/<run>), got 0.5",
    ),
    "another method": ({"b_half": {"method": "ffg_w"}}, "runs.b-half.input must be a run of ffg_w, got 'ffg_u'"),
    "a pruned run": (
        {"b_quarter": {**PRUNED, "input": "student/b-half", "override": {"prune": 0.75}}},
        "runs.b-quarter.input must be a posterior that is not pruned itself, got 'one with prune: 0.5'",
    ),
    "itself": ({"b_half": {"input": "student/b-half"}}, "runs.b-half.input must be a run that is listed earlier"),
    "a run below": (
        {"b_whole": {"input": "student/b-half", "override": {"prune": 0.5}}},
        "runs.b-whole.input must be a run that is listed earlier (known: none), got 'student/b-half'",
    ),
    "more seeds": ({"b_half": {"seeds": 3}}, "runs.b-half.seeds must be <= 2, the seeds of its input, got 3"),
    "inducing weights at a trajectory": (
        {"b_whole": {"input": "trajectory/b-sgd"}},
        "runs.b-whole.input must be student/<run> or prepare/boston, got 'trajectory/b-sgd'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_run_is_refused_in_one_line_that_names_its_key(tmp_path: Path, name: str) -> None:
    change, message = WRONG[name]
    read(tmp_path, RAW)
    with pytest.raises(UserError) as caught:
        read(tmp_path, changed(**change))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_run_cannot_have_both_a_posterior_and_a_trajectory_as_input(tmp_path: Path) -> None:
    weights = {"method": "ffg_w", "override": {"prune": 0.5}}
    raw = changed(b_whole={"method": "ffg_w"}, b_half={**weights, "input": "inputs/both"})
    raw["inputs"] = {"both": {"trajectory": "trajectory/b-sgd", "student": "student/b-whole"}}
    with pytest.raises(UserError) as caught:
        read(tmp_path, raw)
    assert str(caught.value) == "runs.b-half.input must be a posterior or a trajectory, not both"


def test_the_plan_puts_a_run_before_its_pruned_run(tmp_path: Path) -> None:
    found = read(tmp_path, changed(b_last={**WHOLE, "setting": "other"}))
    stages = plan.plan(found)
    assert {*plan.matching(["evaluate@b-half"], stages)} == {
        "prepare@boston",
        "student@b-whole",
        "student@b-half",
        "evaluate@b-half",
    }
    assert list(stages).index("student@b-whole") < list(stages).index("student@b-half")
    assert [row.key for row in found.lineage(found.run("student", "b-half"))] == ["b-whole", "b-half"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The parameters of a project in which Boston is prepared."""
    monkeypatch.chdir(tmp_path)
    found = read(tmp_path, RAW)
    prepare.run(one("prepare", "boston", found), found, Inline(SETTINGS), SETTINGS)
    return found


def parameters(key: str) -> list[float]:
    rows = pq.read_table(places.artifact("evaluate", key) / "scores.parquet").to_pylist()
    return [r["value"] for r in rows if (r["set"], r["metric"]) == ("cost", "parameters")]


@pytest.mark.slow
def test_pruning_keeps_the_largest_half_and_adds_the_seconds_of_the_whole_run(project: Params) -> None:
    for key in ("b-whole", "b-half"):
        for kind, stage in (("student", fit), ("evaluate", evaluate)):
            stage.run(one(kind, key, project), project, Inline(SETTINGS), SETTINGS)
    whole, half = (artifacts.load(places.artifact("student", key), "student") for key in ("b-whole", "b-half"))
    assert half.names() == whole.names() and len(half.names()) == 6  # 2 splits of 2 members, and their transforms
    for name in ("0-0", "0-1", "1-0", "1-1"):
        before, after = (RandomWeightsPosterior.from_state(a.state(name)).learner.net for a in (whole, half))
        left = [z.ne(0) for layer in after.layers.values() for z in layer.z()]
        dense = torch.cat([z.abs().flatten() for layer in before.layers.values() for z in layer.z()])
        chosen = torch.cat([mask.flatten() for mask in left])
        assert chosen.sum() == len(dense) // 2 and dense[chosen].min() >= dense[~chosen].max()
    above, own = records.read("student", "b-whole"), records.read("student", "b-half")
    for name, total in own["total_seconds"].items():
        assert total == pytest.approx(own["seconds"][name] + above["seconds"][name])
    removed = [a - b for a, b in zip(parameters("b-whole"), parameters("b-half"), strict=True)]
    assert removed == [len(dense) - len(dense) // 2] * 4
    fitted = load_predictor(places.artifact("student", "b-half"), 1, 1)
    assert isinstance(fitted.posterior, RandomWeightsPosterior) and fitted.posterior.learner.spec.kept
