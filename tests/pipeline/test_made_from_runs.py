"""Runs that are made from other runs, pruned runs and students: the order of stages, the code digest, and fits."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from bdl_pipe import artifacts
from bdl_pipe.inducing.methods import RandomWeightsPosterior
from bdl_pipe.registry import METHODS, load_predictor
from pipeline.core import places, records
from pipeline.core.load import typed
from pipeline.plan import code, plan, sources
from pipeline.stages.report import infos
from tests.pipeline import walk
from tests.pipeline.params_cases import REFUSED, params


@pytest.mark.parametrize(("name", "key"), [("pruned", "b-half"), ("imitated", "b-student")])
def test_the_plan_puts_a_run_before_the_run_that_is_made_from_it(name: str, key: str) -> None:
    raw = params(name)
    raw["runs"]["b-last"] = {**raw["runs"]["b-whole"], "setting": "other"}
    loaded = typed(raw)
    stages = plan.plan(loaded)
    needed = {"prepare@boston", "student@b-whole", f"student@{key}", f"evaluate@{key}"}
    assert {*plan.matching([f"evaluate@{key}"], stages)} == needed
    assert plan.plan(loaded, [f"evaluate@{key}"]) == {name: stages[name] for name in needed}
    assert list(stages).index("student@b-whole") < list(stages).index(f"student@{key}")
    assert [run.key for run in loaded.lineage(loaded.run("student", key))] == ["b-whole", key]


def parameters(key: str) -> list[float]:
    rows = pq.read_table(places.artifact("evaluate", key) / "scores.parquet").to_pylist()
    return [r["value"] for r in rows if (r["set"], r["metric"]) == ("cost", "parameters")]


@pytest.mark.slow
def test_pruning_keeps_the_largest_half_and_adds_the_seconds_of_the_whole_run(here: Path) -> None:
    walk.prepared(here, params("pruned"))
    for key in ("b-whole", "b-half"):
        walk.stage("student", key)
        walk.stage("evaluate", key)
    whole, half = (artifacts.load(places.artifact("student", key), "student") for key in ("b-whole", "b-half"))
    assert half.names() == whole.names() and len(half.names()) == 6  # 2 splits of 2 members, and their transforms
    for name in ("0-0", "0-1", "1-0", "1-1"):
        before, after = (RandomWeightsPosterior.from_state(a.state(name)).learner.net for a in (whole, half))
        kept = [z.ne(0) for layer in after.layers.values() for z in layer.z()]
        dense = torch.cat([z.abs().flatten() for layer in before.layers.values() for z in layer.z()])
        chosen = torch.cat([mask.flatten() for mask in kept])
        assert chosen.sum() == len(dense) // 2 and dense[chosen].min() >= dense[~chosen].max()
    above, record = records.read("student", "b-whole"), records.read("student", "b-half")
    for name, total in record["total_seconds"].items():
        assert total == pytest.approx(record["seconds"][name] + above["seconds"][name])
    removed = [a - b for a, b in zip(parameters("b-whole"), parameters("b-half"), strict=True)]
    assert removed == [len(dense) - len(dense) // 2] * 4
    fitted = load_predictor(places.artifact("student", "b-half"), 1, 1)
    assert isinstance(fitted.posterior, RandomWeightsPosterior) and fitted.posterior.learner.spec.kept


RAW = params("imitated")
CLOSED_FORM, STUDENT = (RAW["runs"][key] for key in ("b-whole", "b-student"))
ONLINE = REFUSED["imitated"][1][0]["runs.b-student.override"]
CHAINS = {"dataset": "boston", "method": "sgmcmc", "seeds": 2, "input": "prepare/boston"}


def test_a_student_depends_on_the_code_of_the_posterior_that_it_reads() -> None:
    assert sources.fit_digest("gp", typed(RAW)) == code.digest("student", "gp")
    both = code.digest("student", "dark_knowledge", ("bdl_pipe.baselines.gp",))
    assert sources.fit_digest("dark_knowledge", typed(RAW)) == both != code.digest("student", "dark_knowledge")


def test_the_report_finds_the_run_that_a_student_imitates(here: Path) -> None:
    """It is the student's input, or the run that averages the chains of its input; an online student has none."""
    raw = params("imitated", teachers={"b-chains": CHAINS, "b-others": CHAINS})
    of_chains = {"method": "sgmcmc", "input": "teacher/b-chains"}
    raw["runs"] |= {
        "b-others": {**CLOSED_FORM, "method": "sgmcmc", "setting": "others", "input": "teacher/b-others"},
        "b-average": {**CLOSED_FORM, **of_chains, "setting": "average"},
        "b-of-chains": {**STUDENT, "setting": "chains", "input": "teacher/b-chains"},
        "b-online": {**STUDENT, "setting": "online", "input": "prepare/boston", "override": ONLINE},
    }
    expected = {"b-student": "b-whole", "b-of-chains": "b-average", "b-online": "", "b-whole": None, "b-average": None}
    expected["b-others"] = None
    assert {info.key: info.imitates for info in infos(typed(raw))} == expected
    del raw["runs"]["b-average"], expected["b-average"]
    assert {info.key: info.imitates for info in infos(typed(raw))} == expected | {"b-of-chains": ""}


def test_the_report_finds_the_run_that_a_plugins_student_imitates(here: Path) -> None:
    """The method declares that it imitates; its input's method may have any name. The control declares nothing."""
    methods = RAW["methods"]
    runs = {"my_chains": methods["sgmcmc"], "my_student": methods["dark_knowledge"]}
    raw = params("imitated", methods=runs, teachers={"b-chains": CHAINS | {"method": "my_chains"}})
    of_chains = {"setting": "chains", "input": "teacher/b-chains"}
    raw["runs"] |= {
        "b-average": {**CLOSED_FORM, **of_chains, "method": "my_chains"},
        "b-of-chains": {**STUDENT, **of_chains, "method": "my_student"},
        "b-of-run": {**STUDENT, "method": "my_student", "setting": "run"},
    }
    for imitates, expected in ((True, ["b-average", "b-whole"]), (False, [None, None])):
        runs = replace(METHODS["dark_knowledge"], name="my_student", imitates=imitates)
        registry = {**METHODS, "my_chains": replace(METHODS["sgmcmc"], name="my_chains"), "my_student": runs}
        imitated = {info.key: info.imitates for info in infos(typed(raw, registry))}
        assert [imitated["b-of-chains"], imitated["b-of-run"]] == expected and imitated["b-student"] == "b-whole"
