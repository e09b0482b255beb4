"""What a study writes: in which order, and that the table and the figure say what the trials were."""

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import study_cases
from study_cases import SETTINGS, planned, trials_of

from pipeline.search import study
from pipeline.search.studies import Trial, figure, table, written


@pytest.fixture
def toy(tmp_path, monkeypatch):
    return study_cases.project(tmp_path, monkeypatch)


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
    drawn = figure.draw("fake-shift", asked.config, trials)
    assert drawn == figure.draw("fake-shift", asked.config, trials)
    other = trials_of(asked, lambda at, seed: {"nll": at["inner.shift+more"] + 2 * seed, "rmse": 1.0})
    assert drawn != figure.draw("fake-shift", asked.config, other)
    text = drawn.decode()
    assert "var(" not in text  # a file of its own has no page's colours
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    assert "NLL -2.500 at shift -3" in ET.fromstring(text).attrib["aria-label"]
    assert figure.draw("fake-shift", asked.config, [Trial(t.point, t.seed, {}, 0.0) for t in trials])


def test_about_a_base_each_axis_has_a_table(toy):
    base = {"inner.shift+more": -3.0, "log": ""}
    asked = planned(toy, base=base, figure=[{"x": "inner.shift+more"}, {"x": "log"}])
    trials = trials_of(asked, lambda at, seed: {"nll": at["inner.shift+more"] - 5 * len(at["log"]), "rmse": 1.0})
    page = table.markdown("shift", asked.config, asked.task, trials, "shift.svg", {})
    shift, log = page.split("| shift | fits |")[1].split("| log | fits |")
    assert "Each table departs from this point in one number alone: shift -3, log ." in page
    assert [line.split("|")[1].strip() for line in shift.splitlines()[2:5]] == ["-3", "-2.25", "1"]
    assert "| log.txt | 2 | 1.000 ± 0.000 | -38.000 ± 0.000 |" in log
    assert figure.draw("fake-shift", asked.config, trials)


def test_the_spread_is_over_seeds_that_did_not_diverge():
    trials = [Trial({"a": 1}, s, scores, 0.0) for s, scores in enumerate([{"nll": 1.0}, {"nll": 3.0}, {}])]
    found = table.over_seeds(trials, "nll")
    assert (found.mean, found.error, found.n) == (2.0, 1.0, 2)
    assert table.over_seeds(trials[2:], "nll") is None


def test_values_are_written_as_in_yaml():
    assert [written(v) for v in (None, True, 0.03, 1e-5, 16, "a")] == ["null", "true", "0.03", "1e-05", "16", "a"]


def test_the_shipped_study_is_whole():
    """Every point of it is a config of its method, and its figure can be drawn."""
    asked = study.plan(Path("params/study/inducing-figure4.yaml"), SETTINGS)
    assert asked.chain.runs[-1].config.layers == {"head": {"rows": 10}}
    metrics = ("accuracy", "nll", "brier", "ece")
    trials = trials_of(asked, lambda at, seed: dict.fromkeys(metrics, 0.5))
    assert b"<svg" in figure.draw(asked.name, asked.config, trials)
