"""joblib's processes give the bits of one process: fitted estimators, posteriors of modules, scikit-learn's folds."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from sklearn.model_selection import GridSearchCV, cross_val_score
from torch import nn

from bdl_pipe import BayesianClassifier, BayesianRegressor, bayesianise

pytestmark = pytest.mark.soak  # each process imports torch first; make test has copies by pickle
X = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
Y = X[:, 0] - X[:, 1] ** 2
PARTS = [X[:5], X[5:9], X[9:10]]


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Start the processes before the first test, and end them after the last."""
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(2))
    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def same_in_two_processes(ask: Callable[[Any], Any], asked: list[Any]) -> None:
    answers = Parallel(n_jobs=2)(delayed(ask)(each) for each in asked)
    for there, here in zip(answers, map(ask, asked), strict=True):
        np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("method", ["swag", "gp", "tabm", "sgmcmc", "boosting"])
def test_a_fitted_estimator_predicts_the_same_bits(method: str) -> None:
    model = BayesianRegressor(method, pace=0.01, conformal="split").fit(X, Y)
    same_in_two_processes(model.predict, PARTS)
    same_in_two_processes(model.predict_interval, PARTS)
    same_in_two_processes(model.sample, PARTS)


class Own(nn.Module):
    """A user's class: its digest includes its code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize("method", ["kfac_laplace", "swag", "vbll", "sgmcmc", "ffg_u"])
def test_a_posterior_of_a_module_predicts_the_same_bits(method: str) -> None:
    loader = [(torch.from_numpy(X[at : at + 16]), torch.from_numpy(Y[at : at + 16])[:, None]) for at in (0, 16, 32)]
    posterior = bayesianise(Own(), method, loader, epochs=None if method == "kfac_laplace" else 1)
    predictions = Parallel(n_jobs=2)(delayed(posterior.predict)(torch.from_numpy(part)) for part in PARTS)
    for there, part in zip(predictions, PARTS, strict=True):
        here = posterior.predict(torch.from_numpy(part))
        assert torch.equal(there.mean, here.mean) and torch.equal(there.variance, here.variance)


@pytest.mark.parametrize("method", ["swag", "vbll", "boosting"])
def test_scores_of_folds_and_of_a_search_are_the_same_bits(method: str) -> None:
    model = BayesianRegressor(method, pace=0.01)
    one, two = (cross_val_score(model, X, Y, cv=3, n_jobs=jobs) for jobs in (1, 2))
    np.testing.assert_array_equal(one, two)
    labels, grid = (Y > 0).astype(int), {"random_state": [0, 1]}
    searches = [GridSearchCV(BayesianClassifier("linear"), grid, cv=3, n_jobs=jobs).fit(X, labels) for jobs in (1, 2)]
    np.testing.assert_array_equal(*(search.cv_results_["mean_test_score"] for search in searches))
