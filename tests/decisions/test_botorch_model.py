"""A posterior as a model of BoTorch, whose acquisition functions and optimiser are the oracles of ours."""

import functools

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.optim import optimize_acqf

from bdl_decisions import Question, ascent
from bdl_decisions.beliefs import PosteriorBelief
from bdl_decisions.botorch_model import PosteriorModel, botorch_model
from bdl_pipe import BayesianRegressor
from bdl_pipe.errors import UserError
from bdl_pipe.seeds import Seed

CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@functools.cache
def fitted(method: str) -> tuple[PosteriorModel, PosteriorBelief, Question]:
    rows = np.random.default_rng(0).random((40, 2))
    values = 50 - 100 * np.square(rows - [0.3, 0.7]).sum(1)
    regressor = BayesianRegressor(method, pace=0.05).fit(rows, values)
    question = Question(np.random.default_rng(1).random((1, 200, 2)), 1, (rows, values), continuous=True)
    return botorch_model(regressor), PosteriorBelief(regressor.fitted_.predictor(), method), question


@pytest.mark.parametrize("method", ["vbll", "gp"])
def test_botorchs_acquisition_and_optimiser_agree_with_ours(method: str) -> None:
    model, belief, question = fitted(method)
    points = torch.from_numpy(question.candidates[0])
    theirs = LogExpectedImprovement(model, question.best)
    ours = ascent.improvement_of(belief, question, 1.0, Seed(0), points[:0])
    assert ours(points).numpy() == pytest.approx(
        theirs(points[:, None]).numpy(), rel=1e-6, abs=1e-4
    )  # their jitter, 1e-8
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, best = optimize_acqf(theirs, CUBE, 1, num_restarts=8, raw_samples=200)
    ended = ours(ascent.best_point(ours, question.candidates[0], points[:0], Seed(0))[None])
    assert ended.item() >= float(best) - 0.02
    assert ours(points).max() < float(best) - 1e-4, "candidates alone do not reach it"


def test_a_posterior_of_draws_is_an_ensemble_that_qlogei_maximises() -> None:
    model, belief, question = fitted("dropout")
    points = torch.from_numpy(question.candidates[0, :3])[None]
    values = model.posterior(points).values[0, ..., 0]
    assert torch.equal(values, belief.values(points, 128, Seed(0))[:, 0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batch, gain = optimize_acqf(qLogExpectedImprovement(model, question.best), CUBE, 2, 1, 16)
    assert batch.shape == (2, 2) and torch.isfinite(gain)


def test_noise_and_several_targets_are_refused() -> None:
    model, _, question = fitted("gp")
    with pytest.raises(UserError, match=r"^observation_noise must be False: the model's functions have no noise"):
        model.posterior(torch.from_numpy(question.candidates[:, :2]), observation_noise=True)
    rows = np.random.default_rng(0).random((40, 2))
    with pytest.raises(ValueError, match="targets must be one column of numbers for a model of BoTorch"):
        botorch_model(BayesianRegressor("linear").fit(rows, rows @ [[1.0, 2.0], [3.0, 1.0]]))
