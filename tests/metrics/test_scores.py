"""Scores against scikit-learn and scipy; partial sums against the whole."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

from bdl_pipe import metrics
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed


def categorical(draws: int = 3, batch: int = 200, classes: int = 4) -> tuple[Categorical, torch.Tensor]:
    random = Seed(1).generator()
    logits = 2 * torch.randn(draws, batch, classes, generator=random, dtype=torch.float64)
    targets = torch.randint(classes, (batch,), generator=random)
    return Categorical(logits.log_softmax(-1)), targets


def test_accuracy_nll_and_brier_are_scikit_learns() -> None:
    predictive, targets = categorical()
    probs = predictive.draw_log_probs.exp().mean(0).numpy()  # mixed first, by hand
    truth = targets.numpy()
    assert metrics.accuracy(predictive, targets).value == sklearn.metrics.accuracy_score(truth, probs.argmax(1))
    assert metrics.nll(predictive, targets).value == pytest.approx(sklearn.metrics.log_loss(truth, probs), rel=1e-12)
    assert metrics.log_likelihood(predictive, targets).value == -metrics.nll(predictive, targets).value
    oracle = sklearn.metrics.brier_score_loss(truth, probs, labels=range(4), scale_by_half=False)
    assert metrics.brier(predictive, targets).value == pytest.approx(oracle, rel=1e-12)


def test_the_mixture_is_scored_and_not_the_mean_of_the_draws_scores() -> None:
    predictive, targets = categorical()
    each = [metrics.nll(Categorical(d[None]), targets).value for d in predictive.draw_log_probs]
    assert metrics.nll(predictive, targets).value < np.mean(each) - 0.1  # Jensen


def test_regression_scores_are_scipys() -> None:
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


def test_nothing_counted_is_not_a_number() -> None:
    assert np.isnan(metrics.Mean().value)


def test_every_metric_says_which_direction_is_better_and_how_it_is_printed() -> None:
    """The order is the order of stored scores, which must not change."""
    lower, higher = "nll brier ece rmse crps width_90 out_of_reach", "accuracy log_likelihood joint_gap"
    better = {metric.name: metric.better for metric in metrics.registered()}
    assert {better[name] for name in lower.split()} == {-1} and {better[name] for name in higher.split()} == {+1}
    assert [name for name in better if metrics.METRICS[name].shifted] == ["accuracy", "nll", "brier", "ece"]
    names = """rmse nll_recalibrated crps_recalibrated coverage_conformal size_conformal width_conformal accuracy nll
    brier entropy mutual_information batch_nll log_likelihood coverage_90 width_90 crps out_of_reach ece
    ece_recalibrated joint_nll joint_gap log_likelihood_normalised"""
    assert list(better) == names.split()
    assert all(metric.label and metric.about for metric in metrics.registered())
