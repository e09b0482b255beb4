"""Studies: what is checked before anything runs, which rows are read, what is written, that a stopped one goes on."""

import csv
import io
import json
import math
import re
import shutil
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import tune_cases
import yaml

import bdl_pipe.methods
from bdl_pipe.data import prepare
from bdl_pipe.errors import ArtifactError, UserError
from bdl_pipe.progress import Silent
from pipeline import branch, cli, places, study
from pipeline.settings import Settings
from pipeline.studies import Trial, figure, keys_of, numbers, point, table, written

SETTINGS = Settings()
INLINE = Settings(executor="inline")
HERE = Path(__file__).parent
STUDY = {
    "method": "shift",
    "dataset": "toy",
    "run": "toy-shift",
    "overlay": {},
    "grid": {"inner.shift+more": [-3.0, -2.25, 1.0], "log": ["", "log.txt"]},
    "seeds": 2,
    "names": {"inner.shift+more": "shift"},
    "metrics": ["nll", "rmse"],
    "figure": [{"x": "inner.shift+more", "lines": "log"}, {"x": "log", "at": {"inner.shift+more": 1}}],
}
PLAIN = {"figure": [{"x": "*"}], "names": {}}  # the figure of the one axis that there is


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A prepared project whose registry holds the known methods, here and in Ray's workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bdl_pipe.methods, "METHODS", tune_cases.REGISTRY)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tune_cases.project(tmp_path)
    written_study(tmp_path)
    return tmp_path


def written_study(folder, **changes):
    """The study's file, with other sections."""
    path = folder / "params/study/fake-shift.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    (only, *_) = changes.get("grid") or ["none"]
    text = yaml.safe_dump({**STUDY, **changes}, allow_unicode=True).replace("'*'", only)
    path.write_text(text)
    return path


def planned(folder, **changes):
    return study.plan(written_study(folder, **changes), SETTINGS)


def scores_of(asked, at, seed=0):
    """What a trial reports, without Ray."""
    from dataclasses import replace

    with places.rooted(places.WORK / "study" / asked.name):
        data, _ = study.prepared(asked, INLINE)
        states = branch.make_upstream(asked, data, asked.params, INLINE)
        chain = replace(asked.chain, member=seed)
        configs = chain.configs(numbers(at))
        made = chain.make(data, states, configs, Silent())
    return point.validation_scores(made, data, asked.params.evaluate, chain), data


def trials_of(asked, score=lambda at, seed: {"nll": 1.0, "rmse": 2.0}):
    return [Trial(at, seed, score(at, seed), 0.5) for at in asked.config.points() for seed in range(asked.config.seeds)]


def test_an_axis_may_set_several_keys():
    assert keys_of("weights.rows+cols") == ("weights.rows", "weights.cols")
    assert keys_of("weights.rows + learn.batch") == ("weights.rows", "learn.batch")
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
        ({"method": "shfit"}, r"fake-shift\.yaml: shfit: is not a method of any row \(did you mean shift"),
        ({"overlay": {"datasets": {"toy": {"validation": 0}}}}, r"datasets\.toy\.validation must leave rows"),
        ({"overlay": {"rnus": {}}}, r"fake-shift\.yaml: rnus is not a known section \(did you mean runs"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(toy, changes, said, capsys, monkeypatch):
    monkeypatch.setattr(study, "prepared", lambda *_: pytest.fail("something ran"))
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
    monkeypatch.setattr(study.current, "bring", lambda *_: False)  # it would be prepared again
    arrow = next(holdout.rglob("test.arrow"))
    arrow.write_bytes(b"not rows")
    shutil.rmtree(toy / "work/holdout")
    assert scores_of(asked, at)[0] == scores
    with pytest.raises((ArtifactError, UserError)):  # whoever reads them would know
        prepare.load_holdout(holdout, 0)
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
        data, _ = study.prepared(asked, INLINE)
        states = branch.make_upstream(asked, data, asked.params, INLINE)
    monkeypatch.setattr(tune, "report", lambda metrics, checkpoint=None: told.append(metrics))
    monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
    for shift in (1.0, tune_cases.NAN_ABOVE + 1):
        sampled = {"inner.shift+more": shift, "log": "", "seed": 0}
        point.trial(sampled, asked.chain, asked.params.evaluate, data, states)
    whole, diverged = [each for each in told if each["milestone"] == 4]
    assert {"nll", "rmse"} <= set(whole)
    assert diverged == {"milestone": 4}


def test_files_are_written_in_order_and_hold_every_trial(toy, monkeypatch):
    asked, order = planned(toy), []
    real = study.write_bytes
    monkeypatch.setattr(study, "write_bytes", lambda path, blob: (order.append(path.name), real(path, blob)))

    def score(at, seed):
        shift = at["inner.shift+more"]
        return {} if (shift, seed) == (1.0, 1) else {"nll": shift + seed, "rmse": shift**2, "crps": 0.1}

    trials = trials_of(asked, score)
    rng = np.random.default_rng(0)
    paths = study.write(asked, [trials[i] for i in rng.permutation(len(trials))], {"commit": "abc"})
    assert order == ["shift.csv", "shift.svg", "shift.md"]
    rows = list(csv.DictReader(io.StringIO(paths[0].read_text())))
    assert [(float(r["inner.shift+more"]), r["log"], int(r["seed"])) for r in rows] == [
        (t.point["inner.shift+more"], t.point["log"], t.seed) for t in trials
    ]
    assert [r["nll"] for r in rows[:2]] == ["-3.0", "-2.0"]
    assert rows[-1]["nll"] == ""  # diverged
    page = paths[2].read_text()
    assert "![shift](shift.svg)" in page
    assert "| -3 |  | 2 | 9.000 ± 0.000 | -2.500 ± 0.500 |" in page  # the standard error of -3 and -2 is 1/2
    assert "| 1 |  | 1 of 2 | 1.000 | 1.000 |" in page
    assert "| commit | abc |" in page
    ET.fromstring(paths[1].read_text())


def test_the_figure_shows_means_and_seeds_where_they_are(toy):
    """The heights in the drawing are affine in the metric; a panel of other trials is another drawing."""
    asked = planned(toy)
    trials = trials_of(asked, lambda at, seed: {"nll": at["inner.shift+more"] + seed, "rmse": 1.0})
    drawn = figure.draw("fake-shift", asked.config, trials, 110)
    assert drawn == figure.draw("fake-shift", asked.config, trials, 110)
    other = trials_of(asked, lambda at, seed: {"nll": at["inner.shift+more"] + 2 * seed, "rmse": 1.0})
    assert drawn != figure.draw("fake-shift", asked.config, other, 110)
    text = drawn.decode()
    assert "var(" not in text  # a file of its own has no page's colours
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    assert "NLL -2.500 at shift -3" in ET.fromstring(text).attrib["aria-label"]
    assert figure.draw("fake-shift", asked.config, [Trial(t.point, t.seed, {}, 0.0) for t in trials], 110)


def test_the_spread_is_over_seeds_that_did_not_diverge():
    trials = [Trial({"a": 1}, s, scores, 0.0) for s, scores in enumerate([{"nll": 1.0}, {"nll": 3.0}, {}])]
    found = table.stat(trials, "nll")
    assert (found.mean, found.error, found.seeds) == (2.0, 1.0, 2)
    assert table.stat(trials[2:], "nll") is None


def test_values_are_written_as_in_yaml():
    assert [written(v) for v in (None, True, 0.03, 1e-5, 16, "a")] == ["null", "true", "0.03", "1e-05", "16", "a"]


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


def test_the_shipped_study_is_whole():
    """Every point of it is a config of its method, and its figure can be drawn."""
    asked = study.plan(Path("params/study/inducing-figure4.yaml"), SETTINGS)
    assert asked.chain.rows[-1].config.layers == {"head": {"rows": 10}}
    metrics = ("accuracy", "nll", "brier", "ece")
    trials = trials_of(asked, lambda at, seed: dict.fromkeys(metrics, 0.5))
    assert b"<svg" in figure.draw(asked.name, asked.config, trials, 110)


@pytest.mark.slow
def test_a_study_that_is_interrupted_goes_on_and_is_written(toy):
    """Both runs in processes of their own: Ray's workers must import the methods as users' do."""
    log, crash = toy / "starts.txt", toy / "crash"
    overlay = {"methods": {"shift": {"crash": str(crash), "log": str(log)}}}
    grid = {"inner.shift+more": [-3.0, -2.25, 1.0]}
    file = written_study(toy, overlay=overlay, grid=grid, figure=[{"x": "inner.shift+more"}])
    code = (
        "import os, sys, tune_cases, bdl_pipe.methods; from pathlib import Path;"
        "bdl_pipe.methods.METHODS = tune_cases.REGISTRY; from pipeline import cli;"
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
        children = store.execute("select value from tags where key='mlflow.parentRunId'").fetchall()
        keys = store.execute("select distinct key from params").fetchall()
        logged = store.execute("select distinct key from metrics").fetchall()
    assert len(parents) == 1  # the resumed study is the same run
    assert {c for (c,) in children} == {parents[0][0]}
    assert len(children) >= 6
    assert {("inner.shift",), ("inner.more",), ("seed",)} <= set(keys)
    assert {("validation/nll",), ("validation/rmse",)} <= set(logged)
