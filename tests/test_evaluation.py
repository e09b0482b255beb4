"""The evaluation of posteriors whose every answer is known beforehand."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
import torch
from torch import Tensor

from bdl_pipe import config, evaluation, metrics
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, DataError, Diverged
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.evaluation.joint import dyadic_places, nearest_pairs, neighbours, random_pairs
from bdl_pipe.joint_predictive import GaussianFunctions, Joint, JointCategorical
from bdl_pipe.metrics.joint import GroupLogProbs
from bdl_pipe.posterior import Predictor, joint
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.scores import Quantity
from bdl_pipe.seeds import Seed
from tests.refusals import refusal

SETTINGS = EvaluateConfig(calibration_bins=15, batch=8, joint_pairs=500)
GROUPS = EvaluateConfig(calibration_bins=15, batch=8, joint_pairs=500, joint_groups=40)
PLAIN = Transform("table", torch.zeros(2), torch.ones(2))
WIDE = replace(PLAIN, shift=torch.tensor([50.0]), scale=torch.tensor([10.0]))


@dataclass(frozen=True)
class Linear:
    """Draw s predicts softmax(x · weights[s]), or N(x · weights[s], 1) where ``gaussian``."""

    weights: Tensor  # [draw, feature, output]
    gaussian: bool = False

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        outputs = torch.einsum("bf,sfo->sbo", inputs, self.weights.to(inputs))
        return Gaussian(outputs, torch.ones_like(outputs)) if self.gaussian else Categorical(outputs.log_softmax(-1))

    def state(self) -> State:
        return State({"weights": self.weights}, {"posterior": "linear"})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Linear":
        return cls(state.tensors["weights"])


@dataclass(frozen=True)
class Dense(Linear):
    """:class:`Linear` that also gives each row the log density −‖x‖²."""

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        predictive = super().predict(inputs, rng=rng)
        assert isinstance(predictive, Categorical)
        return Categorical(predictive.draw_log_probs, {"feature_density": -inputs.square().sum(-1)})


@dataclass(frozen=True)
class Functions(Linear):
    """Outputs x · w_k, w_k ~ N(the weights' mean, I): a Gaussian over functions, of logits or of noise .3."""

    def functions(self, inputs: Tensor, *, rng: Seed) -> GaussianFunctions:
        rows = inputs.double()
        noise = torch.full((1, self.weights.shape[-1]), 0.3 if self.gaussian else 0.0)
        covariance = (rows @ rows.mT)[None, :, None]
        return GaussianFunctions((rows @ self.weights.mean(0))[None], covariance, noise, not self.gaussian)


@dataclass(frozen=True)
class Shared(Linear):
    """The draws of :class:`Linear` as a joint of its own."""

    def joint(self, inputs: Tensor, *, places: Tensor | None, draws: int, rng: Seed) -> Joint:
        distribution = joint(Linear(self.weights, self.gaussian), inputs, rng=rng)
        return distribution.at(places) if isinstance(distribution, JointCategorical) else distribution


@dataclass(frozen=True)
class Recording:
    """Predicts uniformly and records the batches and seeds of its calls."""

    asked: list[Any]

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        self.asked.append((inputs[:, 0].tolist(), rng))
        return Categorical(torch.full((1, len(inputs), 3), -math.log(3)))

    def state(self) -> State:
        return State()

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Recording":
        return cls([])


def classes(draws: int, rows: int = 61) -> tuple[Predictor, Examples, np.ndarray]:
    """A posterior, a split, and the mixture's probabilities in float64 by numpy."""
    random = Seed(7).numpy()
    weights, inputs = random.normal(size=(draws, 2, 3)), random.normal(size=(rows, 2))
    outputs = np.exp(np.einsum("bf,sfo->sbo", inputs, weights))
    probs = (outputs / outputs.sum(-1, keepdims=True)).mean(0)
    split = Examples(inputs, random.integers(3, size=rows))
    return Predictor(Linear(torch.tensor(weights)), PLAIN), split, probs


def test_scores_of_classes_equal_numpy_and_scikit_learn() -> None:
    fitted, split, probs = classes(draws=4)
    result = evaluation.score_clean(fitted, split, SETTINGS, Seed(0))
    truth = np.eye(3)[split.targets]
    expected = {
        "accuracy": (probs.argmax(1) == split.targets).mean(),
        "nll": sklearn.metrics.log_loss(split.targets, probs),
        "brier": ((probs - truth) ** 2).sum(1).mean(),
        "entropy": -(probs * np.log(probs)).sum(1).mean(),
    }
    assert {k: result.metrics[k][0] for k in expected} == pytest.approx(expected, abs=1e-5)
    counts = dict.fromkeys([*expected, "ece", "mutual_information", "batch_nll"], 61)
    counts |= {"joint_nll": 500, "joint_gap": 500, "joint_draws": 1}
    assert {k: n for k, (_, n) in result.metrics.items()} == counts
    assert list(result.metrics) == [name for name in metrics.METRICS if name in counts]


def test_the_stored_tables_reproduce_the_metrics() -> None:
    fitted, split, probs = classes(draws=4)
    result = evaluation.score_clean(fitted, split, SETTINGS, Seed(0))
    table = result.predictions.to_pydict()
    assert list(table) == ["row", "target", "p_0", "p_1", "p_2", "entropy", "mutual_information", "log_prob"]
    assert table["row"] == list(range(61))
    assert table["target"] == split.targets.tolist()
    np.testing.assert_allclose(np.stack([table[f"p_{k}"] for k in range(3)], 1), probs, atol=1e-6)
    assert -np.mean(table["log_prob"]) == pytest.approx(result.metrics["nll"][0], rel=1e-6)
    assert result.calibration is not None
    bins = result.calibration.to_pandas()
    assert list(bins.columns) == ["bin", "lower", "upper", "count", "confidence", "accuracy"]
    gap = ((bins.accuracy - bins.confidence).abs() * bins["count"]).sum() / 61
    assert gap == pytest.approx(result.metrics["ece"][0], rel=1e-9)
    assert (bins.accuracy * bins["count"]).sum() / 61 == pytest.approx(result.metrics["accuracy"][0])


@pytest.mark.parametrize("draws", [1, 4])
def test_the_batch_size_changes_no_score_but_batch_nll(draws: int) -> None:
    fitted, split, _ = classes(draws)
    small = evaluation.score_clean(fitted, split, EvaluateConfig(15, 5, 500), Seed(0))
    large = evaluation.score_clean(fitted, split, EvaluateConfig(15, 1000, 500), Seed(0))
    for name, (value, n) in large.metrics.items():
        if name != "batch_nll":  # this score depends on the batches
            assert small.metrics[name] == (pytest.approx(value, abs=1e-6), n)


def test_batch_nll_averages_over_the_batches_that_are_predicted() -> None:
    fitted, split, _ = classes(draws=4)
    logs = fitted.predict(split.inputs, rng=Seed(0)).draw_log_probs.double()[:, range(61), split.targets].numpy()
    parts = np.split(logs, np.linspace(0, 61, 14).astype(int)[1:-1], axis=1)  # 61 rows in batches of at most 5
    nlls = [-scipy.special.logsumexp(part.mean(1), b=1 / 4) for part in parts]
    expected = np.average(nlls, weights=[part.shape[1] for part in parts])
    metrics = evaluation.score_clean(fitted, split, EvaluateConfig(15, 5, 500), Seed(0)).metrics
    assert metrics["batch_nll"] == (pytest.approx(expected, abs=1e-6), 61)
    assert metrics["nll"][0] < expected - 1e-3 and expected < -logs.mean() - 1e-3


def test_one_draw_has_no_mutual_information_and_a_joint_gap_of_zero() -> None:
    fitted, split, _ = classes(draws=1)
    result = evaluation.score_clean(fitted, split, SETTINGS, Seed(0))
    assert not {"mutual_information", "batch_nll"} & set(result.metrics)
    assert set(result.in_distribution_scores) == {"max_prob"}
    assert result.metrics["joint_gap"][0] == 0.0


def test_draws_that_are_sure_of_different_classes_have_the_closed_form_joint_gap() -> None:
    """Each of two draws is sure of its own class for all rows; all labels are the class of the first draw."""
    weights = torch.tensor([[[4.0, 0.0, 0.0], [0, 0, 0]], [[0.0, 4.0, 0.0], [0, 0, 0]]])
    split = Examples(np.ones((40, 2)), np.zeros(40, dtype=int))
    metrics = evaluation.score_clean(Predictor(Linear(weights), PLAIN), split, SETTINGS, Seed(0)).metrics
    sure, other = math.exp(4) / (math.exp(4) + 2), 1 / (math.exp(4) + 2)
    joint = (sure**2 + other**2) / 2
    assert metrics["joint_nll"][0] == pytest.approx(-math.log(joint), rel=1e-5)
    assert metrics["joint_gap"][0] == pytest.approx(math.log(joint / ((sure + other) / 2) ** 2), rel=1e-5)


JOINT = [f"joint_{what}_{size}" for size in (2, 5, 20) for what in ("nll", "gap")]


def test_joint_scores_of_groups_around_two_anchors_equal_a_sum_by_hand() -> None:
    """Classes: each observation of a group is a neighbour of one of two anchors; all posteriors have equal groups."""
    fitted, split, probs = classes(draws=4)
    metrics = evaluation.score_clean(fitted, split, GROUPS, Seed(0)).metrics
    without = evaluation.score_clean(fitted, split, SETTINGS, Seed(0)).metrics
    assert {name: metrics[name] for name in without} == without
    assert [name for name in metrics if name not in without] == JOINT
    anchors = random_pairs(61, 500, Seed(0).fold("elsewhere"))[:40]
    places = dyadic_places(61, 40, Seed(0))
    assert set(places.unique().tolist()) == {0, 1} and 0.4 < places.double().mean() < 0.6
    logs = fitted.predict(split.inputs, rng=Seed(0)).draw_log_prob(torch.tensor(split.targets)).double().numpy()
    for size in (2, 5, 20):
        rows = neighbours(torch.tensor(split.inputs), anchors, places)[:, :size].numpy()
        joint = scipy.special.logsumexp(logs[:, rows].sum(-1), axis=0) - math.log(4)
        product = np.log(probs[rows, split.targets[rows]]).sum(-1)
        assert metrics[f"joint_nll_{size}"] == (pytest.approx(-joint.mean(), rel=1e-5), 40)
        assert metrics[f"joint_gap_{size}"] == (pytest.approx((joint - product).mean(), abs=1e-5), 40)
    assert metrics["joint_draws"] == (4, 1)


def test_a_joint_score_is_the_mean_over_blocks_of_twenty_draws() -> None:
    """500 draws score as 20 do on average, and would score better if they were mixed all at once; 45 are two blocks."""
    terms, groups = torch.tensor(Seed(11).numpy().normal(-1, 2, size=(45, 80))), torch.arange(80).view(4, 20)
    log_probs, _ = GroupLogProbs.of_terms(terms, groups).scores(20)
    logs = terms[:, groups].sum(-1).numpy()  # [draw, group]
    blocks = [scipy.special.logsumexp(logs[at : at + 20], axis=0) - math.log(20) for at in (0, 20)]
    assert log_probs.value == pytest.approx(-np.mean(blocks), rel=1e-12)
    assert log_probs.value > -np.mean(scipy.special.logsumexp(logs, axis=0) - math.log(45)) + 0.1
    few, _ = GroupLogProbs.of_terms(terms[:5], groups).scores(20)
    assert few.value == pytest.approx(-np.mean(scipy.special.logsumexp(logs[:5], axis=0) - math.log(5)), rel=1e-12)


def test_a_gaussian_over_functions_is_scored_by_its_functions_and_not_as_a_product() -> None:
    """Against 20,000 draws of its weights on the same groups, both 20 draws at once: 500 draws at each group."""
    fitted, split, _ = classes(draws=1)
    weights = fitted.posterior.weights
    drawn = weights + torch.randn(20_000, *weights.shape[1:], generator=torch.Generator().manual_seed(0)).double()
    metrics = evaluation.score_clean(Predictor(Functions(weights), PLAIN), split, GROUPS, Seed(0)).metrics
    expected = evaluation.score_clean(Predictor(Linear(drawn), PLAIN), split, GROUPS, Seed(0)).metrics
    for name in JOINT:
        assert metrics[name] == (pytest.approx(expected[name][0], abs=0.5 if "20" in name else 0.05), 40)
    assert metrics["joint_draws"] == (20, 1)
    assert metrics["joint_gap"][1] == 40 and abs(metrics["joint_gap"][0]) > 1e-3
    none = evaluation.score_clean(Predictor(Functions(weights), PLAIN), split, SETTINGS, Seed(0)).metrics
    assert not {"joint_nll", "joint_gap"} & set(none), "one draw would be a gap of 0"


def test_joint_scores_of_regression_are_of_neighbours_in_original_units() -> None:
    """Against the dense normal law of each group; one draw has no gap."""
    random = Seed(8).numpy()
    inputs, targets = random.normal(size=(30, 2)), 50 + 10 * random.normal(size=(30, 1))
    split, mean = Examples(inputs, targets), torch.tensor(random.normal(size=(1, 2, 1)))
    metrics = evaluation.score_clean(Predictor(Functions(mean, gaussian=True), WIDE), split, GROUPS, Seed(0)).metrics
    assert [name for name in metrics if "joint" in name] == [*JOINT, "joint_draws"] and metrics["joint_draws"] == (0, 1)
    rows = neighbours(torch.tensor(inputs), random_pairs(30, 500, Seed(0))[:40], dyadic_places(30, 40, Seed(0))).numpy()
    x, z = inputs[rows], (targets[rows, 0] - 50) / 10
    covariance = x @ x.transpose(0, 2, 1) + 0.3 * np.eye(20)
    for size in (2, 5, 20):
        laws = (
            scipy.stats.multivariate_normal((a @ mean[0].numpy())[:size, 0], c[:size, :size])
            for a, c in zip(x, covariance, strict=True)
        )
        expected = size * math.log(10) - np.mean([law.logpdf(y[:size]) for law, y in zip(laws, z, strict=True)])
        assert metrics[f"joint_nll_{size}"] == (pytest.approx(expected, rel=1e-5), 40)
    drawn, nine = Predictor(Linear(mean, gaussian=True), WIDE), Examples(inputs[:9], targets[:9])
    whole, few = (evaluation.score_clean(drawn, rows, GROUPS, Seed(0)).metrics for rows in (split, nine))
    assert whole["joint_gap_20"][0] == pytest.approx(0, abs=1e-12)
    assert [name for name in few if "joint" in name] == [*JOINT[:4], "joint_draws"], "nine rows have no 20 neighbours"


@pytest.mark.parametrize("gaussian", [True, False])
def test_the_own_joint_of_a_posterior_by_draws_has_the_scores_of_the_draws(gaussian: bool) -> None:
    random = Seed(8).numpy()
    weights, inputs = torch.tensor(random.normal(size=(4, 2, 3))), random.normal(size=(30, 2))
    targets = random.normal(size=(30, 3)) if gaussian else random.integers(3, size=30)
    fits, rows = [Predictor(kind(weights, gaussian), PLAIN) for kind in (Shared, Linear)], Examples(inputs, targets)
    metrics, expected = (evaluation.score_clean(fitted, rows, GROUPS, Seed(0)).metrics for fitted in fits)
    for name in JOINT:
        assert metrics[name] == (pytest.approx(expected[name][0], abs=1e-5), expected[name][1])


def test_neighbours_are_the_nearest_rows_that_are_not_yet_taken() -> None:
    random = Seed(9).numpy()
    inputs, anchors = torch.tensor(random.normal(size=(12, 3))), torch.tensor([[3, 7], [0, 1]])
    places = torch.tensor(random.integers(2, size=(2, 12)))
    places_of = neighbours(inputs, anchors, places)
    for group in range(2):
        rest = set(range(12))
        for row, place in zip(places_of[group].tolist(), places[group].tolist(), strict=True):
            distance = (inputs - inputs[anchors[group, place]]).norm(dim=1)
            assert row == min(rest, key=lambda other: float(distance[other]))
            rest.remove(row)
    assert torch.equal(neighbours(inputs, anchors, places[:, :5]), places_of[:, :5])
    with pytest.raises(DataError, match=r"^a group must have at most 12 inputs, as many as there are rows, got 13$"):
        neighbours(inputs, anchors, torch.zeros(2, 13, dtype=torch.long))


def test_the_probability_of_the_same_class_along_a_line_equals_a_sum_over_draws_and_classes() -> None:
    """The one input is at the line's beginning, at its middle, or between two steps."""
    fitted, split, _ = classes(draws=4)
    first, second = torch.tensor(split.inputs[:2])
    at = first + torch.linspace(0, 1, 5).double()[:, None] * (second - first)
    for options in ({}, {"anchor": 0.5}, {"anchor": 0.3}):
        shares = evaluation.same_class_along(fitted.posterior, first, second, steps=5, rng=Seed(0), **options)
        one = (first + options.get("anchor", 0.0) * (second - first)).numpy()
        expected = enumerated(fitted, np.tile(one, (5, 1)), at.numpy())
        assert shares["share"].to_pylist() == [0, 0.25, 0.5, 0.75, 1]
        np.testing.assert_allclose(shares["joint"], expected[0], rtol=1e-6)
        np.testing.assert_allclose(shares["product"], expected[1], rtol=1e-6)
    wrong: list[tuple[Any, Tensor, int, str]] = [
        (fitted.posterior, second, 1, "ConfigError: steps must be > 1, got 1"),
        (fitted.posterior, second[:1], 3, "DataError: second must have the shape of first, (2,), got (1,)"),
        (Linear(torch.ones(2, 2, 3).double(), gaussian=True), second, 3,
         "DataError: the posterior must be one of classes, got one of regression"),
    ]  # fmt: skip
    for posterior, other, steps, message in wrong:
        assert refusal(evaluation.same_class_along, posterior, first, other, steps=steps, rng=Seed(0)) == message


def enumerated(fitted: Predictor, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(Y₁ = Y₂) of pairs of rows of a :class:`Linear`, summed over draws and classes: the joint, and the product."""
    weights = fitted.posterior.weights.numpy()  # type: ignore[attr-defined]
    p, q = (scipy.special.softmax(np.einsum("rf,sfo->sro", x, weights), -1) for x in (one, other))  # [draw, row, class]
    return (p * q).sum(-1).mean(0), (p.mean(0) * q.mean(0)).sum(-1)


def test_pairs_are_the_nearest_rows_of_different_classes() -> None:
    """Against an enumeration of all pairs; rows 3 and 8 are equal and of different classes, and are no pair."""
    random = Seed(4).numpy()
    inputs, targets = random.normal(size=(30, 2, 2)), random.integers(3, size=30)
    inputs[8], targets[8] = inputs[3], (targets[3] + 1) % 3
    flat, expected, taken = inputs.reshape(30, -1), list[tuple[int, int]](), set[int]()
    pairs = itertools.combinations(range(30), 2)
    by_distance = sorted((float(np.linalg.norm(flat[a] - flat[b])), a, b) for a, b in pairs)
    for distance, a, b in by_distance:
        if distance > 0 and targets[a] != targets[b] and not {a, b} & taken:
            expected.append((a, b))
            taken |= {a, b}
    closest = nearest_pairs(torch.tensor(inputs), targets, 100)
    assert closest == expected and nearest_pairs(torch.tensor(inputs), targets, 4) == expected[:4]
    nearest = next((a, b) for distance, a, b in by_distance if distance > 0)
    assert targets[nearest[0]] == targets[nearest[1]], "the nearest rows have one class, so that the classes matter"
    assert nearest_pairs(torch.zeros(5, 2), np.arange(5), 3) == nearest_pairs(torch.ones(1, 2), np.arange(1), 3) == []


def test_the_same_class_line_is_the_mean_over_pairs() -> None:
    """For two draws, whose mean over draws and pairs is enumerated; rows after the first 500 are in no pair."""
    random = Seed(5).numpy()
    weights = torch.tensor(2 * random.normal(size=(2, 2, 3)))
    inputs, targets = random.normal(size=(504, 2)), random.integers(3, size=504)
    inputs[500:], targets[500:] = inputs[:4] + 1e-4, (targets[:4] + 1) % 3  # nearer than all pairs of the first 500
    fitted = Predictor(Linear(weights), Transform("table", torch.full((2,), 0.5), torch.tensor([1.0, 3.0])))
    result = evaluation.score_clean(fitted, Examples(inputs, targets), GROUPS, Seed(0))
    assert result.line is not None and result.tables["same_class"] is result.line
    columns = result.line.to_pydict()
    assert list(columns) == ["share", "joint", "product"]
    np.testing.assert_allclose(columns["share"], np.arange(21) / 20, rtol=1e-6)
    seen = fitted.transform.inputs(inputs).double().numpy()
    pairs = nearest_pairs(torch.tensor(seen[:500]), targets[:500], 10)
    assert len(pairs) == 10 and pairs != nearest_pairs(torch.tensor(inputs[:500]), targets[:500], 10)
    share, both = np.arange(21)[:, None] / 20, []
    for a, b in pairs:
        line = seen[a] + share * (seen[b] - seen[a])
        both.append(enumerated(fitted, np.tile(line[10], (21, 1)), line))
    for name, expected in zip(("joint", "product"), np.mean(both, axis=0), strict=True):
        np.testing.assert_allclose(columns[name], expected, rtol=1e-5)
    gap = np.subtract(columns["joint"], columns["product"])
    assert gap[10] > 0.01 and gap[10] == pytest.approx(gap.max(), rel=0.2)
    one = Predictor(Linear(weights[:1]), fitted.transform)
    alone = evaluation.score_clean(one, Examples(inputs, targets), GROUPS, Seed(0)).line
    assert alone is not None
    np.testing.assert_allclose(alone["joint"], alone["product"], rtol=1e-12)
    predictor, rows, changed = (
        Predictor(Shared(weights), fitted.transform),
        Examples(inputs, targets),
        np.roll(targets, 1),
    )
    assert evaluation.score_clean(predictor, rows, GROUPS, Seed(0)).line == result.line
    assert evaluation.score_clean(fitted, Examples(inputs, changed), GROUPS, Seed(0)).line != result.line


def test_no_same_class_line_exists_without_groups_pairs_or_classes() -> None:
    fitted, split, _ = classes(draws=4)
    one_class, regression = Examples(split.inputs, 0 * split.targets), Examples(split.inputs, split.inputs[:, :1])
    gaussian = Predictor(Linear(torch.ones(2, 2, 1).double(), gaussian=True), PLAIN)
    asked = [(fitted, split, SETTINGS), (fitted, one_class, GROUPS), (gaussian, regression, GROUPS)]
    for posterior, rows, options in asked:
        without = evaluation.score_clean(posterior, rows, options, Seed(0))
        assert without.line is None and "same_class" not in without.tables


def test_every_row_is_predicted_once_in_order_with_one_seed_in_even_batches() -> None:
    recording = Recording([])
    split = Examples(np.arange(34.0).reshape(17, 2), np.zeros(17, dtype=int))
    evaluation.score_clean(Predictor(recording, PLAIN), split, SETTINGS, Seed(3))
    assert [len(rows) for rows, _ in recording.asked] == [5, 6, 6]
    assert [row for rows, _ in recording.asked for row in rows] == split.inputs[:, 0].tolist()
    assert len({seed for _, seed in recording.asked}) == 1


def test_score_classification_gives_the_clean_scores_on_clean_rows() -> None:
    fitted, split, _ = classes(draws=4)
    clean = evaluation.score_clean(fitted, split, SETTINGS, Seed(0)).metrics
    shifted = evaluation.score_classification(fitted, split, SETTINGS, Seed(1))
    assert shifted == {name: clean[name] for name in ("accuracy", "nll", "brier", "ece")}


def test_unfamiliar_data_are_scored_by_every_ood_score_of_the_posterior() -> None:
    """Rows at the origin are uniform under every draw: least confident, and with no disagreement."""
    fitted, split, probs = classes(draws=4)
    clean = evaluation.score_clean(fitted, split, SETTINGS, Seed(0)).in_distribution_scores
    np.testing.assert_allclose(np.exp(clean["max_prob"]), probs.max(1), atol=1e-6)
    scores = evaluation.score_ood(fitted, np.zeros((9, 2)), clean, SETTINGS, Seed(0))
    names = ("auroc", "aupr_in", "aupr_out", "fpr95")
    assert {score: {*by} for score, by in scores.items()} == {"max_prob": {*names}, "mutual_information": {*names}}
    assert scores["max_prob"]["auroc"] == (1.0, 70)
    assert scores["max_prob"]["fpr95"] == (0.0, 70)
    assert scores["mutual_information"]["auroc"] == (0.0, 70)  # no disagreement looks familiar


@pytest.mark.parametrize("draws", [1, 4])
def test_a_feature_density_is_an_ood_score_of_its_own(draws: int) -> None:
    """Far rows in a direction that belongs to one class: the density tells them apart, ``max_prob`` does not."""
    fitted, split, _ = classes(draws)
    dense = Predictor(Dense(fitted.posterior.weights), PLAIN)
    plain = evaluation.score_clean(fitted, split, SETTINGS, Seed(0))
    result = evaluation.score_clean(dense, split, SETTINGS, Seed(0))
    assert result.metrics == plain.metrics  # nothing else changes
    assert set(result.in_distribution_scores) == set(plain.in_distribution_scores) | {"feature_density"}
    np.testing.assert_allclose(result.in_distribution_scores["feature_density"], -(split.inputs**2).sum(1), rtol=1e-5)
    near, far = split.inputs[:20] * 0.01, split.inputs[:30] + 50
    scores = evaluation.score_ood(dense, far, result.in_distribution_scores, SETTINGS, Seed(0))
    before = evaluation.score_ood(fitted, far, plain.in_distribution_scores, SETTINGS, Seed(0))
    assert set(scores) == set(before) | {"feature_density"}
    assert {name: scores[name] for name in before} == before
    assert scores["feature_density"]["auroc"] == (1.0, 91)
    assert scores["max_prob"]["auroc"][0] < 0.5
    nearer = evaluation.score_ood(dense, near, result.in_distribution_scores, SETTINGS, Seed(0))
    assert nearer["feature_density"]["auroc"][0] < 0.05


def test_regression_is_scored_in_original_units() -> None:
    random = Seed(8).numpy()
    inputs, weights = random.normal(size=(30, 2)), random.normal(size=(3, 2, 1))
    targets = 50 + 10 * random.normal(size=(30, 1))
    fitted = Predictor(Linear(torch.tensor(weights), gaussian=True), WIDE)
    result = evaluation.score_clean(fitted, Examples(inputs, targets), SETTINGS, Seed(0))
    draws = 50 + 10 * np.einsum("bf,sfo->sbo", inputs, weights)
    density = (np.exp(-0.5 * ((targets - draws) / 10) ** 2) / (10 * np.sqrt(2 * np.pi))).mean(0)
    values = {name: value for name, (value, _) in result.metrics.items()}
    more = {"log_likelihood_normalised", "noise_ratio"}
    assert set(values) == {"rmse", "nll", "log_likelihood", "coverage_90", "width_90", "crps"} | more
    assert values["rmse"] == pytest.approx(sklearn.metrics.root_mean_squared_error(targets, draws.mean(0)), rel=1e-5)
    assert values["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-5)
    assert values["log_likelihood"] == -values["nll"]
    standard, z = np.einsum("bf,sfo->sbo", inputs, weights), (targets - 50) / 10
    density = (np.exp(-0.5 * (z - standard) ** 2) / np.sqrt(2 * np.pi)).mean(0)
    assert values["log_likelihood_normalised"] == pytest.approx(np.log(density).mean(), rel=1e-5)
    columns = ["row", "target", "mean", "variance", "q05", "q50", "q95", "pit", "log_prob"]
    assert list(result.predictions.column_names) == columns
    np.testing.assert_allclose(result.predictions["mean"], draws.mean(0)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(result.predictions["variance"], 100 + draws.var(0)[:, 0], rtol=1e-4)
    assert result.calibration is None
    far = evaluation.score_ood(fitted, 100 + inputs, result.in_distribution_scores, SETTINGS, Seed(0))
    assert far["variance"]["auroc"] == (1.0, 60)


class OwnFunctions:
    """Functions whose observations have a noise for each input."""

    def joint(self, places: Tensor | None, *, draws: int, rng: Seed) -> Joint:
        raise NotImplementedError("no score of single rows needs it")


@dataclass(frozen=True)
class Noisy(Linear):
    """:class:`Linear` whose draw s has the noise variance (1 + s) e^{x_1}."""

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        outputs = torch.einsum("bf,sfo->sbo", inputs, self.weights.to(inputs))
        return Gaussian(outputs, (1 + torch.arange(len(outputs)))[:, None, None] * inputs[:, :1].exp())


@dataclass(frozen=True)
class Closed(Functions):
    """:class:`Functions` that predicts its Gaussian in closed form: the variance xᵀx + .3."""

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        mean = inputs @ self.weights.mean(0).to(inputs)
        return Gaussian(mean[None], (inputs.square().sum(-1, keepdim=True) + 0.3)[None])


@dataclass(frozen=True)
class OwnLikelihood(Noisy):
    """:class:`Noisy` with a Gaussian over functions of its own kind, which declares no common noise."""

    def functions(self, inputs: Tensor, *, rng: Seed) -> OwnFunctions:
        return OwnFunctions()


def test_noise_ratio_is_of_the_likelihood_and_not_of_the_predictive_variance() -> None:
    """One variance where draws disagree and beside exact functions, although the predictive variance varies."""
    random = Seed(9).numpy()
    inputs, weights = random.normal(size=(30, 2)), torch.tensor(random.normal(size=(3, 2, 1)))
    logs = replace(PLAIN, shift=torch.ones(1), scale=torch.ones(1), log=True)
    x = torch.tensor(inputs).float()
    spread = float((x[:, 0].max() - x[:, 0].min()).exp())
    expected = {Linear: 1.0, Closed: 1.0, Noisy: spread, OwnLikelihood: spread}
    for (kind, ratio), transform in itertools.product(expected.items(), (PLAIN, logs)):
        posterior = kind(weights, gaussian=True)
        split = Examples(inputs, np.exp(inputs[:, :1]))
        scored = evaluation.score_clean(Predictor(posterior, transform), split, EvaluateConfig(15, 8, 0), Seed(0))
        assert scored.metrics["noise_ratio"] == (pytest.approx(ratio, rel=1e-4), 30)
        total = posterior.predict(x, rng=Seed(0)).variance
        assert abs(float(total.max() / total.min()) / ratio - 1) > 0.1


def test_the_cost_counts_stored_parameters_and_bytes() -> None:
    fitted, split, _ = classes(draws=4)
    cost = evaluation.measure_cost(fitted, split.inputs, SETTINGS, Seed(0))
    assert cost["parameters"][0] == 4 * 2 * 3
    assert 4 * 2 * 3 * 8 < cost["bytes"][0] < 4 * 2 * 3 * 8 + 200  # float64, and a header
    assert cost["seconds_per_1000"][0] > 0
    assert cost["seconds_per_1000"][1] == 2 * SETTINGS.batch


def test_predictions_that_are_not_finite_are_refused() -> None:
    _, split, _ = classes(draws=1)
    broken = Predictor(Linear(torch.full((1, 2, 3), torch.nan)), PLAIN)
    with pytest.raises(Diverged, match="must be finite"):
        evaluation.score_clean(broken, split, SETTINGS, Seed(0))


def test_the_error_names_a_setting_that_is_out_of_range() -> None:
    section = {"calibration_bins": 15, "batch": 1000, "joint_pairs": 10_000}
    assert config.read(EvaluateConfig, section, "evaluate").batch == 1000
    for key, value in (("calibration_bins", 0), ("batch", 0), ("joint_pairs", -1), ("joint_groups", 10_001)):
        with pytest.raises(ConfigError, match=rf"^evaluate\.{key} must be .* got {value}$"):
            config.read(EvaluateConfig, section | {key: value}, "evaluate")


def test_score_all_names_each_score_by_its_quantity() -> None:
    """The scores are equal to the scores of the single functions, each under its quantity."""
    weights, random = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)), np.random.default_rng(0)
    fitted = Predictor(Linear(weights), PLAIN)
    test, other = (Examples(random.normal(size=(n, 2)), random.integers(0, 4, n)) for n in (20, 9))
    scores, clean = evaluation.score_all(fitted, test, SETTINGS, Seed(0), ood={"o": other}, transfer={"t": other})
    shifted = evaluation.score_classification(fitted, other, SETTINGS, Seed(0))
    by_score = evaluation.score_ood(fitted, other.inputs, clean.in_distribution_scores, SETTINGS, Seed(0))
    expected = {Quantity(metric): figure for metric, figure in clean.metrics.items()}
    for score, figures in by_score.items():
        expected |= {Quantity(metric, "ood", "o", score=score): figure for metric, figure in figures.items()}
    expected |= {Quantity(metric, "transfer", "t"): figure for metric, figure in shifted.items()}
    assert {of: figure for of, figure in scores.items() if of.set != "cost"} == expected
    costs = {of.metric for of in scores if of.set == "cost"}
    assert costs == {"parameters", "bytes", "seconds_per_1000"}
    corrupted = evaluation.score_corrupted(fitted, "fog", [(2, other)], SETTINGS, Seed(0))
    assert corrupted == {Quantity(metric, "corrupted", "fog", 2): figure for metric, figure in shifted.items()}
