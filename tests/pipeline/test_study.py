"""Studies without Ray: the checks before anything runs, the rows that are read, and the files that are written."""

import csv
import itertools
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tune_cases
import yaml

from bdl_pipe.errors import ArtifactError, UserError
from bdl_report.grids import values_of
from pipeline.core import overlays, places
from pipeline.core.settings import Settings
from pipeline.prepared import folders
from pipeline.search import load_data, make_upstream, study
from pipeline.search.trial import MILESTONES, TIME, Ended, trial
from tests.pipeline.params_cases import REFUSED

SETTINGS = Settings()
INLINE = Settings(executor="inline")
STUDY = yaml.safe_load("""
{method: shift, dataset: toy, run: toy-shift, overlay: {}, seeds: 2, metrics: [nll, rmse],
 grid: {inner.shift+more: [-3.0, -2.25, 1.0], log: ["", log.txt]}, names: {inner.shift+more: shift},
 figure: [{x: inner.shift+more, lines: log}, {x: log, at: {inner.shift+more: 1}}]}
""")


made, toy = tune_cases.made, tune_cases.toy


def file_of(folder, **changes):
    """Write the study's file, with some sections changed."""
    path = folder / "params/study/fake-shift.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(STUDY | changes))
    return path


def planned(folder, **changes):
    return study.plan(file_of(folder, **changes), SETTINGS)


def fits_of(asked, score=lambda point, seed: {"nll": 1.0, "rmse": 2.0}):
    each = itertools.product(asked.config.points(), range(asked.config.seeds))
    return [Ended({**values_of(point), "seed": seed}, score(point, seed), seconds=0.5) for point, seed in each]


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


@pytest.mark.parametrize(("changes", "message"), REFUSED["study"], ids=str)
def test_a_mistake_in_a_study_is_named_before_anything_runs(toy, changes, message, command, monkeypatch):
    monkeypatch.setattr(study, "opened", lambda *_: pytest.fail("something ran"))
    assert re.search(message, command("study", file_of(toy, **changes), code=2))
    assert not (toy / "results").exists()


def test_a_study_file_without_a_family_in_its_name_is_refused(toy):
    with pytest.raises(UserError, match="<family>-<name>"):
        study.plan(file_of(toy).rename(toy / "study.yaml"), SETTINGS)


def test_the_overlay_of_a_study_applies_and_params_yaml_is_unchanged(toy):
    before = (toy / "params.yaml").read_text()
    asked = planned(toy, overlay={"methods": {"level": {"add": 9.0}}})
    assert asked.branch.upstream[0].config.add == 9.0
    assert (toy / "params.yaml").read_text() == before
    assert asked.branch.facts() != planned(toy).branch.facts()


def test_the_scores_of_a_study_equal_the_closed_form_on_validation_rows(toy, monkeypatch):
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


def test_a_study_never_reads_test_rows(toy, monkeypatch):
    asked = planned(toy)
    scores, _ = reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)
    holdout = toy / "work/study/fake-shift/holdout/toy"
    monkeypatch.setattr("pipeline.run.body.ensure", lambda *_: False)  # Else the data would be prepared again.
    next(holdout.rglob("test.arrow")).write_bytes(b"not rows")
    shutil.rmtree(toy / "work/holdout")
    assert reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)[0] == scores
    with pytest.raises((ArtifactError, UserError)):  # A process that reads them fails.
        folders.load_holdout(holdout, 0)
    next((toy / "work/study/fake-shift/prepare/toy").rglob("train.arrow")).write_bytes(b"not rows")
    with pytest.raises((ArtifactError, UserError)):
        reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)


def test_the_files_of_a_study_are_written_in_order_and_hold_every_fit(toy, monkeypatch):
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
    assert "| shift -3, log  | 2 of 2 | 9.0000 ± 0.0000 | -2.5000 ± 0.5000 |" in page  # ½: the error of -3 and -2
    assert "| shift 1, log  | 1 of 2 | 1.0000 | 1.0000 |" in page
    assert "| commit | abc |" in page
    ET.fromstring(paths[1].read_text())


@pytest.mark.slow
def test_every_shipped_study_is_valid_and_the_first_figure_can_be_drawn(tmp_path, monkeypatch):
    """Every study can be planned on the whole comparison: each point is a config of its method. One figure is drawn."""
    root = Path(__file__).parents[2]
    for name in ("params", "data"):
        (tmp_path / name).symlink_to(root / name)
    shutil.copy(root / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    overlays.apply(Path("params/comparison.yaml"))
    planned = [study.plan(path, SETTINGS) for path in sorted(Path("params/study").glob("*.yaml"))]
    asked = planned[0]
    fits = fits_of(asked, lambda point, seed: dict.fromkeys(("accuracy", "nll", "brier", "ece"), 0.5))
    assert b"<svg" in study.draw(asked, fits)


def test_a_study_and_a_search_can_score_by_a_metric_of_stored_predictions(toy, tmp_path, monkeypatch):
    """A study reports it beside the scores of every study; a search reports it alone."""
    asked = planned(tmp_path, metrics=["nll", "augrc"])
    assert asked.metrics == ("rmse", "nll", "coverage_90", "width_90", "crps", "augrc")
    (scores,), _ = reports_of(asked, sample_of(1.0), monkeypatch=monkeypatch)
    assert scores["augrc"] > 0 and {*asked.metrics} <= scores.keys()
    led = replace(asked, branch=replace(asked.branch, metrics=("augrc",), verb="tune"))
    (alone,), _ = reports_of(led, {"inner.shift": 1.0, "inner.more": 1.0}, monkeypatch=monkeypatch)
    assert alone.keys() == {"augrc", TIME} and alone["augrc"] > 0
