"""Studies without Ray: what is checked before anything runs, which rows are read, and what is written."""

import csv
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tune_cases
import yaml

from bdl_pipe.data import prepared
from bdl_pipe.errors import ArtifactError, UserError
from pipeline import cli
from pipeline.core import places
from pipeline.core.settings import Settings
from pipeline.search import load_data, make_upstream, study
from pipeline.search.study import keys_of, of, values_of, written
from pipeline.search.trial import MILESTONES, TIME, Ended, trial

SETTINGS = Settings()
INLINE = Settings(executor="inline")
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
PLAIN = {"figure": [{"x": "*"}], "names": {}}  # the figure of a grid with one axis
BASE = {"inner.shift+more": -3.0, "log": ""}


made, toy = tune_cases.made, tune_cases.toy


def file_of(folder, **changes):
    """Write the study's file, with other sections."""
    path = folder / "params/study/fake-shift.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    (only, *_) = changes.get("grid") or ["none"]
    path.write_text(yaml.safe_dump({**STUDY, **changes}, allow_unicode=True).replace("'*'", only))
    return path


def planned(folder, **changes):
    return study.plan(file_of(folder, **changes), SETTINGS)


def fits_of(asked, score=lambda point, seed: {"nll": 1.0, "rmse": 2.0}):
    seeds = range(asked.config.seeds)
    return [
        Ended({**values_of(point), "seed": seed}, score(point, seed), seconds=0.5)
        for point in asked.config.points()
        for seed in seeds
    ]


def reports_of(asked, *samples, monkeypatch):
    """Run trials without Ray, and return what each reports at its end."""
    from ray import tune

    reported = []
    monkeypatch.setattr(tune, "report", lambda scores, checkpoint=None: reported.append(scores))
    monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
    with places.rooted(places.WORK / "study" / asked.path.stem):
        data = load_data(asked.branch, asked.params, INLINE)
        states = make_upstream(asked.branch, data, asked.params, INLINE)
    for sample in samples:
        trial(sample, asked.branch, data, states)
    return [scores for scores in reported if scores[TIME] == MILESTONES], data


def sample_of(shift, log="", seed=0):
    return {"inner.shift": shift, "inner.more": shift, "log": log, "seed": seed}


def test_an_axis_may_set_several_keys():
    assert keys_of("weights.rows+cols") == ("weights.rows", "weights.cols")
    assert keys_of("weights.rows + training.batch") == ("weights.rows", "training.batch")
    assert keys_of("draws+validation_draws") == ("draws", "validation_draws")
    assert values_of({"a.b+c": 2, "d": None}) == {"a.b": 2, "a.c": 2, "d": None}
    assert [written(v) for v in (None, True, 0.03, 1e-5, 16, "a")] == ["null", "true", "0.03", "1e-05", "16", "a"]


def test_every_point_is_tried_with_every_seed(toy):
    asked = planned(toy)
    assert [list(p.values()) for p in asked.config.points()] == [
        [shift, log] for shift in (-3.0, -2.25, 1.0) for log in ("", "log.txt")
    ]
    samples = asked.config.samples()
    assert samples[:2] == [sample_of(-3.0), sample_of(-3.0, seed=1)] and len(samples) == 12
    fits = [Ended(sample, {}) for sample in reversed(samples)]
    assert of(fits, {"inner.shift+more": 1.0, "log": "log.txt"}) == [fits[1], fits[0]]


def test_about_a_base_one_axis_differs_at_a_time(toy):
    asked = planned(toy, base={"inner.shift+more": -2.25, "log": ""}, figure=[{"x": "inner.shift+more"}])
    points = [tuple(p.values()) for p in asked.config.points()]
    assert points == [(-2.25, ""), (-3.0, ""), (1.0, ""), (-2.25, "log.txt")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sedes": 1}, r"fake-shift\.yaml: sedes is not a known key \(did you mean seeds"),
        ({"seeds": 0}, r"fake-shift\.yaml: seeds must be >= 1, got 0"),
        ({"grid": {}}, "grid must not be empty"),
        (
            {"grid": {"inner.shfit": [1.0]}, **PLAIN},
            r"methods\.shift\.inner\.shfit is not a known key \(did you mean shift",
        ),
        (
            {"grid": {"inner.shift": [1.0, "high"]}, **PLAIN},
            r"methods\.shift\.inner\.shift must be a num.*got 'high'",
        ),
        (
            {"grid": {"inner.shift": [1.0, [2.0]]}},
            r"grid\.inner\.shift\[1\] must be bool or int.*got \[2\.0\]",
        ),
        ({"grid": {"inner.shift": [1.0, 1.0]}}, r"grid\.inner\.shift must list values, none of them twice"),
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
        ({"figure": [{"x": "log", "lines": "log"}]}, r"figure\[0\]\.lines must be another axis than x, got 'log'"),
        ({"figure": [{"x": "log", "at": {"inner.shift+more": 7}}]}, r"figure\[0\]\.at\.inner.*one of -3, -2\.25, 1"),
        ({"base": {"log": ""}}, r"base must have a value of inner\.shift\+more, log, got \['log'\]"),
        ({"base": {"log": "", "inner.shift+more": 7}}, r"base\.inner\.shift\+more must be one of -3, -2\.25, 1, got 7"),
        ({"base": BASE}, r"figure\[0\] must have x alone"),
        ({"method": "shfit"}, r"fake-shift\.yaml: shfit: is not a method of any run \(did you mean shift"),
        ({"overlay": {"rnus": {}}}, r"fake-shift\.yaml: rnus is not a known section \(did you mean runs"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(toy, changes, said, capsys, monkeypatch):
    monkeypatch.setattr(study, "opened", lambda *_: pytest.fail("something ran"))
    assert cli.main(["study", str(file_of(toy, **changes))]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (toy / "results").exists()


def test_the_file_is_called_after_its_family(toy):
    with pytest.raises(UserError, match="<family>-<name>"):
        study.plan(file_of(toy).rename(toy / "study.yaml"), SETTINGS)


def test_the_overlay_counts_and_params_yaml_stays(toy):
    before = (toy / "params.yaml").read_text()
    asked = planned(toy, overlay={"methods": {"level": {"add": 9.0}}})
    assert asked.branch.upstream[0].config.add == 9.0
    assert (toy / "params.yaml").read_text() == before
    assert asked.branch.facts() != planned(toy).branch.facts()


def test_the_scores_are_those_of_the_validation_rows_in_closed_form(toy, monkeypatch):
    """Each seed has its own random stream, and a fit that diverges is a trial without scores."""
    samples = [sample_of(-2.25), sample_of(-2.25, "log.txt", 1), sample_of(tune_cases.NAN_ABOVE + 1)]
    (first, second, diverged), data = reports_of(planned(toy), *samples, monkeypatch=monkeypatch)
    mean = data.train.targets.mean() + 4 + 0.5 - 4.5  # the teachers' levels, and the shift twice

    def closed(targets):
        errors = (targets - mean) ** 2
        return {"nll": 0.5 * errors.mean() + 0.5 * np.log(2 * np.pi), "rmse": np.sqrt(errors.mean())}

    right, wrong = closed(data.validation.targets), closed(data.train.targets)
    assert {k: first[k] for k in right} == pytest.approx(right, rel=1e-4)
    assert {k: first[k] for k in right} != pytest.approx(wrong, rel=1e-4)
    assert (toy / "log.txt").read_text().split()[2] == "1"
    assert second.keys() == first.keys()
    assert diverged == {TIME: MILESTONES}


def test_test_rows_are_never_read(toy, monkeypatch):
    asked = planned(toy)
    scores, _ = reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)
    holdout = toy / "work/study/fake-shift/holdout/toy"
    monkeypatch.setattr("pipeline.run.body.ensure", lambda *_: False)  # It would be prepared again.
    next(holdout.rglob("test.arrow")).write_bytes(b"not rows")
    shutil.rmtree(toy / "work/holdout")
    assert reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)[0] == scores
    with pytest.raises((ArtifactError, UserError)):  # A process that reads them fails.
        prepared.load_holdout(holdout, 0)
    next((toy / "work/study/fake-shift/prepare/toy").rglob("train.arrow")).write_bytes(b"not rows")
    with pytest.raises((ArtifactError, UserError)):
        reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)


def test_files_are_written_in_order_and_hold_every_fit(toy, monkeypatch):
    asked, order, real = planned(toy), [], study.write_bytes
    monkeypatch.setattr(study, "write_bytes", lambda path, blob: (order.append(path.name), real(path, blob)))

    def score(point, seed):
        shift = point["inner.shift+more"]
        return {} if (shift, seed) == (1.0, 1) else {"nll": shift + seed, "rmse": shift**2, "crps": 0.1}

    fits = fits_of(asked, score)
    shuffled = [fits[i] for i in np.random.default_rng(0).permutation(len(fits))]
    paths = study.write(asked, shuffled, {"commit": "abc"})
    assert order == ["shift.csv", "shift.svg", "shift.md"]
    rows = list(csv.DictReader(paths[0].open()))
    assert [(float(r["inner.shift+more"]), r["log"], int(r["seed"])) for r in rows] == [
        (fit.sampled["inner.shift"], fit.sampled["log"], fit.sampled["seed"]) for fit in fits
    ]
    assert [r["nll"] for r in rows[:2]] == ["-3.0", "-2.0"]
    assert rows[-1]["nll"] == ""  # It diverged.
    page = paths[2].read_text()
    assert "![shift](shift.svg)" in page
    assert (
        "| shift -3, log  | 2 of 2 | 9.0000 ± 0.0000 | -2.5000 ± 0.5000 |" in page
    )  # The standard error of -3 and -2 is 1/2.
    assert "| shift 1, log  | 1 of 2 | 1.0000 | 1.0000 |" in page
    assert "| commit | abc |" in page
    ET.fromstring(paths[1].read_text())


def test_the_figure_is_a_function_of_the_fits(toy):
    asked = planned(toy)
    fits = fits_of(asked, lambda point, seed: {"nll": point["inner.shift+more"] + seed, "rmse": 1.0})
    other = fits_of(asked, lambda point, seed: {"nll": point["inner.shift+more"] + 2 * seed, "rmse": 1.0})
    drawn = study.draw(asked, fits)
    assert drawn == study.draw(asked, fits)
    assert drawn != study.draw(asked, other)
    assert study.draw(asked, [replace(fit, scores={}) for fit in fits])


def test_about_a_base_a_point_is_named_by_what_differs(toy):
    asked = planned(toy, base=BASE, figure=[{"x": "inner.shift+more"}, {"x": "log"}])
    fits = fits_of(asked, lambda point, seed: {"nll": point["inner.shift+more"] - 5 * len(point["log"]), "rmse": 1.0})
    page = study.page("shift", asked, fits, {})
    rows = [line.split("|")[1].strip() for line in page.splitlines() if " of 2 |" in line]
    assert rows == ["base", "shift -2.25", "shift 1", "log log.txt"]
    assert "| log log.txt | 2 of 2 | 1.0000 ± 0.0000 | -38.0000 ± 0.0000 |" in page
    assert study.draw(asked, fits)


def test_the_shipped_studies_are_whole(monkeypatch):
    """Every point is a config of its method, and the figure can be drawn."""
    monkeypatch.chdir(Path(__file__).parents[2])
    planned = [study.plan(path, SETTINGS) for path in sorted(Path("params/study").glob("*.yaml"))]
    asked = planned[0]
    fits = fits_of(asked, lambda point, seed: dict.fromkeys(("accuracy", "nll", "brier", "ece"), 0.5))
    assert b"<svg" in study.draw(asked, fits)
