"""Areas with their errors, and the tables of scores of unfamiliar rows, on rows whose answer is known."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics

from bdl_pipe.metrics import ood
from bdl_pipe.metrics.ood import arrays as fitted
from bdl_pipe.metrics.ood import rows as stored
from bdl_pipe.metrics.ood.rows import Rows, StoredFit
from bdl_pipe.metrics.ood.table import scores_in
from bdl_pipe.plugins import PluginError
from bdl_pipe.seeds import Seed


def tied(count: int, shift: float, seed: int) -> np.ndarray:
    """Scores of few values, so that there are ties within a side and between both."""
    return np.round(Seed(seed).numpy().normal(shift, 1, count) * 2) / 2


def test_an_area_is_the_share_of_pairs_in_order_and_ties_count_half() -> None:
    inside, sets = tied(40, 1, 0), [tied(30, 0, 1), tied(50, 0.5, 2)]
    pairs = [[(a > b) + (a == b) / 2 for a, b in itertools.product(inside, out)] for out in sets]
    areas = ood.area(inside, sets)
    assert areas.mean == pytest.approx(np.mean([np.mean(part) for part in pairs]), rel=1e-12)
    each = [sklearn.metrics.roc_auc_score([1] * 40 + [0] * len(out), np.concatenate([inside, out])) for out in sets]
    assert areas.mean == pytest.approx(np.mean(each), rel=1e-12)


def test_the_error_of_an_area_equals_delongs_formula() -> None:
    """By the kernel's matrix of all pairs: S10/m + S01/n of its row and column means (DeLong et al. 1988, eq. 4–6)."""
    inside, out = tied(40, 1, 0), tied(30, 0, 1)
    kernel = np.greater.outer(inside, out) + np.equal.outer(inside, out) / 2
    variance = kernel.mean(1).var(ddof=1) / 40 + kernel.mean(0).var(ddof=1) / 30
    assert ood.area(inside, [out]).error == pytest.approx(math.sqrt(variance), rel=1e-12)
    twice = ood.area(inside, [out, out])  # one set given twice
    assert twice.mean == pytest.approx(ood.area(inside, [out]).mean)
    np.testing.assert_allclose(twice.inside, kernel.mean(1))


def test_the_error_of_a_difference_counts_that_both_scores_are_of_the_same_rows() -> None:
    """DeLong's covariances are in the variances of the differences of shares of pairs; here for two sets.

    The wrong variant takes the errors of both scores as independent.
    """
    near = tied(40, 1, 0), [tied(30, 0, 1), tied(50, 0.5, 2)]
    far = near[0] + tied(40, 0, 3) / 2, [out + tied(len(out), 0, 4) / 2 for out in near[1]]
    shares = [[np.greater.outer(i, out) + np.equal.outer(i, out) / 2 for out in outs] for i, outs in (near, far)]
    gaps = [one - other for one, other in zip(*shares, strict=True)]
    rows, columns = np.mean([gap.mean(1) for gap in gaps], axis=0), [gap.mean(0) for gap in gaps]
    variance = rows.var(ddof=1) / 40 + sum(column.var(ddof=1) / len(column) for column in columns) / 4
    one, other = ood.area(*near), ood.area(*far)
    assert one.error_to(other) == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert one.error_to(other) < 0.9 * math.hypot(one.error, other.error)


def several(seed: int, *, features: bool = True, gap: float = 3.0, shared: int = 0) -> StoredFit:
    """A fit whose features separate the near set from the test rows, and whose probabilities do not."""
    random, fixed = Seed(seed).fold("fit").numpy(), Seed(shared).fold("rows").numpy()

    def part(count: int, shift: float, labels: bool) -> Rows:
        target = np.arange(count) % 3 if labels else np.full(count, -1)
        centres = 5 * np.eye(6)[target] if labels else np.zeros((count, 6))
        seen = centres + fixed.normal(size=(count, 6)) + shift + 0.3 * random.normal(size=(count, 6))
        logits = random.normal(size=(count, 3))
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        logged = {"max_prob": logs.max(1), "density": random.normal(size=count)}
        if not features:
            return Rows(logs, target, own=logged)
        return Rows(logs, target, seen, logits, np.zeros(6), logged)

    return StoredFit(
        part(60, 0, True), part(50, 0, True), {"held_out": part(40, gap, False), "noise": part(30, 9, False)}
    )


def test_figures_are_means_over_the_sets_of_a_group_and_over_fits() -> None:
    fits = {}
    for seed in (0, 1):
        fit = several(seed)
        fits[0, seed] = replace(fit, others={"clothes": fit.others["held_out"], "noise": fit.others["noise"]})
    one = ood.result("a", "fashion_mnist", fits)
    assert one.sets == {"far": ("clothes", "noise")}
    expected = []
    for fit in fits.values():
        distances = ood.scores_of(fit)["nearest"]
        for name in ("clothes", "noise"):
            truth = [1] * 50 + [0] * len(distances[name])
            expected.append(sklearn.metrics.roc_auc_score(truth, np.concatenate([distances["test"], distances[name]])))
    figure = one.figures["far"]["nearest"]
    assert figure.mean() == pytest.approx(np.mean(expected), rel=1e-12)
    by_fit = np.reshape(expected, (2, 2)).mean(1)
    assert figure.error() == pytest.approx(by_fit.std(ddof=1) / math.sqrt(2), rel=1e-9)
    assert set(figure.values) == {"auroc", "aupr_in", "aupr_out", "fpr95"}


def test_seeds_of_a_split_are_averaged_first() -> None:
    fits = {(split, seed): several(10 * split + seed, gap=0.2, shared=split) for split in range(3) for seed in range(2)}
    figure = ood.result("a", "fashion_mnist", fits).figures["near"]["energy"]
    assert len(figure.values["auroc"]) == 3 and not figure.errors


@pytest.mark.parametrize("seeds", [1, 2])
def test_stored_figures_are_read_back_to_the_last_bit(tmp_path: Path, seeds: int) -> None:
    results = ood.result("a", "fashion_mnist", {(0, seed): several(seed) for seed in range(seeds)})
    pq.write_table(ood.to_table(results), tmp_path / "ood.parquet")
    read = ood.load(tmp_path / "ood.parquet")
    assert (read.name, read.fits, read.sets) == ("", results.fits, results.sets)
    assert [[*of] for of in read.figures.values()] == [[*of] for of in results.figures.values()]
    assert all(vars(read.figures[g][s]) == vars(one) for g, of in results.figures.items() for s, one in of.items())
    errors = results.figures["near"]["nearest"].errors
    fit = ood.scores_of(several(0))
    areas = {name: ood.area(fit[name]["test"], [fit[name]["held_out"]]) for name in ("nearest", "energy")}
    expected = {"nearest": areas["nearest"].error, "energy": areas["nearest"].error_to(areas["energy"])}
    assert {name: errors.get(name) for name in expected} == (expected if seeds == 1 else dict.fromkeys(expected))


def test_the_table_marks_the_best_score_and_has_dashes_without_features() -> None:
    whole = ood.result("whole", "fashion_mnist", {(0, 0): several(0)})
    bare = ood.result("bare", "fashion_mnist", {(0, 0): several(0, features=False)})
    assert whole.tied("near")[0] in ("mahalanobis", "nearest", "relative_mahalanobis")
    assert "max_softmax" not in whole.tied("near")
    header, lines = ood.table([whole, bare], "near")
    assert header[:3] == ["Run", "Max softmax", "Max logit"] and header[-1] == "Density"
    by_name = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
    assert by_name["bare"]["ViM"] == by_name["bare"]["Energy"] == by_name["bare"]["Nearest neighbours"] == "–"
    assert by_name["whole"][stored.label_of(whole.tied("near")[0])].startswith("**")
    assert "±" in by_name["bare"]["Entropy"] and "±" not in ood.table([whole], "near", "fpr95")[1][0][1]
    text = ood.markdown(header, lines).splitlines()
    assert text[1] == "| --- " + "| ---: " * (len(header) - 1) + "|" and len(text) == 4
    sentence = ood.sentence([whole, whole], "near")
    assert "On near sets (held_out)" in sentence and stored.label_of(whole.ordered("near")[0]) in sentence
    assert ood.sentence([whole], "far").startswith("On far sets (noise)")
    assert ood.sentence([], "near") == "No run has a near set."


def test_identical_scores_are_tied() -> None:
    fit = several(0)
    twin = {"twin": ood.scores_of(fit)["nearest"]}
    twins = {name: {"twin": twin["twin"][name]} for name in ("test", "held_out", "noise")}
    changed = StoredFit(
        fit.train,
        Rows(fit.test.log_probs, fit.test.labels, fit.test.features, fit.test.logits, None, twins["test"]),
        {n: Rows(r.log_probs, r.labels, r.features, r.logits, None, twins[n]) for n, r in fit.others.items()},
    )
    one = ood.result("a", "fashion_mnist", {(0, 0): changed})
    assert {"twin", "nearest"} <= set(one.tied("far"))
    assert scores_in([one])[-1] == "twin"


def test_scores_of_test_rows_do_not_depend_on_the_unfamiliar_rows() -> None:
    """The control: other training rows change the scores of test rows."""
    fit = several(0)
    alone = ood.scores_of(StoredFit(fit.train, fit.test, {"noise": fit.others["noise"]}))
    other = ood.scores_of(StoredFit(several(5).train, fit.test, fit.others))
    for name, by_set in ood.scores_of(fit).items():
        np.testing.assert_allclose(by_set["test"], alone[name]["test"], rtol=1e-12, err_msg=name)
    for name in ("kl_matching", "mahalanobis", "relative_mahalanobis", "nearest", "vim"):
        assert not np.allclose(other[name]["test"], alone[name]["test"]), name


@pytest.mark.parametrize(
    "case",
    [
        *("fashion_mnist mnist5k far", "fashion_mnist held_out near", "mnist5k fashion_mnist far"),
        *("fashion_mnist digits far", "cifar10 cifar100 near", "cifar10 svhn far", "pets mnist far"),
    ],
)
def test_held_out_classes_are_near_and_another_data_set_is_far(case: str) -> None:
    dataset, name, group = case.split()
    assert ood.group_of(dataset, name) == group


def test_both_of_mahalanobis_scores_use_one_covariance_of_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each fit has its own: scores of a fit do not depend on the fit before."""
    inverted, precision = list[np.ndarray](), fitted._precision

    def noted(centred: np.ndarray) -> np.ndarray:
        inverted.append(centred)
        return precision(centred)

    monkeypatch.setattr(fitted, "_precision", noted)
    for seed in range(2):
        fit = several(seed)
        table, features = ood.scores_of(fit), (fit.train.features, fit.train.labels, fit.test.features)
        assert len(inverted) == 2, "of the classes, and of all rows"
        np.testing.assert_array_equal(table["mahalanobis"]["test"], ood.mahalanobis(*features))
        np.testing.assert_array_equal(table["relative_mahalanobis"]["test"], ood.relative_mahalanobis(*features))
        inverted.clear()


def test_a_score_of_a_plugin_is_computed_from_the_stored_rows(forgotten_plugins: None) -> None:
    def length(train: Rows, rows: Rows) -> np.ndarray:
        return -np.linalg.norm(rows.logits, axis=1)

    ood.register_stored_score("length", "Length", length)
    np.testing.assert_allclose(ood.scores_of(several(0))["length"]["test"], length(several(0).train, several(0).test))
    header, _ = ood.table([ood.result("a", "fashion_mnist", {(0, 0): several(0)})], "near")
    assert "Length" in header
    with pytest.raises(PluginError):
        ood.register_stored_score("nearest", "Again", lambda train, rows: None)
    ood.register_stored_score("short", "Short", lambda train, rows: np.zeros(2))
    with pytest.raises(PluginError, match="the score short must be one number for each of 120 rows"):
        ood.scores_of(several(0))
