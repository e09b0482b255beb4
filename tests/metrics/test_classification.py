"""Scores of classes: scikit-learn, scipy, torchmetrics, counting and enumeration; partial sums against the whole."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from sklearn.metrics import roc_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from bdl_pipe import metrics
from bdl_pipe.metrics import table
from bdl_pipe.metrics.brier_parts import _without_single, brier_parts
from bdl_pipe.metrics.separation import false_positive_rate
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed


def categorical(draws: int = 3, batch: int = 200, classes: int = 4) -> tuple[Categorical, torch.Tensor]:
    random = Seed(1).generator()
    logits = 2 * torch.randn(draws, batch, classes, generator=random, dtype=torch.float64)
    targets = torch.randint(classes, (batch,), generator=random)
    return Categorical(logits.log_softmax(-1)), targets


def test_accuracy_nll_and_brier_match_scikit_learn() -> None:
    predictive, targets = categorical()
    probs = predictive.draw_log_probs.exp().mean(0).numpy()  # mixed first, by hand
    truth = targets.numpy()
    assert metrics.accuracy(predictive, targets).value == sklearn.metrics.accuracy_score(truth, probs.argmax(1))
    assert metrics.nll(predictive, targets).value == pytest.approx(sklearn.metrics.log_loss(truth, probs), rel=1e-12)
    assert metrics.log_likelihood(predictive, targets).value == -metrics.nll(predictive, targets).value
    oracle = sklearn.metrics.brier_score_loss(truth, probs, labels=range(4), scale_by_half=False)
    assert metrics.brier(predictive, targets).value == pytest.approx(oracle, rel=1e-12)


def test_regression_scores_match_scipy_and_scikit_learn() -> None:
    random = Seed(2).numpy()
    mean, variance = random.normal(size=(3, 50, 1)), random.uniform(0.5, 2, size=(3, 50, 1))
    targets = random.normal(size=(50, 1))
    predictive = Gaussian(torch.tensor(mean), torch.tensor(variance))
    density = scipy.stats.norm.pdf(targets, mean, np.sqrt(variance)).mean(0)[:, 0]
    assert metrics.log_likelihood(predictive, torch.tensor(targets)).value == pytest.approx(np.log(density).mean())
    oracle = sklearn.metrics.root_mean_squared_error(targets, mean.mean(0))
    assert metrics.squared_error(predictive, torch.tensor(targets)).root == pytest.approx(oracle, rel=1e-12)


def test_sums_and_bins_of_unequal_parts_add_up_to_the_whole() -> None:
    predictive, targets = categorical()
    rows = (slice(0, 7), slice(7, 150), slice(150, 200))
    parts = [(Categorical(predictive.draw_log_probs[:, part]), targets[part]) for part in rows]
    whole, merged = metrics.nll(predictive, targets), sum((metrics.nll(*part) for part in parts), metrics.Mean())
    assert np.isnan(metrics.Mean().value), "of no rows"
    assert merged.count == whole.count == 200 and merged.value == pytest.approx(whole.value, rel=1e-14)
    whole, (first, *rest) = metrics.bins_of(predictive, targets, 15), [metrics.bins_of(*part, 15) for part in parts]
    merged = sum(rest, first)
    np.testing.assert_array_equal(merged.count, whole.count)
    assert merged.ece() == pytest.approx(whole.ece(), rel=1e-12)


def test_every_metric_has_a_direction_a_label_and_its_place_in_the_order() -> None:
    """The order is the order of stored scores, which must not change."""
    lower, higher = "nll brier ece rmse crps width_90 out_of_reach", "accuracy log_likelihood"
    better = {metric.name: metric.better for metric in metrics.registered()}
    assert {better[name] for name in lower.split()} == {-1} and {better[name] for name in higher.split()} == {+1}
    assert table.always("classification") == ["accuracy", "nll", "brier", "ece"]
    assert table.always("regression") == ["rmse", "nll", "coverage_90", "width_90", "crps"]
    names = """rmse nll_recalibrated nll_before crps_before coverage_90_before coverage_conformal size_conformal
    width_conformal accuracy nll brier entropy mutual_information batch_nll log_likelihood coverage_90 width_90 crps
    out_of_reach ece ece_recalibrated joint_nll joint_gap joint_nll_2 joint_gap_2 joint_nll_5 joint_gap_5 joint_nll_20
    joint_gap_20 joint_draws log_likelihood_normalised reference_kl reference_tv reference_sd_ratio noise_ratio"""
    assert list(better) == names.split()
    assert all(metric.label and metric.about for metric in metrics.registered())


def test_the_batch_nll_of_two_draws_matches_a_hand_calculation() -> None:
    """Geometric means over the rows: √(.9·.4) = .6 of the first draw, √(.2·.8) = .4 of the second."""
    terms = torch.tensor([[0.9, 0.4], [0.2, 0.8]], dtype=torch.float64).log()
    nll = metrics.batch_nll(terms)
    assert (nll.value, nll.count) == (pytest.approx(-math.log(0.5), rel=1e-12), 2)
    per_row = -(math.log(0.55) + math.log(0.6)) / 2  # the control: the mixture at each row gives another number
    assert nll.value > per_row + 0.1


def test_the_batch_nll_of_one_row_is_the_nll_and_of_one_draw_the_mean_over_rows() -> None:
    predictive, targets = categorical()
    one_row = Categorical(predictive.draw_log_probs[:, :1])
    nll = metrics.batch_nll(one_row.draw_log_prob(targets[:1])).value
    assert nll == pytest.approx(metrics.nll(one_row, targets[:1]).value, rel=1e-12)
    terms = predictive.draw_log_prob(targets)[:1]
    assert metrics.batch_nll(terms).value == pytest.approx(-float(terms.mean()), rel=1e-12)


def test_the_joint_of_groups_matches_brute_force() -> None:
    """For all triples of four rows, and their first row and first two rows; a row may occur more than once."""
    predictive, targets = categorical(5, 4, 3)
    probs, groups = predictive.draw_log_probs.exp().numpy(), list(itertools.product(range(4), repeat=3))
    terms = metrics.GroupLogProbs.of_terms(predictive.draw_log_prob(targets), torch.tensor(groups))
    product = predictive.log_prob(targets).numpy()
    for rows in (1, 2, 3):
        each = [np.prod([probs[:, i, targets[i]] for i in group[:rows]], 0).mean() for group in groups]
        np.testing.assert_allclose(terms.joint[:, rows - 1], np.log(each), atol=1e-12)
        np.testing.assert_allclose(terms.product[:, rows - 1], [product[list(g[:rows])].sum() for g in groups])
        nll, gap = terms.scores(rows)
        assert nll.value == pytest.approx(-np.mean(np.log(each)), rel=1e-12)
        assert gap.value == pytest.approx(float((terms.joint - terms.product)[:, rows - 1].mean()), abs=1e-12)
    assert not np.allclose(terms.joint[:, 1:], terms.product[:, 1:], atol=1e-3)  # independent rows differ


def predictions(batch: int, sharpen: float = 1.0) -> tuple[Categorical, torch.Tensor]:
    """Labels are drawn from the unsharpened probabilities: calibrated at ``sharpen`` = 1."""
    random = Seed(3).generator()
    logits = 1.5 * torch.randn(batch, 5, generator=random, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0]
    return Categorical((sharpen * logits).log_softmax(-1)[None]), targets


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_ece_matches_torchmetrics(bins: int) -> None:
    predictive, targets = predictions(2000, sharpen=2.0)
    oracle = multiclass_calibration_error(predictive.mean, targets, num_classes=5, n_bins=bins, norm="l1")
    assert metrics.bins_of(predictive, targets, bins).ece() == pytest.approx(float(oracle), abs=1e-6)


def test_the_table_of_bins_matches_a_hand_calculation() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 0, 1, 0])
    table = metrics.bins_of(Categorical(probs.log()[None]), targets, 2).table()  # (0, .5], (.5, 1]
    assert table["count"].tolist() == [1, 4]
    assert table["confidence"] == pytest.approx([0.5, (0.6 + 0.9 + 0.7 + 1.0) / 4])
    assert table["accuracy"] == pytest.approx([1.0, 0.75])
    assert (table["lower"].tolist(), table["upper"].tolist()) == ([0, 0.5], [0.5, 1])


@pytest.mark.parametrize("digits", [1, 9])
def test_auroc_is_the_share_of_pairs_in_order_and_fpr95_the_least_rate_on_scikit_learns_curve(digits: int) -> None:
    random = Seed(4).numpy()
    inside, outside = random.normal(1, 1, size=150).round(digits), random.normal(0, 1, size=90).round(digits)
    scores = metrics.detection(inside, outside)
    pairs = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    assert scores["auroc"] == pytest.approx(pairs.mean(), rel=1e-12)
    labels = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    false, true, _ = roc_curve(labels, np.r_[inside, outside], drop_intermediate=False)
    assert scores["fpr95"] == false[true >= 0.95].min()


def test_aupr_in_and_aupr_out_take_their_own_set_as_positive() -> None:
    """Scores 3, 2, 0 in and 1 out. In positive: precisions 1, 1, 3/4. Out positive: second of four, 1/2."""
    detection = metrics.detection(np.array([3.0, 2, 0]), np.array([1.0]))
    assert detection["aupr_in"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert detection["aupr_out"] == pytest.approx(1 / 2)
    assert detection["auroc"] == pytest.approx(2 / 3)
    assert detection["fpr95"] == 1.0
    assert false_positive_rate(np.arange(20.0), np.array([0.5, 1.0]), 0.95) == 0.5  # 19 of 20 rows reach 1


def random_rows(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(0).numpy()
    return random.dirichlet(np.ones(classes), size=rows), random.integers(classes, size=rows)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(("rows", "classes"), [(2, 2), (17, 3), (200, 10)])
def test_the_parts_add_up_to_the_brier_score(rows: int, classes: int, corrected: bool) -> None:
    probs, labels = random_rows(rows, classes)
    score = ((probs - np.eye(classes)[labels]) ** 2).sum(1).mean()
    assert brier_parts(probs, labels, corrected=corrected).brier == pytest.approx(score, rel=1e-12)


def test_the_parts_of_two_stated_probabilities_match_a_hand_calculation() -> None:
    """At .2 one row in four is of the class, at .6 three in four; both classes have the same parts."""
    first = np.repeat([0.2, 0.6], 4)
    labels = np.array([0, 1, 1, 1, 0, 0, 0, 1])
    parts = brier_parts(np.stack([first, 1 - first], 1), labels, bins=2, corrected=False)
    assert parts.reliability == pytest.approx(2 * (0.05**2 + 0.15**2) / 2)
    assert parts.resolution == pytest.approx(2 * 0.25**2)
    assert parts.uncertainty == pytest.approx(2 * 0.25)
    assert parts.within == pytest.approx(0, abs=1e-15)


def test_reliability_is_unbiased_over_all_labels() -> None:
    """Three rows of each of two probabilities, whose events happen with other probabilities; 64 columns of labels.

    Without the correction the mean reliability is far above the exact reliability.
    """
    stated, true = np.repeat([0.3, 0.8], 3), np.repeat([0.4, 0.7], 3)
    probs, parts, plain, weights = np.stack([1 - stated, stated], 1), [], [], []
    for labels in itertools.product([0, 1], repeat=6):
        happened = np.array(labels)
        weights.append(np.prod(np.where(happened == 1, true, 1 - true)))
        for into, corrected in ((parts, True), (plain, False)):
            into.append(brier_parts(probs, happened, bins=2, corrected=corrected).reliability)
    expected = 2 * ((0.3 - 0.4) ** 2 + (0.8 - 0.7) ** 2) / 2
    assert np.dot(weights, parts) == pytest.approx(expected, rel=1e-12)
    assert np.dot(weights, plain) > 5 * expected


def test_uncertainty_is_unbiased_over_drawn_rows_and_labels() -> None:
    """Every draw of four rows of two kinds, with every column of labels: 256 samples, weighted by their probability."""
    kinds, true, corrected_sum, plain = (0.3, 0.8), (0.4, 0.7), 0.0, 0.0
    for picked in itertools.product([0, 1], repeat=4):
        stated = np.array([kinds[k] for k in picked])
        for labels in itertools.product([0, 1], repeat=4):
            weight = np.prod([0.5 * (true[k] if y else 1 - true[k]) for k, y in zip(picked, labels, strict=True)])
            arguments = np.stack([1 - stated, stated], 1), np.array(labels)
            parts, biased = (brier_parts(*arguments, bins=2, corrected=corrected) for corrected in (True, False))
            corrected_sum += weight * parts.uncertainty
            plain += weight * biased.uncertainty
    assert corrected_sum == pytest.approx(2 * 0.55 * 0.45, rel=1e-12)  # summed over both classes
    assert plain == pytest.approx(0.75 * 2 * 0.55 * 0.45, rel=1e-12)


def test_a_bin_of_one_row_joins_its_neighbour() -> None:
    assert _without_single(np.array([0, 1, 1, 2])).tolist() == [1, 1, 1, 1]
    assert _without_single(np.array([0, 0, 1, 2, 2])).tolist() == [0, 0, 0, 2, 2]
    assert len(set(_without_single(np.array([0, 1, 2])).tolist())) == 1
    assert _without_single(np.array([3, 3, 7])).tolist() == [3, 3, 3]


def test_one_row_has_only_uncorrected_parts_and_one_class_scores_zero() -> None:
    assert brier_parts(np.array([[0.7, 0.3]]), np.array([0])) is None
    parts = brier_parts(np.array([[0.7, 0.3]]), np.array([0]), corrected=False)
    assert (parts.reliability, parts.resolution, parts.uncertainty) == (pytest.approx(2 * 0.09), 0, 0)
    assert brier_parts(np.ones((5, 1)), np.zeros(5, int)).brier == 0
