"""Bandits: the wheel's facts, regret's definition, and Thompson sampling against its exact Bayesian regret."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bdl_decisions import RULES, play
from bdl_decisions.bandits import Bandit, Wheel, in_blocks
from bdl_decisions.loop import refits
from bdl_decisions.question import Question
from bdl_decisions.recursive import RecursiveLayer
from bdl_pipe.joint_predictive import GaussianFunctions
from bdl_pipe.seeds import Seed

NOISE = 1.0  # variance of a reward; arms' means are N(0, 1)


class Arms:
    """The conjugate belief of arms without contexts, which the recursive layer holds exactly."""

    learns = True

    def __init__(self, arms: int, noisy: bool) -> None:
        eye = torch.eye(arms, dtype=torch.float64)
        self._layer = RecursiveLayer(eye, torch.zeros(arms).double(), torch.tensor(NOISE, dtype=torch.float64))
        self._noisy = noisy

    def values(self, candidates: np.ndarray, draws: int, rng: Seed) -> torch.Tensor:
        functions: GaussianFunctions = self._layer.posterior().functions(torch.from_numpy(candidates))
        drawn = functions.sample(draws, rng)[..., 0]
        if self._noisy:  # the wrong variant: draws of rewards, not of their means
            drawn = drawn + NOISE**0.5 * torch.randn(drawn.shape, generator=rng.fold("noise").generator())
        return drawn

    def parts(self, candidates: np.ndarray, rng: Seed) -> Any:
        raise NotImplementedError

    means = log_probs = class_draws = parts

    def learn(self, rows: np.ndarray, targets: np.ndarray) -> None:
        self._layer.learn(torch.from_numpy(rows), torch.from_numpy(targets)[:, None])


class TwoArms:
    """Two arms with means N(0, 1), for two rounds, nothing known before; many copies play round 2 at once."""

    classes: tuple[str, ...] = ()
    standardised = False

    def __init__(self, rounds: int, rng: Seed) -> None:
        random = rng.numpy()
        self.rounds, self.refits = rounds, (0,)
        self._means, self._luck = random.standard_normal(2), random.standard_normal((rounds, 2))
        self.regret: list[float] = []

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((0, 2)), np.zeros(0)

    def question(self, rounds: int) -> Question:
        return Question(np.repeat(np.eye(2)[None], COPIES if self.regret else 1, 0))

    def answer(self, question, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        arm = int(chosen[0, 0])
        reward = self._means[arm] + NOISE**0.5 * self._luck[len(self.regret), arm]
        self.regret.append(float((self._means.max() - self._means[chosen]).mean()))
        return np.eye(2)[[arm]], np.array([reward])

    def fitted(self, belief: object, rng: Seed) -> None: ...

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        return {}


COPIES = 20


def exact_second_regret(noisy: bool) -> float:
    """The expected regret of round 2: E|m1 − m2| / 2 of round 1, less the gain from the posterior after one reward.

    After the reward r ~ N(0, 1 + σ²) of an arm, its mean is N(wr, wσ²), w = 1/(1 + σ²); the other's is N(0, 1).
    Thompson sampling takes it again with probability Φ(wr/√(wσ² + 1)), and its advantage is then wr.
    """
    w = 1 / (1 + NOISE)
    spread = w * NOISE + 1 + (2 * NOISE if noisy else 0)
    best = np.sqrt(2 * 2 / np.pi) / 2  # E max(m1, m2)

    def gained(r: float) -> float:
        return stats.norm.cdf(w * r / np.sqrt(spread)) * w * r * stats.norm.pdf(r, scale=np.sqrt(1 + NOISE))

    return best - integrate.quad(gained, -12, 12)[0]


def mean_second_regret(noisy: bool, runs: int) -> tuple[float, float]:
    regrets = []
    for run in range(runs):
        problem = TwoArms(2, Seed(0).fold("arms", run))
        play(problem, lambda *_: Arms(2, noisy), RULES["thompson"], Seed(0).fold("player", run))
        regrets.append(problem.regret[1])
    return float(np.mean(regrets)), float(np.std(regrets) / np.sqrt(runs))


def test_thompson_sampling_has_its_exact_bayesian_regret() -> None:
    """False alarm: 4 standard errors, 6e-5; draws of rewards in place of functions must fail."""
    right, wrong = exact_second_regret(False), exact_second_regret(True)
    mean, error = mean_second_regret(False, 2500)
    assert abs(mean - right) < 4 * error
    mean, error = mean_second_regret(True, 2500)
    assert abs(mean - wrong) < 4 * error and abs(mean - right) > 4 * error


def test_a_player_may_begin_without_a_known_row() -> None:
    """And has the posterior from the first round on."""
    problem, fit = TwoArms(2, Seed(0)), Mock(side_effect=lambda *_: Arms(2, False))
    play(problem, fit, RULES["thompson"], Seed(1))
    assert [len(call.args[0]) for call in fit.call_args_list] == [0] and len(problem.regret) == 2


def test_the_wheel_has_its_published_shares_rewards_and_noise() -> None:
    """Shares of the disc within 4 standard errors of δ² (false alarm 6e-5)."""
    problem = Wheel(delta=0.8, rounds=4000).problem(Seed(0))
    contexts, means = problem._rows, problem._means * 50
    radius = np.hypot(*contexts.T)
    assert radius.max() <= 1
    near = radius <= 0.8
    assert abs(near.mean() - 0.64) < 4 * np.sqrt(0.64 * 0.36 / 4000)
    assert (means[near] == [1.2, 1, 1, 1, 1]).all()
    assert sorted(means[~near][0]) == [1.0, 1.0, 1.0, 1.2, 50.0]
    arm = means[~near].argmax(1)
    signs = {tuple(row) for row in np.c_[np.sign(contexts[~near]), arm].astype(int)}
    assert len(signs) == 4 and {row[2] for row in signs} == {1, 2, 3, 4}  # an arm for each quadrant
    noise = problem._rewards * 50 - means
    assert noise.std() == pytest.approx(0.01, rel=0.05)


def test_uniform_choices_have_regret_one_and_the_oracle_has_regret_zero() -> None:
    """The regret of uniform choices is 1 within 4 standard errors (false alarm 6e-5), the regret of the oracle 0."""
    shares = []
    for seed in range(30):
        problem = Wheel(delta=0.7, rounds=400).problem(Seed(seed))
        shares.append(play(problem, lambda *_: None, RULES["uniform"], Seed(seed))["regret"][-1][1])
    assert abs(np.mean(shares) - 1) < 4 * np.std(shares) / np.sqrt(30)
    problem = Wheel(delta=0.7, rounds=400).problem(Seed(0))
    regret = play(problem, lambda *_: None, RULES["oracle"], Seed(0))
    assert regret["regret"][-1][1] == 0 and regret["simple_regret"] == [(385, 0.0)]


def test_the_regret_of_a_fixed_arm_equals_the_sum_by_hand() -> None:
    means = np.random.default_rng(0).random((60, 3))
    problem = Bandit(np.zeros((60, 1)), means, means, initial=1, growth=2.0)
    assert problem.refits == (0, 10, 30) and problem.rounds == 50
    for _ in range(5):
        problem.answer(problem.question(10), np.full((10, 1), 2))
    after = means[10:]
    by_hand = (after.max(1) - after[:, 2]).cumsum() / (after.max(1) - after.mean(1)).cumsum()
    curve = dict(problem.curves()["regret"])
    assert curve[50] == pytest.approx(by_hand[-1]) and curve[1] == pytest.approx(by_hand[0])
    rows, targets = problem.known()
    assert rows.shape == (60, 6) and targets[10:] == pytest.approx(after[:, 2] / means.max())


def test_each_arm_has_its_own_columns_and_refits_come_each_time_the_known_rows_grow_by_the_factor() -> None:
    assert in_blocks(np.array([[7.0, 8.0]]), 2).tolist() == [[[7, 8, 1, 0, 0, 0], [0, 0, 0, 7, 8, 1]]]
    assert refits(100, 10, 2.0) == (0, 10, 30, 70)
    assert refits(5, 10, 1.01) == (0, 1, 2, 3, 4)
