"""Students of other runs: the inputs that params.yaml may name, the order of stages, the code digest, and a fit."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bdl_pipe.errors import UserError
from bdl_pipe.registry import METHODS, load_predictor
from pipeline.core import places
from pipeline.core.load import load, typed
from pipeline.core.model import Params
from pipeline.core.settings import Settings
from pipeline.plan import code, plan, sources
from pipeline.plan.plan import one
from pipeline.stages import fit, prepare
from pipeline.stages.report import infos
from pipeline.work.executor import Inline
from tests.cases import CONFIGS, DARK_KNOWLEDGE, SGMCMC
from tests.pipeline.test_params import GOOD

SETTINGS = Settings(executor="inline", checkpoint_seconds=1e6)
CLOSED_FORM = {"dataset": "boston", "method": "gp", "setting": "whole", "seeds": 1, "input": "prepare/boston"}
STUDENT = {**CLOSED_FORM, "method": "dark_knowledge", "setting": "student", "seeds": 2, "input": "student/b-whole"}
ONLINE = {
    "name": "online",
    "target": SGMCMC["target"],
    "sampler": SGMCMC["sampler"],
    "burn_in": 0,
    "chains": 2,
    "chain_steps": 1,
    "average": None,
}
RAW: dict[str, Any] = {
    **GOOD,
    "datasets": {**GOOD["datasets"], "other": GOOD["datasets"]["boston"]},
    "trajectories": {},
    "methods": {"gp": CONFIGS["gp", "regression"], "dark_knowledge": {**DARK_KNOWLEDGE, "steps": 3}},
    "runs": {"b-whole": CLOSED_FORM, "b-student": STUDENT},
}


def read(folder: Path, **student: Any) -> Params:
    raw = copy.deepcopy(RAW)
    raw["runs"]["b-student"] |= student
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return load(folder / "params.yaml")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "the data alone": (
        {"input": "prepare/boston"},
        "runs.b-student.input must be teacher/<run> or student/<run> for the mode offline, got 'the data alone'",
    ),
    "online": (
        {"override": {"mode": ONLINE}},
        "runs.b-student.input must be prepare/<data set> for the mode online, which runs its own chains, got 'student'",
    ),
    "another data set": (
        {"dataset": "other"},
        "runs.b-student.input must be of the data set other, got 'student/b-whole: boston'",
    ),
    "itself": ({"input": "student/b-student"}, "runs.b-student.input must be a run that is listed earlier"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_of_a_student_is_one_line_that_names_its_key(tmp_path: Path, name: str) -> None:
    change, message = WRONG[name]
    read(tmp_path)
    with pytest.raises(UserError) as caught:
        read(tmp_path, **change)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_the_plan_puts_a_run_before_its_student(tmp_path: Path) -> None:
    stages = plan.plan(read(tmp_path))
    wanted = {"prepare@boston", "student@b-whole", "student@b-student", "evaluate@b-student"}
    assert {*plan.matching(["evaluate@b-student"], stages)} == wanted
    assert list(stages).index("student@b-whole") < list(stages).index("student@b-student")


def test_a_student_depends_on_the_code_of_the_posterior_that_it_reads(tmp_path: Path) -> None:
    params = read(tmp_path)
    assert sources.fit_digest("gp", params) == code.digest("student", "gp")
    both = code.digest("student", "dark_knowledge", ("bdl_pipe.baselines.gp",))
    assert sources.fit_digest("dark_knowledge", params) == both != code.digest("student", "dark_knowledge")


def test_the_report_finds_the_run_that_a_student_imitates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the student's input, or the run that averages the chains of its input; an online student has none."""
    monkeypatch.chdir(tmp_path)
    raw = copy.deepcopy(RAW)
    chains = {"dataset": "boston", "method": "sgmcmc", "seeds": 2, "input": "prepare/boston"}
    raw["methods"]["sgmcmc"], raw["teachers"] = SGMCMC, {"b-chains": chains, "b-others": chains}
    of_chains = {**STUDENT, "setting": "chains", "input": "teacher/b-chains"}
    raw["runs"] |= {
        "b-others": {**CLOSED_FORM, "method": "sgmcmc", "setting": "others", "input": "teacher/b-others"},
        "b-average": {**CLOSED_FORM, "method": "sgmcmc", "setting": "average", "input": "teacher/b-chains"},
        "b-of-chains": of_chains,
        "b-online": {**STUDENT, "setting": "online", "input": "prepare/boston", "override": {"mode": ONLINE}},
    }
    expected = {"b-student": "b-whole", "b-of-chains": "b-average", "b-online": "", "b-whole": None, "b-average": None}
    for without in (set(), {"b-average"}):
        rows = {**raw, "runs": {key: row for key, row in raw["runs"].items() if key not in without}}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(rows, sort_keys=False))
        found = {one.key: one.imitates for one in infos(load(tmp_path / "params.yaml"))}
        assert found == {k: v for k, v in expected.items() if k not in without} | {"b-others": None}
        expected |= {"b-of-chains": ""}


def test_the_report_finds_the_run_that_a_plugins_student_imitates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method declares that it imitates; its input's method may have any name. The control declares nothing."""
    monkeypatch.chdir(tmp_path)
    raw = copy.deepcopy(RAW)
    chains = {"dataset": "boston", "method": "my_chains", "seeds": 2, "input": "prepare/boston"}
    raw["methods"] |= {"my_chains": SGMCMC, "my_student": raw["methods"]["dark_knowledge"]}
    raw["teachers"] = {"b-chains": chains}
    of_chains = {"input": "teacher/b-chains"}
    raw["runs"] |= {
        "b-average": {**CLOSED_FORM, "method": "my_chains", "setting": "average", **of_chains},
        "b-of-chains": {**STUDENT, "method": "my_student", "setting": "chains", **of_chains},
        "b-of-run": {**STUDENT, "method": "my_student", "setting": "run"},
    }
    for imitates, found in ((True, ["b-average", "b-whole"]), (False, [None, None])):
        own = replace(METHODS["dark_knowledge"], name="my_student", imitates=imitates)
        known = {**METHODS, "my_chains": replace(METHODS["sgmcmc"], name="my_chains"), "my_student": own}
        said = {one.key: one.imitates for one in infos(typed(raw, known))}
        assert [said["b-of-chains"], said["b-of-run"]] == found and said["b-student"] == "b-whole"


@pytest.mark.slow
def test_a_student_of_a_run_is_fitted_and_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both seeds of each split imitate the one seed of the run."""
    monkeypatch.chdir(tmp_path)
    params = read(tmp_path)
    prepare.run(one("prepare", "boston", params), params, Inline(SETTINGS), SETTINGS)
    for key in ("b-whole", "b-student"):
        fit.run(one("student", key, params), params, Inline(SETTINGS), SETTINGS)
    fitted = load_predictor(places.artifact("student", "b-student"), 1, 1)
    assert fitted.posterior.state().config["posterior"] == "network_draws"
