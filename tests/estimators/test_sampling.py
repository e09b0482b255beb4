"""Draws follow their distribution: Kolmogorov's statistic of 1,000 draws, at a false-alarm rate of 1e-6 each."""

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe import BayesianClassifier, BayesianRegressor
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.distribution import sample
from bdl_pipe.predictive import Categorical, Continuous, Gaussian
from bdl_pipe.recalibration import Widened, widened
from bdl_pipe.seeds import Seed

DRAWS = 1_000
MEAN = torch.tensor([[[0.0], [5.0]], [[3.0], [5.5]]])  # [draw, batch, output]
VARIANCE = torch.tensor([[[1.0], [0.01]], [[0.25], [4.0]]])
MIXTURE = Gaussian(MEAN, VARIANCE)
CASES: dict[str, Continuous] = {
    "mixture": MIXTURE,
    "widened": Widened(MIXTURE, 1.7),
    "exponential": Exponential(Gaussian(MEAN / 5, VARIANCE / 4)),
    "two widths": Mixture([widened(MIXTURE, 0.25), widened(MIXTURE, 2.5)], [0.7, 0.3]),
    "exponential-widened": Exponential(Widened(Gaussian(MEAN / 5, VARIANCE / 4), 1.7)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "widened" in name else []) for name in CASES]
)
def test_draws_follow_the_distribution_function(name: str) -> None:
    predictive = CASES[name]
    drawn = sample(predictive, DRAWS, Seed(0))
    assert drawn.shape == (DRAWS, 2, 1) and drawn.dtype == torch.float64
    levels = torch.stack([predictive.cdf(each) for each in drawn])[:, :, 0].numpy()
    for row in range(2):
        assert stats.kstest(levels[:, row], "uniform").pvalue > 1e-6
    one = Gaussian(MEAN.mean(0)[None], MIXTURE.variance[None])  # the mixture's moments alone: told apart
    wrong = torch.stack([MIXTURE.cdf(each) for each in sample(one, DRAWS, Seed(0))])[:, 0, 0].numpy()
    assert stats.kstest(wrong, "uniform").pvalue < 1e-6


def test_all_outputs_of_a_draw_come_from_one_component() -> None:
    """Outputs are independent given a draw, so a draw's outputs come from one component."""
    mean = torch.tensor([[[0.0, 0.0]], [[9.0, 9.0]]])
    drawn = sample(Gaussian(mean, torch.full_like(mean, 0.01)), 100, Seed(0))[:, 0]
    assert ((drawn > 4.5).sum(1) != 1).all() and 0 < (drawn > 4.5).all(1).sum() < 100


def shares(probabilities: torch.Tensor) -> np.ndarray:
    return DRAWS * (probabilities.double() / probabilities.double().sum()).numpy()


def test_drawn_classes_follow_the_predictive_probabilities() -> None:
    probabilities = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [[0.5, 0.4, 0.1], [0.3, 0.1, 0.6]]])
    drawn = sample(Categorical(probabilities.log()), DRAWS, Seed(0)).numpy()
    for row in range(2):
        counts = np.bincount(drawn[:, row], minlength=3)
        assert stats.chisquare(counts, shares(probabilities.mean(0)[row])).pvalue > 1e-6
        assert stats.chisquare(counts, shares(probabilities[0, row])).pvalue < 1e-6


def test_estimators_sample_their_predictive_and_repeat_the_same_draws() -> None:
    x = np.random.default_rng(0).normal(size=(80, 2))
    y = x[:, 0] + 0.2 * np.random.default_rng(1).normal(size=80)
    model = BayesianRegressor("linear").fit(x, y)
    drawn = model.sample(x, 4_000)
    assert drawn.shape == (4_000, 80)
    mean, spread = model.predict(x, return_std=True)
    assert (np.abs(drawn.mean(0) - mean) < 6 * spread / 4_000**0.5).all()  # 1e-7 in 80 rows
    np.testing.assert_array_equal(model.sample(x, 4_000), drawn)
    classes = BayesianClassifier("linear").fit(x, np.where(y > 0, "up", "down"))
    assert set(classes.sample(x, 3).ravel()) == {"down", "up"}


def test_log_prob_joint_and_intervals_agree_with_the_predictive() -> None:
    x = np.random.default_rng(0).normal(size=(80, 2))
    y = np.exp(x[:, 0] + 0.2 * np.random.default_rng(1).normal(size=80))
    model = BayesianRegressor("linear").fit(x, y)
    assert model.fitted_.predictor().transform.log  # logarithms fit better here, as ``add`` finds, too
    predictive = model.predict_dist(x)
    expected = predictive.predictive.log_prob(torch.tensor(y[:, None])).numpy()
    for given in (model.log_prob(x, y), predictive.log_prob(y)):
        np.testing.assert_allclose(given, expected, rtol=1e-12)
    joint = model.joint(x, rows=4)
    assert joint.target_shape == (20, 4, 1)
    alone = joint.marginal_log_prob(torch.tensor(y.reshape(20, 4, 1))).sum()
    np.testing.assert_allclose(float(alone), model.log_prob(x, y).sum(), rtol=1e-5)
    ends = np.concatenate(model.predict_interval(x, [0.5, 0.8]))  # lower ends of both, then upper ends
    np.testing.assert_allclose(predictive.cdf(ends)[:, 0], [0.25, 0.1, 0.75, 0.9], atol=1e-6)
    np.testing.assert_array_equal(ends, np.concatenate(predictive.interval([0.5, 0.8])))
    np.testing.assert_array_equal(model.predict_quantile(x, [0.25, 0.1, 0.75, 0.9]), ends)
    np.testing.assert_array_equal(predictive.quantile(0.75), ends[2])
    assert predictive.cdf(1).shape == (80,) and predictive.cdf([[1], [2], [3]]).shape == (3, 80)
    assert (predictive.cdf(1) <= predictive.cdf(2)).all() and "80 rows: mean" in repr(predictive)
    classes = BayesianClassifier("linear").fit(x, y > 1)
    probabilities = classes.predict_proba(x)
    logs, both = classes.predict_log_proba(x), classes.predict_dist(x)
    np.testing.assert_allclose(np.exp(logs), probabilities, rtol=1e-6)
    for of_labels in (classes.log_prob(x, y > 1), both.log_prob(y > 1)):
        np.testing.assert_allclose(of_labels, logs[np.arange(80), (y > 1) * 1], rtol=1e-5)
    np.testing.assert_array_equal(classes.predict_set(x, [0.6, 0.9])[1], classes.predict_set(x, 0.9))
    np.testing.assert_allclose(both.entropy(), -(probabilities * logs).sum(1), rtol=1e-5, atol=1e-6)
    assert "2 classes: False, True" in repr(both) and set(both.sample(2).ravel()) == {False, True}
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
