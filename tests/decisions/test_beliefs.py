"""Answers of fitted posteriors, their one-row updates, and the questions that they refuse."""

from typing import Any

import numpy as np
import pytest
import torch

from bdl_decisions import Agent, DecisionConfig, decide, register_task, table
from bdl_decisions.recursive import recursive
from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.seeds import Seed

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.normal(size=(30, 2))
TARGETS = 10 + 5 * (np.sin(ROWS[:, 0]) + 0.1 * RANDOM.normal(size=30))
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
QUESTION = RANDOM.normal(size=(4, 3, 2))


def belief(method: str, **more: object):
    return Agent("thompson", method, pace=0.02, **more).fit(ROWS, TARGETS, (), Seed(0))


def test_draws_of_a_gaussian_have_its_mean_and_covariance() -> None:
    """The mean of 20,000 draws is within 5 standard errors (false alarm below 1e-5). Groups draw independently."""
    fitted = belief("linear")
    mean, deviation = fitted.parts(QUESTION, Seed(1))
    drawn = fitted.values(QUESTION, 20_000, Seed(2))
    assert (drawn.mean(0) - mean[0]).abs().max() < 5 * float(deviation.max()) / 20_000**0.5
    assert torch.allclose(drawn.std(0), deviation[0], rtol=0.03)
    predictor = fitted._predictor
    inputs = predictor.transform.inputs(QUESTION.reshape(-1, 2)).unflatten(0, (4, 3))
    covariance = predictor.posterior.functions(inputs, rng=Seed(0)).covariance[0, :, 0] * predictor.transform.scale**2
    for group in range(4):
        assert np.cov(drawn[:, group].T.numpy()) == pytest.approx(covariance[group].numpy(), rel=0.1, abs=0.02)
    apart = np.corrcoef(drawn[:, 0, 0], drawn[:, 1, 0])[0, 1]
    assert abs(apart) < 5 / 20_000**0.5
    assert torch.allclose(fitted.means(QUESTION, Seed(0)), mean[0], atol=1e-4)


@pytest.mark.parametrize("method", ["ensemble", "dropout"])
def test_a_draw_is_one_member_at_all_candidates_of_a_group(method: str) -> None:
    fitted = belief(method)
    members, none = fitted.parts(QUESTION, Seed(1))
    drawn = fitted.values(QUESTION, 50, Seed(1))
    assert (none == 0).all() and len(members) > 1
    for group in range(4):
        distances = (drawn[:, None, group] - members[None, :, group]).abs().amax(-1)  # [draw, member]
        assert distances.amin(1).max() < 1e-4
        assert len(set(distances.argmin(1).tolist())) > 1
    assert torch.allclose(fitted.means(QUESTION, Seed(1)), members.mean(0), atol=1e-4)


def test_questions_that_a_posterior_cannot_answer_and_wrong_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"^deterministic: must give draws of functions, but its posterior has one"):
        belief("deterministic").values(QUESTION, 1, Seed(0))
    with pytest.raises(UserError, match=r"^dropout: has no one-row updates: its posterior must be refitted"):
        belief("dropout", updates=True)
    with pytest.raises(UserError, match=r"^linear: must be fitted to at least 10 rows, got 5$"):
        Agent("thompson", "linear").fit(ROWS[:5], TARGETS[:5], (), Seed(0))
    classes = Agent("bald", "linear").fit(ROWS, LABELS, ("no", "yes"), Seed(0))
    assert classes is not None
    with pytest.raises(UserError, match=r"^linear: must give draws of class probabilities, but its posterior"):
        classes.class_draws(ROWS, 10, Seed(0))
    task = {"name": "active_learning", "source": {"name": "digits"}, "labels": 5, "held": 100}
    entry = read(DecisionConfig, {"task": task, "agents": {"u": {"rule": "uniform"}}}, "d")
    with pytest.raises(ConfigError, match=r"^method must be named: the scores of active learning"):
        decide(entry, "d", "u", 0, 0)
    with pytest.raises(UserError, match="must be a frozen dataclass"):
        register_task(type("Loose", (), {"name": "loose"}))


def test_class_draws_are_probabilities_around_the_predictive() -> None:
    fitted = Agent("bald", "d_vbll", pace=0.02).fit(ROWS, LABELS, ("no", "yes"), Seed(0))
    assert fitted is not None
    drawn = fitted.class_draws(ROWS, 400, Seed(0))
    assert drawn.shape == (400, 30, 2) and torch.allclose(drawn.exp().sum(-1), torch.ones(400, 30).double(), atol=1e-5)
    mean = fitted.log_probs(ROWS, Seed(0)).exp()
    assert (drawn.exp().mean(0) - mean).abs().max() < 0.1  # 400 draws, against the layer's own rule


@pytest.mark.parametrize("updates", [False, True])
def test_a_column_that_is_constant_in_the_known_rows_changes_no_answer(updates: bool) -> None:
    agent = Agent("thompson", "map_blr", updates=updates, pace=0.02)
    without = agent.fit(ROWS, TARGETS, (), Seed(0))
    wide = agent.fit(np.insert(ROWS, 1, 3.0, axis=1), TARGETS, (), Seed(0))
    assert wide is not None
    if updates:
        without.learn(ROWS[:3], TARGETS[:3])
        wide.learn(np.insert(ROWS[:3], 1, 8.0, axis=1), TARGETS[:3])
    question = np.insert(QUESTION, 1, 7.0, axis=2)
    assert torch.equal(wide.values(question, 5, Seed(2)), without.values(QUESTION, 5, Seed(2)))
    assert torch.equal(wide.means(question, Seed(2)), without.means(QUESTION, Seed(2)))
    for ours, theirs in zip(wide.parts(question, Seed(2)), without.parts(QUESTION, Seed(2)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_column_that_is_constant_in_the_known_rows_changes_no_probability() -> None:
    agent = Agent("bald", "d_vbll", pace=0.02)
    without = agent.fit(ROWS, LABELS, ("no", "yes"), Seed(0))
    wide = agent.fit(np.insert(ROWS, 0, 0.0, axis=1), LABELS, ("no", "yes"), Seed(0))
    assert wide is not None and without is not None
    rows = np.insert(ROWS, 0, 1.0, axis=1)
    assert torch.equal(wide.log_probs(rows, Seed(1)), without.log_probs(ROWS, Seed(1)))
    assert torch.equal(wide.class_draws(rows, 4, Seed(1)), without.class_draws(ROWS, 4, Seed(1)))


@pytest.mark.parametrize("updates", [False, True])
def test_a_decision_repeats_bit_by_bit_and_agents_of_a_seed_share_the_problem(updates: bool) -> None:
    agents = {"a": {"rule": "thompson", "method": "linear", "updates": updates}, "u": {"rule": "uniform"}}
    task = {"name": "optimisation", "function": "branin", "evaluations": 8, "candidates": 60}
    entry = read(DecisionConfig, {"task": task, "agents": agents, "seeds": 2}, "d")
    once, again = decide(entry, "d", "a", 1, 0), decide(entry, "d", "a", 1, 0)
    assert all(torch.equal(once.tensors[name], again.tensors[name]) for name in once.tensors)
    other = decide(entry, "d", "u", 1, 0)
    assert once.tensors["regret"][0, 1] == other.tensors["regret"][0, 1]  # one problem for all agents of a seed
    assert decide(entry, "d", "u", 0, 0).tensors["regret"][0, 1] != other.tensors["regret"][0, 1]
    rows = [row for row in table([once, other]).to_pylist() if row["metric"] == "regret"]
    assert rows[0] == {**rows[0], "decision": "d", "agent": "a", "seed": 1, "round": 0}


UPDATED: dict[str, dict[str, Any]] = {  # the method, and other hyperparameters
    "linear": {},
    "map_blr": {},
    "gbll": {},
    "gbll, noise of each input": {"noise": "each input"},
    "vbll": {},
    "vbll exact": {"layer": {"posterior": "exact"}},
    "vbll, noise of each input": {"layer": {"noise": "each input"}},
}


@pytest.mark.parametrize("name", UPDATED)
def test_updates_equal_conditioning_the_fitted_posterior_on_the_new_rows(name: str) -> None:
    """Against conditioning the fitted posterior's own Gaussian over functions at old and new inputs (Bishop 2.81)."""
    random = np.random.default_rng(3)
    rows = random.normal(size=(24, 3))
    targets = np.sin(rows[:, 0]) + rows[:, 1] + 0.1 * random.normal(size=24)
    agent = Agent("thompson", name.split(",")[0].split()[0], updates=True, pace=0.02, override=UPDATED[name])
    belief = agent.fit(rows[:16], targets[:16], (), Seed(0))
    assert belief is not None and belief.learns
    predictor = belief._predictor
    inputs, after = predictor.transform.inputs(rows), predictor.transform.targets(targets[16:, None]).double()[:, 0]
    fitted = predictor.posterior.functions(inputs[None], rng=Seed(0))
    mean, covariance = fitted.mean[0, 0, :, 0].double(), fitted.covariance[0, 0, 0].double()
    before = recursive(predictor.posterior)
    assert before is not None
    start = before.functions(inputs[None], rng=Seed(0))
    assert torch.allclose(start.mean[0, 0, :, 0], mean, atol=2e-4)
    assert torch.allclose(start.covariance[0, 0, 0], covariance, atol=2e-3 * float(covariance.diagonal().max()))

    old, new = slice(0, 16), slice(16, 24)
    each = fitted.noise[0, 0, new, 0].double() if "each" in name else fitted.noise[0, 0].double().expand(8)
    assert ("each" in name) == (float(each.std()) > 0)
    noisy = covariance[new, new] + each.diag()
    gain = covariance[old, new] @ torch.linalg.inv(noisy)
    expected = mean[old] + gain @ (after - mean[new])
    remaining = covariance[old, old] - gain @ covariance[new, old]
    for row in range(16, 24):
        belief.learn(rows[[row]], targets[[row]])
    updated = belief._updated.functions(inputs[None, old], rng=Seed(0))
    assert torch.allclose(updated.mean[0, 0, :, 0], expected, atol=2e-3)
    assert torch.allclose(updated.covariance[0, 0, 0], remaining, atol=2e-3 * float(covariance.diagonal().max()))
    phi = before.features(inputs[new]).double()
    added = belief._updated.layer.precision - before.layer.precision
    assert torch.allclose(added, phi.mT @ (phi / each[:, None]), rtol=1e-5, atol=1e-6 * float(added.abs().max()))
