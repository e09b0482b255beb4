"""Acquisition functions against enumeration, numeric integration, definitions, and BoTorch with its optimiser."""

import functools
import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.optim import optimize_acqf
from scipy import integrate, stats
from torch import Tensor

from bdl_decisions import RULES, Question, ascent
from bdl_decisions import rules as acquisition
from bdl_decisions.agents import Agent
from bdl_decisions.beliefs import PosteriorBelief
from bdl_decisions.botorch_model import PosteriorModel, botorch_model
from bdl_pipe import BayesianRegressor
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.predictive import mixture
from bdl_pipe.seeds import Seed


def drawn(draws: int, rows: int, classes: int, address: str = "a") -> Tensor:
    logits = 2 * torch.randn(draws, rows, classes, dtype=torch.float64, generator=Seed(0).fold(address).generator())
    return logits.log_softmax(-1)


def information(joint: np.ndarray) -> float:
    """I[a; b] of a table of probabilities, by its definition."""
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    return float((joint * np.log(joint / independent)).sum())


def test_entropy_and_margin_equal_scipy_and_numpy() -> None:
    log_probs = mixture(drawn(4, 6, 3))
    probs = log_probs.exp().numpy()
    assert acquisition.entropy(log_probs).numpy() == pytest.approx([stats.entropy(row) for row in probs])
    ordered = np.sort(probs, 1)
    assert acquisition.margin(log_probs).numpy() == pytest.approx(ordered[:, -2] - ordered[:, -1])


def test_bald_equals_the_mutual_information_of_label_and_draw() -> None:
    draws = drawn(5, 7, 4)
    by_hand = [information(draws[:, row].exp().numpy() / 5) for row in range(7)]
    assert acquisition.bald(draws).numpy() == pytest.approx(by_hand, rel=1e-10)
    draws = torch.tensor([[[0.0, -torch.inf]], [[0.0, -torch.inf]]], dtype=torch.float64)
    assert acquisition.bald(draws).tolist() == [0.0]


def test_epig_equals_the_mean_mutual_information_of_two_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, theirs = drawn(5, 4, 3), drawn(5, 6, 3, "b")
    p, q = candidates.exp().numpy(), theirs.exp().numpy()
    tables = [[np.einsum("sc,sk->ck", p[:, row], q[:, target]) / 5 for target in range(6)] for row in range(4)]
    by_hand = [np.mean([information(table) for table in of_row]) for of_row in tables]
    whole = acquisition.epig(candidates, theirs)
    assert whole.numpy() == pytest.approx(by_hand, rel=1e-9)
    monkeypatch.setattr(acquisition, "_AT_ONCE", 110)  # in parts
    assert torch.allclose(acquisition.epig(candidates, theirs), whole, atol=1e-12)


def test_batch_bald_maximises_the_information_of_the_whole_batch_greedily() -> None:
    draws = drawn(6, 5, 3)
    probs = draws.exp().numpy()

    def of_batch(rows: tuple[int, ...]) -> float:
        """I[y_1 … y_n; draw] over all outcomes."""
        outcomes = itertools.product(range(3), repeat=len(rows))
        table = [np.prod([probs[:, row, y] for row, y in zip(rows, ys, strict=True)], axis=0) / 6 for ys in outcomes]
        return information(np.array(table))

    chosen = acquisition.batch_bald(draws, 3)
    for size in (1, 2, 3):
        before = tuple(chosen[: size - 1])
        others = [row for row in range(5) if row not in before]
        assert chosen[size - 1] == max(others, key=lambda row: of_batch((*before, row)))
    joint = torch.ones(6, 1, dtype=torch.float64)
    for row in chosen[:2]:
        joint = (joint[:, :, None] * draws.exp()[:, None, row]).flatten(1)
    inner = -(draws.exp() * draws).sum(-1).mean(0)
    gain = acquisition.joint_entropy(joint, draws.exp())[chosen[2]] - inner[chosen].sum()
    assert float(gain) == pytest.approx(of_batch(tuple(chosen)), rel=1e-9)


def test_batch_bald_avoids_copies_that_bald_takes_and_refuses_too_large_a_batch() -> None:
    """Rows 0 to 2 tell the first two of four draws from the last two; row 3 splits both pairs, with less certainty."""
    first = torch.tensor([0.99, 0.99, 0.01, 0.01]).double()
    second = torch.tensor([0.9, 0.1, 0.9, 0.1]).double()
    probs = torch.stack([first, first, first, second], 1)
    draws = torch.stack([probs, 1 - probs], -1).log()
    assert 3 not in acquisition.bald(draws).topk(2).indices.tolist()
    assert acquisition.batch_bald(draws, 2) == [0, 3]
    with pytest.raises(ConfigError, match=r"^batch must be <= 5 for batch_bald with 10 classes, got 6$"):
        acquisition.batch_bald(drawn(2, 8, 10), 6)


@pytest.mark.parametrize(("mean", "deviation", "best"), [(0.3, 1.2, 0.5), (-2.0, 0.4, 0.0), (3.0, 0.1, 1.0)])
def test_expected_improvement_equals_its_integral(mean: float, deviation: float, best: float) -> None:
    density = stats.norm(mean, deviation).pdf
    edges = (max(best, mean - 12 * deviation), max(best, mean) + 12 * deviation)
    by_hand = integrate.quad(lambda f: (f - best) * density(f), *edges, epsabs=1e-14)[0]
    improvement = acquisition.expected_improvement(torch.tensor([[[mean]]]), torch.tensor([[[deviation]]]), best)
    assert float(improvement) == pytest.approx(by_hand, rel=1e-6, abs=1e-12)


def test_expected_improvement_of_a_mixture_is_the_mean_over_its_parts() -> None:
    mean, deviation = torch.tensor([[[0.2]], [[1.5]]]), torch.tensor([[[0.7]], [[0.0]]])
    first, both = (acquisition.expected_improvement(mean[:n], deviation[:n], 0.4) for n in (1, 2))
    assert float(both) == pytest.approx((float(first) + 1.1) / 2, rel=1e-6)


def test_batch_improvement_adds_the_best_row_at_each_step() -> None:
    values = torch.randn(20, 6, dtype=torch.float64, generator=Seed(1).generator())

    def of_batch(rows: list[int]) -> float:
        return float(np.mean([max(max(float(v[row]) for row in rows) - 0.2, 0.0) for v in values]))

    chosen = acquisition.batch_improvement(values, 0.2, 3)
    for size in (1, 2, 3):
        others = [row for row in range(6) if row not in chosen[: size - 1]]
        assert chosen[size - 1] == max(others, key=lambda row: of_batch([*chosen[: size - 1], row]))


def test_each_draw_takes_its_best_row_that_is_still_free() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    assert acquisition.different(scores).tolist() == [1, 2, 0]


@pytest.mark.parametrize("z", [30.0, 2.0, 0.0, -0.9, -1.1, -7.0, -40.0, -900.0, -1100.0, -1e5])
def test_log_expected_improvement_equals_fifty_digits(z: float) -> None:
    with mpmath.workdps(50):
        exact = mpmath.log(mpmath.npdf(z) + z * mpmath.ncdf(z)) if z > -35 else None
        if exact is None:  # log φ(z) − log z² + log(1 − 3/z² + 15/z⁴ − …), whose error is below its next term
            series = sum((-1) ** k * mpmath.fac2(2 * k + 1) / mpmath.mpf(z) ** (2 * k) for k in range(8))
            exact = mpmath.log(mpmath.npdf(z)) - 2 * mpmath.log(-z) + mpmath.log(series)
        exact += mpmath.log(0.7)
    mean = torch.tensor([[[0.3 + 0.7 * z]]], dtype=torch.float64).requires_grad_()
    value = ascent.log_expected_improvement(mean, torch.tensor([[[0.7]]], dtype=torch.float64), 0.3)
    assert value.item() == pytest.approx(float(exact), rel=1e-9, abs=1e-9)
    (slope,) = torch.autograd.grad(value.sum(), mean)
    assert slope.isfinite().all() and slope.item() > 0


def test_log_expected_improvement_is_the_log_of_expected_improvement() -> None:
    mean, deviation = torch.randn(3, 1, 5, dtype=torch.float64), torch.rand(3, 1, 5, dtype=torch.float64) + 0.1
    plain = acquisition.expected_improvement(mean, deviation, 0.4)
    assert ascent.log_expected_improvement(mean, deviation, 0.4).exp().numpy() == pytest.approx(plain.numpy())


@functools.cache
def fitted(method: str) -> tuple[object, Question]:
    rows = Seed(0).numpy().random((30, 2))
    values = -np.square(rows - [0.3, 0.7]).sum(1)
    candidates = Seed(1).numpy().random((1, 40, 2))
    question = Question(candidates, 2, (rows, values), continuous=True)
    return Agent("ucb", method, pace=0.02).fit(rows, values, (), Seed(0)), question


@pytest.mark.parametrize("method", ["map_blr", "gp"])
@pytest.mark.parametrize("rule", ["greedy", "ucb", "expected_improvement", "thompson"])
def test_a_proposed_point_is_a_local_maximum_that_no_candidate_reaches(method: str, rule: str) -> None:
    """The gradient is checked by the end: no step in any direction gains, though steps from the best candidate do."""
    belief, question = fitted(method)
    acquisition_of = {
        "greedy": ascent.mean_of,
        "ucb": ascent.bound_of,
        "expected_improvement": ascent.improvement_of,
        "thompson": ascent.function_of,
    }[rule]
    value = acquisition_of(belief, question, 1.0, Seed(2), torch.zeros(0, 2, dtype=torch.float64))
    point = ascent.best_point(value, question.candidates[0], torch.zeros(0, 2), Seed(3))
    around = [(point + 0.02 * torch.tensor(step)).clamp(0, 1) for step in ([1, 0], [-1, 0], [0, 1], [0, -1])]
    at, near = value(point[None]), value(torch.stack(around))
    candidates = torch.from_numpy(question.candidates[0])
    if rule == "thompson" and method == "gp":  # draws at the candidates only
        assert (candidates == point).all(1).any()
        return
    spread = value(candidates).std().item()
    assert (near <= at + 1e-3 * spread).all() and at > value(candidates).max()


def test_the_unit_of_the_values_adds_its_logarithm_to_that_of_the_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    belief, question = fitted("map_blr")
    points, unit = torch.from_numpy(question.candidates[0]), 1e-12
    plain = ascent.improvement_of(belief, question, 1.0, Seed(2), points[:0])(points)
    parts, (rows, values) = belief.parts, question.known
    monkeypatch.setattr(belief, "parts", lambda *asked: tuple(unit * part for part in parts(*asked)))
    question = replace(question, known=(rows, unit * values))
    small = ascent.improvement_of(belief, question, 1.0, Seed(2), points[:0])(points)
    torch.testing.assert_close(small, plain + math.log(unit))


def test_a_batch_has_different_points_inside_the_cube_and_tells_apart_what_it_has_chosen() -> None:
    belief, question = fitted("gp")
    points = RULES["expected_improvement"].propose(belief, question, 1.0, Seed(0))
    assert points.shape == (2, 2) and ((points >= 0) & (points <= 1)).all()
    assert np.abs(points[0] - points[1]).max() > 1e-4
    again = RULES["expected_improvement"].propose(belief, question, 1.0, Seed(0))
    assert (again == points).all()


@pytest.mark.parametrize("best", [[0.5, 0.5, 0.5], [0.05, 0.95, 0.5]])
def test_points_stay_in_the_region_around_the_best_input(best: list[float]) -> None:
    """The maximum of a linear function is a corner of the box, of the cube without a region."""
    known = np.array([best, [0.2, 0.2, 0.2]]), np.array([1.0, 0.0])
    asked = Question(np.random.default_rng(0).random((1, 200, 3)), 1, known, continuous=True)
    slope = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    for question, low, high in ((asked, 0.0, 1.0), (ascent.around_best(asked, 0.1, Seed(1)), *_box(best, 0.1))):
        candidates = question.candidates[0]
        assert candidates.shape == (200, 3) and (candidates >= low).all() and (candidates <= high).all()
        point = ascent.best_point(lambda x: x @ slope, candidates, torch.zeros(0, 3), Seed(3), question.box)
        corner = np.where(slope > 0, high, low)
        np.testing.assert_allclose(point, corner, atol=1e-12)


def _box(best: list[float], region: float) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(np.array(best) - region, 0), np.minimum(np.array(best) + region, 1)


def test_a_drawn_function_has_the_moments_of_its_belief() -> None:
    """The mean of 400 draws lies within 5 standard errors at ten points: a false alarm in 2e5 tests; the wrong variant,
    a draw from the covariance's factor in place of its inverse, does not."""
    belief, question = fitted("map_blr")
    points = question.candidates[:, :10]
    mean, deviation = (part[0, 0] for part in belief.parts(points, Seed(0)))
    drawn = torch.stack([belief.drawn(Seed(0).fold(number))(points[0]) for number in range(400)])
    assert ((drawn.mean(0) - mean).abs() < 5 * deviation / 20).all()
    assert ((drawn.std(0) / deviation - 1).abs() < 5 / math.sqrt(800)).all()


CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@functools.cache
def fitted_model(method: str) -> tuple[PosteriorModel, PosteriorBelief, Question]:
    rows = np.random.default_rng(0).random((40, 2))
    values = 50 - 100 * np.square(rows - [0.3, 0.7]).sum(1)
    regressor = BayesianRegressor(method, pace=0.05).fit(rows, values)
    question = Question(np.random.default_rng(1).random((1, 200, 2)), 1, (rows, values), continuous=True)
    return botorch_model(regressor), PosteriorBelief(regressor.fitted_.predictor(), method), question


@pytest.mark.parametrize("method", ["vbll", "gp"])
def test_botorchs_acquisition_and_optimiser_agree_with_ours(method: str) -> None:
    model, belief, question = fitted_model(method)
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
    model, belief, question = fitted_model("dropout")
    points = torch.from_numpy(question.candidates[0, :3])[None]
    values = model.posterior(points).values[0, ..., 0]
    assert torch.equal(values, belief.values(points, 128, Seed(0))[:, 0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batch, gain = optimize_acqf(qLogExpectedImprovement(model, question.best), CUBE, 2, 1, 16)
    assert batch.shape == (2, 2) and torch.isfinite(gain)


def test_noise_and_several_targets_are_refused() -> None:
    model, _, question = fitted_model("gp")
    with pytest.raises(UserError, match=r"^observation_noise must be False: the model's functions have no noise"):
        model.posterior(torch.from_numpy(question.candidates[:, :2]), observation_noise=True)
    rows = np.random.default_rng(0).random((40, 2))
    with pytest.raises(ValueError, match="targets must be one column of numbers for a model of BoTorch"):
        botorch_model(BayesianRegressor("linear").fit(rows, rows @ [[1.0, 2.0], [3.0, 1.0]]))
