"""Scores of classes: scikit-learn, scipy, torchmetrics and counting by hand; partial sums against the whole."""

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


def test_partial_sums_of_unequal_parts_add_up_to_the_whole() -> None:
    predictive, targets = categorical()
    whole, parts = metrics.nll(predictive, targets), metrics.Mean()
    for rows in (slice(0, 7), slice(7, 150), slice(150, 200)):
        parts += metrics.nll(Categorical(predictive.draw_log_probs[:, rows]), targets[rows])
    assert parts.count == whole.count == 200
    assert parts.value == pytest.approx(whole.value, rel=1e-14)


def test_a_mean_of_no_rows_is_nan() -> None:
    assert np.isnan(metrics.Mean().value)


def test_every_metric_has_a_direction_a_label_and_its_place_in_the_order() -> None:
    """The order is the order of stored scores, which must not change."""
    lower, higher = "nll brier ece rmse crps width_90 out_of_reach", "accuracy log_likelihood joint_gap"
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
    found = metrics.batch_nll(terms)
    assert (found.value, found.count) == (pytest.approx(-math.log(0.5), rel=1e-12), 2)
    per_row = -(math.log(0.55) + math.log(0.6)) / 2  # the control: the mixture at each row gives another number
    assert found.value > per_row + 0.1


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_the_batch_nll_lies_between_the_nll_and_the_mean_over_draws(concentration: float) -> None:
    random = np.random.default_rng(0)
    targets = torch.tensor(random.integers(10, size=60))
    for _ in range(20):
        probs = torch.tensor(random.dirichlet(np.full(10, concentration), size=(5, 60)))
        predictive = Categorical(probs.clamp_min(1e-300).log())
        terms = predictive.draw_log_prob(targets)
        batches = [metrics.batch_nll(part) for part in terms.split([7, 30, 23], dim=1)]
        found = sum(batches, metrics.Mean()).value
        low, high = metrics.nll(predictive, targets).value, -float(terms.mean())
        assert low < found < high
        assert low < found < metrics.batch_nll(terms).value + 1e-12 < high


def test_the_batch_nll_of_one_row_is_the_nll_and_of_one_draw_the_mean_over_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(4, 1, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    one_row, target = Categorical(logs), torch.tensor([2])
    found = metrics.batch_nll(one_row.draw_log_prob(target)).value
    assert found == pytest.approx(metrics.nll(one_row, target).value, rel=1e-12)
    terms = torch.randn(1, 50, generator=generator, dtype=torch.float64)
    assert metrics.batch_nll(terms).value == pytest.approx(-float(terms.mean()), rel=1e-12)


def test_the_joint_of_two_disagreeing_draws_matches_a_hand_calculation() -> None:
    """Both rows say class 0 with .9 under one draw and .2 under the other: labels 0, 0 belong together."""
    probs = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.2, 0.8], [0.2, 0.8]]], dtype=torch.float64)
    terms = Categorical(probs.log()).draw_log_prob(torch.tensor([0, 0]))
    nll, gap = metrics.GroupLogProbs.of_terms(terms, torch.tensor([[0, 1]])).scores(2)
    joint, marginal = (0.81 + 0.04) / 2, 0.55
    assert nll.value == pytest.approx(-np.log(joint), rel=1e-12)
    assert gap.value == pytest.approx(np.log(joint / marginal**2), rel=1e-12)
    assert gap.value > 0.3


@pytest.fixture
def predictive() -> Categorical:
    """Five draws of four rows in three classes."""
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Categorical(logits.log_softmax(-1))


def test_the_joint_of_groups_matches_brute_force(predictive: Categorical) -> None:
    """For all triples of rows, and for their first row and first two rows; a row may occur more than once."""
    targets, probs = [0, 2, 1, 1], predictive.draw_log_probs.exp().numpy()
    groups = list(itertools.product(range(4), repeat=3))
    terms = predictive.draw_log_prob(torch.tensor(targets))
    found = metrics.GroupLogProbs.of_terms(terms, torch.tensor(groups))
    product = predictive.log_prob(torch.tensor(targets)).numpy()
    for rows in (1, 2, 3):
        each = [np.prod([probs[:, i, targets[i]] for i in group[:rows]], 0).mean() for group in groups]
        np.testing.assert_allclose(found.joint[:, rows - 1], np.log(each), atol=1e-12)
        np.testing.assert_allclose(found.product[:, rows - 1], [product[list(g[:rows])].sum() for g in groups])
        assert found.scores(rows)[0].value == pytest.approx(-np.mean(np.log(each)), rel=1e-12)
    assert not np.allclose(found.joint[:, 1:], found.product[:, 1:], atol=1e-3)  # independent rows differ


def test_terms_of_batches_concatenate_to_the_terms_of_all_rows(predictive: Categorical) -> None:
    targets = torch.tensor([0, 2, 1, 1])
    parts = [Categorical(predictive.draw_log_probs[:, rows]) for rows in (slice(0, 1), slice(1, 4))]
    terms = torch.cat([p.draw_log_prob(t) for p, t in zip(parts, targets.split([1, 3]), strict=True)], 1)
    assert torch.equal(terms, predictive.draw_log_prob(targets))


def test_one_draw_has_a_joint_gap_of_zero() -> None:
    pairs = torch.arange(50).unflatten(0, (25, 2))
    assert metrics.GroupLogProbs.of_terms(torch.randn(1, 50), pairs).scores(2)[1].value == 0.0


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


def test_the_ece_is_large_for_overconfidence_and_small_for_noise() -> None:
    """With n = 200,000 a calibrated ECE of 15 bins is about .002 by noise; sharpening makes ten times that."""
    calibrated, targets = predictions(200_000)
    sharpened, _ = predictions(200_000, sharpen=2.0)
    assert metrics.bins_of(calibrated, targets, 15).ece() < 0.01 < 0.05 < metrics.bins_of(sharpened, targets, 15).ece()


def test_the_table_of_bins_matches_a_hand_calculation() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 0, 1, 0])
    table = metrics.bins_of(Categorical(probs.log()[None]), targets, 2).table()  # (0, .5], (.5, 1]
    assert table["count"].tolist() == [1, 4]
    assert table["confidence"] == pytest.approx([0.5, (0.6 + 0.9 + 0.7 + 1.0) / 4])
    assert table["accuracy"] == pytest.approx([1.0, 0.75])
    assert (table["lower"].tolist(), table["upper"].tolist()) == ([0, 0.5], [0.5, 1])


def test_bins_of_parts_add_up_to_the_whole() -> None:
    predictive, targets = predictions(1000)
    parts = [
        metrics.bins_of(Categorical(predictive.draw_log_probs[:, rows]), targets[rows], 15)
        for rows in (slice(0, 10), slice(10, 600), slice(600, 1000))
    ]
    whole, merged = metrics.bins_of(predictive, targets, 15), parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(merged.count, whole.count)
    assert merged.ece() == pytest.approx(whole.ece(), rel=1e-12)


def scores(rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(4).numpy()
    inside, outside = random.normal(1, 1, size=150), random.normal(0, 1, size=90)
    return (inside.round(1), outside.round(1)) if rounded else (inside, outside)


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_is_the_share_of_pairs_in_order(rounded: bool) -> None:
    inside, outside = scores(rounded)
    pairs = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    assert metrics.detection(inside, outside)["auroc"] == pytest.approx(pairs.mean(), rel=1e-12)


@pytest.mark.parametrize("rounded", [False, True])
def test_fpr95_is_the_least_false_positive_rate_on_scikit_learns_roc_curve(rounded: bool) -> None:
    inside, outside = scores(rounded)
    labels = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    false, true, _ = roc_curve(labels, np.r_[inside, outside], drop_intermediate=False)
    assert metrics.detection(inside, outside)["fpr95"] == false[true >= 0.95].min()


def test_aupr_in_and_aupr_out_take_their_own_set_as_positive() -> None:
    """Scores 3, 2, 0 in and 1 out. In positive: precisions 1, 1, 3/4. Out positive: second of four, 1/2."""
    found = metrics.detection(np.array([3.0, 2, 0]), np.array([1.0]))
    assert found["aupr_in"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert found["aupr_out"] == pytest.approx(1 / 2)
    assert found["auroc"] == pytest.approx(2 / 3)
    assert found["fpr95"] == 1.0


def test_nineteen_of_twenty_rows_reach_95_percent() -> None:
    inside = np.arange(20.0)  # the threshold is 1: 19 of 20 reach it
    assert false_positive_rate(inside, np.array([0.5, 1.0]), 0.95) == 0.5
