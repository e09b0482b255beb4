"""Studies: what is checked before anything runs, which rows are read, what is written, that a stopped one goes on."""

import csv
import json
import math
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import study_cases
import tune_cases
from study_cases import HERE, PLAIN, SETTINGS, STUDY, planned, written_study

from bdl_pipe.data import prepared
from bdl_pipe.errors import ArtifactError, UserError
from bdl_pipe.progress import Silent
from pipeline import cli
from pipeline.core import places
from pipeline.core.settings import Settings
from pipeline.search import branch, study
from pipeline.search.studies import keys_of, numbers, point

INLINE = Settings(executor="inline")
BASE = {"inner.shift+more": -3.0, "log": ""}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    return study_cases.project(tmp_path, monkeypatch)


def scores_of(asked, at, seed=0):
    """What a trial reports, without Ray."""
    from dataclasses import replace

    with places.rooted(places.WORK / "study" / asked.name):
        data = branch.load_data(asked, asked.params, INLINE)
        states = branch.make_upstream(asked, data, asked.params, INLINE)
        chain = replace(asked.chain, repeat=seed)
        configs = chain.configs(numbers(at))
        made = chain.make(data, states, configs, Silent())
    return point.validation_scores(made, data, asked.params.evaluate, chain), data


def test_an_axis_may_set_several_keys():
    assert keys_of("weights.rows+cols") == ("weights.rows", "weights.cols")
    assert keys_of("weights.rows + training.batch") == ("weights.rows", "training.batch")
    assert keys_of("draws+validation_draws") == ("draws", "validation_draws")
    assert numbers({"a.b+c": 2, "d": None}) == {"a.b": 2, "a.c": 2, "d": None}


def test_every_point_is_tried_with_every_seed(toy):
    asked = planned(toy)
    assert [list(p.values()) for p in asked.config.points()] == [
        [shift, log] for shift in (-3.0, -2.25, 1.0) for log in ("", "log.txt")
    ]
    assert [r.key for r in asked.upstream] == ["toy-level"]
    assert asked.name == "fake-shift"
    assert asked.stem == Path("results/fake/shift")


def test_about_a_base_one_axis_differs_at_a_time(toy):
    asked = planned(toy, base={"inner.shift+more": -2.25, "log": ""}, figure=[{"x": "inner.shift+more"}])
    points = [tuple(p.values()) for p in asked.config.points()]
    assert points == [(-2.25, ""), (-3.0, ""), (1.0, ""), (-2.25, "log.txt")]
    assert [p["inner.shift+more"] for p in asked.config.departures("inner.shift+more")] == [-3.0, -2.25, 1.0]
    assert asked.config.held(asked.config.figure[0]) == {"log": ""}
    called = [asked.config.called({"point": point, "seed": 1}) for point in asked.config.points()]
    assert called[:2] == [{"seed": 1}, {"shift": -3.0, "seed": 1}]
    assert asked.identity("data") != planned(toy).identity("data")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sedes": 1}, r"fake-shift\.yaml: sedes is not a known key \(did you mean seeds"),
        ({"seeds": 0}, r"fake-shift\.yaml: seeds must be >= 1, got 0"),
        ({"grid": {}}, "grid must have an axis"),
        (
            {"grid": {"inner.shfit": [1.0]}, **PLAIN},
            r"methods\.shift\.inner\.shfit is not a known key \(did you mean shift",
        ),
        (
            {"grid": {"inner.shift": [1.0, "high"]}, **PLAIN},
            r"methods\.shift\.inner\.shift must be a num.*got 'high'",
        ),
        ({"grid": {"inner.shift": [1.0, [2.0]]}}, r"grid\.inner\.shift must list numbers, texts.*got \[2\.0\]"),
        ({"grid": {"inner.shift": [1.0, 1.0]}}, r"grid\.inner\.shift must not list a value twice"),
        ({"grid": {"inner.shift+shift": [1.0]}}, r"must not vary a key twice, got 'inner\.shift'"),
        (
            {"grid": {"inner.more": [1.0], "inner.shift+more": [1.0]}},
            r"grid\.inner\.shift\+more must not vary.*\.more",
        ),
        ({"grid": {"inner.shift+": [1.0]}}, r"grid\.inner\.shift\+ must be keys"),
        ({"grid": {"seed": [1]}}, r"grid\.seed must be keys"),
        ({"grid": {"inner.shift": []}}, r"grid\.inner\.shift must list values"),
        ({"metrics": ["ece"]}, r"metrics\[0\] must be one of regression.*got 'ece'"),
        ({"names": {"more": "m"}}, r"names\.more must be an axis"),
        ({"figure": [{"x": "log"}]}, r"figure\[0\]\.at must have a value of inner\.shift\+more, got \[\]"),
        ({"figure": [{"x": "lag"}]}, r"figure\[0\]\.x must be an axis.*got 'lag'"),
        ({"figure": [{"x": "log", "at": {"inner.shift+more": 7}}]}, r"figure\[0\]\.at\.inner.*one of -3, -2\.25, 1"),
        ({"base": {"log": ""}}, r"base must have a value of inner\.shift\+more, log, got \['log'\]"),
        ({"base": {"log": "", "inner.shift+more": 7}}, r"base\.inner\.shift\+more must be one of -3, -2\.25, 1, got 7"),
        ({"base": BASE}, r"figure\[0\]\.(lines|at) must be left out"),
        ({"method": "shfit"}, r"fake-shift\.yaml: shfit: is not a method of any run \(did you mean shift"),
        ({"overlay": {"datasets": {"toy": {"validation": 0}}}}, r"datasets\.toy\.validation must leave rows"),
        ({"overlay": {"rnus": {}}}, r"fake-shift\.yaml: rnus is not a known section \(did you mean runs"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(toy, changes, said, capsys, monkeypatch):
    monkeypatch.setattr(study, "load_data", lambda *_: pytest.fail("something ran"))
    assert cli.main(["study", str(written_study(toy, **changes))]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (toy / "results").exists()


def test_the_file_is_called_after_its_family(toy):
    path = written_study(toy).rename(toy / "study.yaml")
    with pytest.raises(UserError, match="<family>-<name>"):
        study.plan(path, SETTINGS)


def test_the_overlay_counts_and_params_yaml_stays(toy):
    before = (toy / "params.yaml").read_text()
    asked = planned(toy, overlay={"methods": {"level": {"add": 9.0}}})
    assert asked.upstream[0].config.add == 9.0
    assert (toy / "params.yaml").read_text() == before


def test_the_scores_are_those_of_the_validation_rows_in_closed_form(toy):
    scores, data = scores_of(planned(toy), {"inner.shift+more": -2.25, "log": ""})
    mean = data.train.targets.mean() + 4 + 0.5 - 4.5  # the teachers' levels, and the shift twice

    def closed(targets):
        errors = (targets - mean) ** 2
        return {"nll": 0.5 * errors.mean() + 0.5 * math.log(2 * math.pi), "rmse": math.sqrt(errors.mean())}

    right, wrong = closed(data.validation.targets), closed(data.train.targets)
    assert {k: scores[k] for k in right} == pytest.approx(right, rel=1e-4)
    assert {k: scores[k] for k in right} != pytest.approx(wrong, rel=1e-4)


def test_test_rows_are_never_read(toy, monkeypatch):
    asked, at = planned(toy), {"inner.shift+more": 1.0, "log": ""}
    scores, _ = scores_of(asked, at)
    holdout = toy / "work/study/fake-shift/holdout/toy"
    monkeypatch.setattr(branch.body, "ensure", lambda *_: False)  # it would be prepared again
    arrow = next(holdout.rglob("test.arrow"))
    arrow.write_bytes(b"not rows")
    shutil.rmtree(toy / "work/holdout")
    assert scores_of(asked, at)[0] == scores
    with pytest.raises((ArtifactError, UserError)):  # whoever reads them would know
        prepared.load_holdout(holdout, 0)
    validation = next((toy / "work/study/fake-shift/prepare/toy").rglob("train.arrow"))
    validation.write_bytes(b"not rows")
    with pytest.raises((ArtifactError, UserError)):
        scores_of(asked, at)


def test_seeds_have_addresses_of_their_own(toy):
    asked = planned(toy)
    for seed in (0, 1):
        scores_of(asked, {"inner.shift+more": 1.0, "log": "log.txt"}, seed)
    assert [line.split()[2] for line in (toy / "log.txt").read_text().splitlines()] == ["0", "1"]


def test_a_fit_that_diverges_is_a_trial_without_scores(toy, monkeypatch):
    from ray import tune

    asked, told = planned(toy), []
    with places.rooted(places.WORK / "study" / asked.name):
        data = branch.load_data(asked, asked.params, INLINE)
        states = branch.make_upstream(asked, data, asked.params, INLINE)
    monkeypatch.setattr(tune, "report", lambda scores, checkpoint=None: told.append(scores))
    for shift in (1.0, tune_cases.NAN_ABOVE + 1):
        sampled = {"point": {"inner.shift+more": shift, "log": ""}, "seed": 0}
        point.trial(sampled, asked.chain, asked.params.evaluate, data, states)
    whole, diverged = [each for each in told if each["milestone"] == 4]
    assert {"nll", "rmse"} <= set(whole)
    assert set(diverged) == {"milestone", "seconds"}


def test_a_study_of_other_numbers_is_not_gone_on_with(toy):
    asked = planned(toy)
    known = asked.identity("data")
    assert known == planned(toy).identity("data")
    others = [{"seeds": 3}, {"grid": {"inner.shift+more": [-3.0, 1.0], "log": [""]}, "figure": STUDY["figure"][:1]}]
    others += [{"overlay": {"evaluate": {"batch": 7}}}, {"overlay": {"seed": 4}}]
    assert known not in [planned(toy, **changes).identity("data") for changes in others]
    assert known != asked.identity("other data")
    folder = toy / "s"
    branch.begin(folder, known, asked.name, resume=False)
    (folder / branch.RECORD).write_text(json.dumps({"identity": known, "parent": "p"}))
    with pytest.raises(UserError, match="other params, data, grid"):
        branch.begin(folder, asked.identity("other data"), asked.name, resume=True)


@pytest.mark.slow
def test_a_study_that_is_interrupted_goes_on_and_is_written(toy):
    """Both runs in processes of their own: Ray's workers must import the methods as users' do."""
    log, crash = toy / "starts.txt", toy / "crash"
    overlay = {"methods": {"shift": {"crash": str(crash), "log": str(log)}}}
    grid = {"inner.shift+more": [-3.0, -2.25, 1.0]}
    file = written_study(toy, overlay=overlay, grid=grid, figure=[{"x": "inner.shift+more"}])
    code = (
        "import os, sys, tune_cases, bdl_pipe.registry; from pathlib import Path;"
        "bdl_pipe.registry.METHODS = tune_cases.REGISTRY; from pipeline import cli;"
        "'--resume' in sys.argv or Path('crash').write_text(str(os.getpid()));"
        "sys.exit(cli.main(sys.argv[1:]))"
    )

    def go(*more):
        command = [sys.executable, "-c", code, "study", str(file.relative_to(toy)), "--max-concurrent", "1", *more]
        root = HERE.parents[1]
        found = ":".join(map(str, (HERE, root, root / "src")))
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": found, "HOME": str(toy), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=toy, env=env, capture_output=True, text=True, timeout=250)

    first = go()
    assert "go on with --resume" in first.stderr, first.stderr[-3000:]
    assert first.returncode == 130
    assert not (toy / "results").exists()
    crash.unlink()
    second = go("--resume")
    assert second.returncode == 0, second.stderr[-3000:]
    starts = [line.split() for line in log.read_text().splitlines()]
    assert int(starts[0][1]) == 0
    assert max(int(start) for _, start, _ in starts) >= tune_cases.STEPS // 4  # from a checkpoint
    rows = list(csv.DictReader((toy / "results/fake/shift.csv").open()))
    assert [(float(r["inner.shift+more"]), int(r["seed"])) for r in rows] == [
        (s, k) for s in (-3.0, -2.25, 1.0) for k in (0, 1)
    ]
    nll = {float(r["inner.shift+more"]): float(r["nll"]) for r in rows}
    assert min(nll, key=nll.get) == -2.25  # 4.5 + twice the shift is 0
    page = (toy / "results/fake/shift.md").read_text()
    assert "| fits | 6 |" in page
    assert json.loads((toy / ".state/study/fake-shift/search.json").read_text())["finished"]
    with sqlite3.connect(toy / "mlruns/mlflow.db") as store:
        parents = store.execute("select run_uuid from tags where key='stage' and value='study'").fetchall()
        children = store.execute(
            "select t.value, r.status from runs r join tags t on r.run_uuid = t.run_uuid"
            " where t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active'"
        ).fetchall()
        keys = store.execute("select distinct key from params").fetchall()
        logged = store.execute("select distinct key from metrics").fetchall()
    assert len(parents) == 1  # the resumed study is the same run
    assert children == [(parents[0][0], "FINISHED")] * 6  # and so are its trials
    assert {("inner.shift",), ("inner.more",), ("seed",)} <= set(keys)
    assert {("validation/nll",), ("validation/rmse",)} <= set(logged)
