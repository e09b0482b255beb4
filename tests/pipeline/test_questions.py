"""The stage that scores stored predictions, and the report's pages of questions, against computation by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.metrics

import bdl_report
from bdl_pipe import artifacts, scores
from bdl_pipe.metrics.ood.rows import Rows, StoredFit
from bdl_pipe.scores import Quantity, Score
from bdl_pipe.seeds import Seed
from bdl_report import RunInfo, columns, question_pages, tables
from pipeline.core import places
from pipeline.stages import scores as stage
from tests.metrics.test_ood_tables import several
from tests.report.report_cases import of_values, write_run
from tests.report.test_report import Page

CLASSES, ROWS = 4, 400


def run_of(dataset: str, name: str) -> Any:
    """The part of an entry of ``runs`` that the stage reads."""
    spec = SimpleNamespace(dataset=dataset, setting="s")
    return SimpleNamespace(spec=spec, method=SimpleNamespace(name=name), dataset=dataset, name=name)


def score(key: str, runs: dict[str, Any]) -> RunInfo:
    """Run the stage, and return what the report reads of the run."""
    params = SimpleNamespace(seed=3, runs=runs, run=lambda kind, key: runs[key])
    stage.run(SimpleNamespace(key=key), params, None, None)  # type: ignore[arg-type]
    evaluated, scored = (places.artifact(kind, key) for kind in ("evaluate", "scores"))
    return RunInfo(key, runs[key].dataset, runs[key].name, "s", evaluated, scores=scored)


def classes(sharp: float, noise: float, seed: int = 0) -> pa.Table:
    """Predictions of the same rows: right, too sharp, or with noise, which depends on the fit's seed."""
    random = Seed(0).numpy()
    logits = 1.5 * random.normal(size=(ROWS, CLASSES))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1)[:, :-1] <= random.random((ROWS, 1))).sum(1)
    stated = np.exp(sharp * (logits + noise * Seed(1).fold(seed).numpy().normal(size=logits.shape)))
    stated /= stated.sum(1, keepdims=True)
    probabilities = stated[np.arange(ROWS), labels]
    columns = {f"p_{k}": stated[:, k] for k in range(CLASSES)}
    return pa.table({"row": np.arange(ROWS), "target": labels, **columns, "log_prob": np.log(probabilities)})


def values(width: float, split: int) -> pa.Table:
    """Gaussian predictions of one output, too narrow or too wide by a factor."""
    import scipy.stats

    random = Seed(1).fold(split).numpy()
    mean, sd = random.normal(size=60), np.exp(random.normal(size=60) / 2)
    target, stated = mean + sd * random.normal(size=60), scipy.stats.norm(mean, width * sd)
    quantiles = {f"q{level:02d}": stated.ppf(level / 100) for level in (5, 50, 95)}
    columns = {"target": target, "mean": mean, "variance": (width * sd) ** 2, **quantiles, "pit": stated.cdf(target)}
    return pa.table({"row": np.arange(60), **columns, "log_prob": stated.logpdf(target)})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunInfo]:
    """Evaluations and their scores: runs of classes with three seeds on one split, of regression on three splits."""
    root = tmp_path_factory.mktemp("questions")
    fits = {f"c-{name}": {(0, seed): classes(*options, seed) for seed in range(3)} for name, options in CASES.items()}
    fits |= {f"v-{name}": {(split, 0): values(width, split) for split in range(3)} for name, width in WIDTHS.items()}
    about = {key: run_of("images" if key[0] == "c" else "rows", key[2:]) for key in fits}
    rows = []
    with places.rooted(root):
        for key, by_fit in fits.items():
            of = about[key]
            metric = "accuracy" if of.dataset == "images" else "coverage_90"
            figures = [Score(*fit, Quantity(metric), 0.9, 60) for fit in by_fit]
            with artifacts.publish(places.artifact("evaluate", key), "evaluate") as folder:
                pq.write_table(scores.table(of.dataset, of.name, "s", figures), folder / "scores.parquet")
                tables_ = [scores.of_fit(table, *fit) for fit, table in by_fit.items()]
                pq.write_table(pa.concat_tables(tables_), folder / "predictions.parquet")
            rows.append(score(key, about))
    return rows


CASES = {"right": (1.0, 0.0), "sharp": (3.0, 0.0), "noisy": (1.0, 2.0)}
WIDTHS = {"right": 1.0, "narrow": 0.4}


def test_the_scores_equal_a_direct_computation_from_the_stored_predictions(runs: list[RunInfo]) -> None:
    """The expected AUGRC is from accuracy and scikit-learn's AUROC of wrong answers (Traub et al. 2024, eq. 7)."""
    table = tables.gather(runs)
    for run in runs[:3]:
        expected: dict[str, list[float]] = {"augrc": [], "coverage_at_5": [], "risk_at_80": []}
        for _, stored in pq.read_table(run.evaluate / "predictions.parquet").to_pandas().groupby("seed"):
            probs = stored[[f"p_{k}" for k in range(CLASSES)]].to_numpy()
            wrong = probs.argmax(1) != stored["target"]
            accuracy, auroc = 1 - wrong.mean(), sklearn.metrics.roc_auc_score(wrong, -probs.max(1))
            expected["augrc"].append((1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2)
            ordered = wrong.to_numpy()[np.argsort(-probs.max(1))].cumsum() / np.arange(1, ROWS + 1)
            expected["risk_at_80"].append(ordered[319])
            held = np.flatnonzero(ordered <= 0.05 + 1e-12)
            expected["coverage_at_5"].append((held[-1] + 1) / ROWS if len(held) else 0)
        for name, values_ in expected.items():
            estimate = table.estimate(run.key, Quantity(name))
            assert estimate is not None and estimate.mean == pytest.approx(np.mean(values_), rel=1e-9), name
        assert table.drawn["risk"][run.key][0.8] == pytest.approx(np.mean(expected["risk_at_80"]))
    counts = table.drawn["pit"]["v-right"]
    assert counts.sum() == 180 and len(counts) == 10


def test_equal_predictions_of_two_runs_get_equal_scores(runs: list[RunInfo]) -> None:
    """The halves of the rows that are drawn at random are the same for all runs."""
    about = {key: run_of("images", key) for key in ("a", "b")}
    with places.rooted(runs[0].evaluate.parents[1]):
        for key in about:
            with artifacts.publish(places.artifact("evaluate", key), "evaluate") as folder:
                pq.write_table(scores.of_fit(classes(1.0, 0.0), 0, 0), folder / "predictions.parquet")
            score(key, about)
        one, other = (scores.read(places.artifact("scores", key) / "scores.parquet") for key in about)
    assert one["value"].equals(other["value"]) and len(one) > 20


def test_each_question_has_sentences_figures_and_a_table_with_the_best_run_first(runs: list[RunInfo]) -> None:
    table = tables.gather(runs)
    trust = question_pages.answers(table, "trust")["parts"]
    assert list(trust) == ["images"]
    shown, smallest = trust["images"]["sentences"]
    assert shown.startswith("Probabilities: 2 of 3 runs are miscalibrated") and shown.endswith("detected for: right.")
    assert smallest.startswith("Smallest error: right has the smallest adaptive ECE, ")
    (grid,) = trust["images"]["grids"]
    assert grid.head[1:4] == ["Adaptive ECE %", "Adaptive ECE by chance %", "Adaptive ECE p"]
    assert grid.rows[0][0].text == "right" and grid.rows[0][1].best
    assert [row[1].value for row in grid.rows] == sorted(row[1].value for row in grid.rows)

    intervals = question_pages.answers(table, "intervals")["parts"]
    distributions, held, thirds, narrowest = intervals["rows"]["sentences"]
    assert distributions.startswith("Distributions: 1 of 2 runs are miscalibrated")
    assert held.startswith("90 % intervals: ") and "agrees with 90 %" in held
    assert thirds.startswith("narrow: 90 % intervals cover ") and thirds.endswith(" third of the widest intervals.")
    assert [remark for remark in table.remarks() if remark == ("warn", f"{thirds[8:-1]}. Runs: v-narrow")]
    assert table.warned == 1
    assert narrowest.startswith("Narrowest at equal coverage: ") and "statistically tied with" in narrowest
    assert intervals["images"]["figures"] == []
    levels, *histograms = intervals["rows"]["figures"]
    assert len(histograms) == 2 == len(levels.names) and "0 outside of the band of chance" in histograms[0].alt

    refuse = question_pages.answers(table, "refuse")["parts"]
    least, answered, _ = refuse["images"]["sentences"]
    assert least.startswith("Lowest cost of rejection: ") and "noisy" not in least
    assert answered.startswith("Accepted: ") and " % of the rows with at most 1 % wrong and " in answered
    assert [len(refuse[name]["figures"]) for name in ("images", "rows")] == [1, 1]
    assert question_pages.answers(table, "unseen") is None


def test_probabilities_that_one_of_three_tests_finds_wrong_are_miscalibrated(tmp_path: Path) -> None:
    """The smallest p-value counts three times; without that, the control, the run with .02 would be miscalibrated."""
    ps, errors = ("ece_adaptive_p", "ece_class_wise_p", "ece_smooth_p"), ("ece_adaptive", "ece_adaptive_expected")
    made = {"class_wise": (0.4, 0.005, 0.3), "fine": (0.02, 0.5, 0.6)}
    of = {name: of_values(dict.fromkeys(errors, 0.01) | dict(zip(ps, p, strict=True))) for name, p in made.items()}
    table = tables.gather([write_run(tmp_path, "d", name, "s", values) for name, values in of.items()])
    (shown, _) = question_pages.answers(table, "trust")["parts"]["d"]["sentences"]
    assert "1 of 2 runs are miscalibrated" in shown and shown.endswith("detected for: fine.")


def test_pages_are_well_formed_and_link_to_each_other(runs: list[RunInfo], tmp_path: Path) -> None:
    bdl_report.build(runs, tmp_path / "out", provenance={}, dpi=80)
    paths = [(tmp_path / "out" / name).resolve() for name in ("index.html", "pages/vega.js")]
    paths += [(tmp_path / "out/pages" / f"{name}.html").resolve() for name in ("trust", "intervals", "refuse")]
    assert {*paths} == {path.resolve() for path in (tmp_path / "out").rglob("*.*") if path.suffix in (".html", ".js")}
    for path in paths[:1] + paths[2:]:
        page = Page(path.read_text())
        assert page.open == [] and {(path.parent / u).resolve() for u in page.urls if u[0] not in "#d"} == {*paths}
        ids = [facts["id"] for _, facts in page.tags if "id" in facts]
        assert len(ids) == len(set(ids))
    stored = pq.read_table(tmp_path / "out/comparison.parquet")
    assert {"augrc", "ece_smooth_p", "width_at_90", "accuracy"} <= set(stored["metric"].to_pylist())


def test_scores_of_an_earlier_evaluation_are_left_out(runs: list[RunInfo], tmp_path: Path) -> None:
    run = runs[0]
    with artifacts.publish(tmp_path / "new", "evaluate", about={"again": 1}) as folder:
        for name in ("scores", "predictions"):
            (folder / f"{name}.parquet").write_bytes((run.evaluate / f"{name}.parquet").read_bytes())
    again = RunInfo(run.key, "images", "right", "s", tmp_path / "new", scores=run.scores)
    table = tables.gather([again])
    assert Quantity("accuracy") in table.quantities() and Quantity("augrc") not in table.quantities()
    assert question_pages.answers(table, "refuse") is None


def stored_rows(fits: list[StoredFit]) -> pa.Table:
    """The rows as evaluation stores them, of each seed of one split."""

    def vectors(values: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])

    parts = []
    for seed, fit in enumerate(fits):
        for name, rows in {"train": fit.train, "test": fit.test, **fit.others}.items():
            numbers = {"split": np.zeros(len(rows), int), "seed": np.full(len(rows), seed), "row": np.arange(len(rows))}
            columns = {"log_probs": rows.log_probs, "features": rows.features, "logits": rows.logits}
            lists = {column: vectors(values) for column, values in columns.items() if values is not None}
            extra = {f"score_{score}": values for score, values in rows.own.items()}
            parts.append(pa.table({"set": [name] * len(rows), "target": rows.labels, **numbers, **lists, **extra}))
    return pa.concat_tables(parts)


def test_the_page_of_unseen_data_has_every_score_on_near_and_far_sets(tmp_path: Path) -> None:
    """Areas are as in scikit-learn, errors are over seeds; a run without stored rows is in no table by score."""
    fits = {"whole": [several(0)], "bare": [several(seed, features=False) for seed in range(2)], "absent": []}
    runs, about = [], {name: run_of("fashion_mnist", name) for name in fits}
    with places.rooted(tmp_path):
        for name, seeds in fits.items():
            of = [Quantity("auroc", "ood", set_, score="max_prob") for set_ in ("held_out", "noise")]
            figures = [Score(0, 0, quantity, 0.5, 50) for quantity in of]
            with artifacts.publish(places.artifact("evaluate", name), "evaluate") as folder:
                pq.write_table(scores.table("fashion_mnist", name, "s", figures), folder / "scores.parquet")
                pq.write_table(scores.of_fit(classes(1.0, 0.0), 0, 0), folder / "predictions.parquet")
                if seeds:
                    pq.write_table(stored_rows(seeds), folder / "unfamiliar.parquet")
            runs.append(score(name, about))
    page, grids = question_pages.unseen(tables.gather(runs))

    for sentence, group, sets in zip(page, ("near", "far"), ("held_out", "noise"), strict=True):
        assert sentence.startswith(f"{group.capitalize()} sets ({sets}): ")
        assert sentence.lower().count(f"{group} sets") == 1 and " on " not in sentence.lower()
        assert " has the largest mean AUROC, " in sentence and " of 2 runs, and no score" in sentence
    near, far, *rates = grids[:4]
    assert [grid.title.split(" by each score, on ") for grid in (near, far, *rates)] == [
        [metric, sets] for metric in ("AUROC %", "FPR95 %") for sets in ("near sets (held_out)", "far sets (noise)")
    ]
    assert [grid.title for grid in grids[4:]] == ["against held_out", "against noise"]
    assert [[row[0].text for row in grid.rows] for grid in grids] == [["whole", "bare"]] * 4 + [[*fits]] * 2

    for grid, other in ((near, "held_out"), (far, "noise")):
        whole, bare = (dict(zip(grid.head, row, strict=True)) for row in grid.rows)
        areas = {name: [100 * auroc(fit.test, fit.others[other]) for fit in seeds] for name, seeds in fits.items()}
        assert whole["Entropy"].value == pytest.approx(areas["whole"][0], rel=1e-9)
        assert whole["Entropy"].small.startswith("± "), "of one fit, over its rows"
        assert bare["Entropy"].value == pytest.approx(np.mean(areas["bare"]), rel=1e-9)
        assert bare["Entropy"].figure == f"{np.mean(areas['bare']):.1f} ± {abs(np.diff(areas['bare'])[0]) / 2:.1f}"
        assert bare["Energy"].text == bare["Nearest neighbours"].text == columns.NOTHING
        assert not whole["Nearest neighbours"].best, "no other run has this score"
        assert whole["Entropy"].best is (whole["Entropy"].value > bare["Entropy"].value) is not bare["Entropy"].best
    for grid in rates:
        whole, bare = (dict(zip(grid.head, row, strict=True)) for row in grid.rows)
        assert whole["Entropy"].value is not None and whole["Entropy"].small == "", "one fit has no error"
        assert bare["Entropy"].small.startswith("± ")
        assert whole["Entropy"].best is (whole["Entropy"].value < bare["Entropy"].value)


def auroc(inside: Rows, outside: Rows) -> float:
    """Return the AUROC of minus the entropy."""
    values = [(np.exp(rows.log_probs) * rows.log_probs).sum(1) for rows in (inside, outside)]
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    return float(sklearn.metrics.roc_auc_score(truth, np.concatenate(values)))
