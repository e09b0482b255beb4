"""CIBER for classes, against draws and quadrature over the box of actual last-layer weights, and by hand."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from bdl_pipe.artifacts import State, stack
from bdl_pipe.collapsed.classes import CIBER, CiberConfig, CiberPosterior, Form, cubics, log_odds, log_probs
from bdl_pipe.collapsed.classes import CubicConfig as Cubic
from bdl_pipe.collapsed.classes import ExactConfig as Exact
from bdl_pipe.collapsed.classes import SoftmaxConfig as Softmax
from bdl_pipe.collapsed.head import SCORES, Collapsed, Head
from bdl_pipe.collapsed.integrals import few_uniforms
from bdl_pipe.collapsed.integrals.piecewise import sigmoid_error
from bdl_pipe.collapsed.integrals.softmax import within
from bdl_pipe.config import to_mapping
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import RunningMoments, with_moments
from tests.conftest import make_tiny_images

from .cases import Weights, numbers, snapshots_of

SPEC = NetworkSpec(MlpConfig("mlp", (5,)), (3,), 3, "categorical")
snapshots = partial(snapshots_of, SPEC)
FORMS: list[Form] = [Exact(1), Exact(2), Softmax(), Cubic(1, 1), Cubic(2, 8), Cubic(3, 4), Cubic(None, 1)]
forms = pytest.mark.parametrize("form", FORMS, ids=str)


def inputs(count: int = 6, double: bool = True) -> torch.Tensor:
    rows = torch.tensor(1.5 * numbers("classes", "inputs").normal(size=(count, 3)))
    return rows if double else rows.float()


def posterior(form: Form, weights: Weights, spec: NetworkSpec = SPEC) -> CiberPosterior:
    return CiberPosterior(spec, CiberConfig(form), weights)


def predicted(form: Form, weights: Weights, rows: torch.Tensor, spec: NetworkSpec = SPEC) -> Categorical:
    return posterior(form, weights, spec).predict(rows)


@pytest.mark.parametrize("shared", [True, False])
def test_inputs_share_the_collapsed_weights(shared: bool) -> None:
    """The joint of two inputs, by a grid over the collapsed weight of each class; with unshared weights it differs."""
    spec = NetworkSpec(MlpConfig("mlp", (2,)), (3,), 2, "categorical")
    weights = snapshots_of(spec, count=2, spread=0.8)
    rows = inputs(1) * torch.tensor([[1.0], [0.8]])
    sampled = posterior(Softmax(), weights, spec).joint(rows[None], places=None, draws=400_000, rng=Seed(0))
    box, expected, grid = Box.of(weights, rows), np.zeros((2, 2)), (np.arange(30) + 0.5) / 30
    low, high = box.heads.min(0), box.heads.max(0)
    nodes = np.meshgrid(*[np.arange(30)] * 4, indexing="ij", sparse=True)  # a weight of each row and class
    for head, features in zip(box.heads, box.features, strict=True):
        values = low[..., None] + (high - low)[..., None] * grid  # [class, input, node]
        moved = (values - head[..., None]) * features[:, None, :, None]  # [row, class, input, node]
        chosen = ((high - low) * np.abs(features)[:, None]).argmax(-1)  # [row, class]
        odds, p = (features @ head.T) @ np.array([[1, -1], [-1, 1]]), []  # the log-odds of two classes
        for row in range(2):
            logs = []
            for k in range(2):
                same = shared and chosen[0, k] == chosen[1, k]  # the same weight as in the other row
                shift = moved[row, k, chosen[row, k]][nodes[k if same else 2 * row + k]]
                logs.append(-np.log1p(np.exp(-(odds[row, k] + shift))))
            first = 1 / (1 + np.exp(logs[1] - logs[0]))
            p.append([first, 1 - first])
        expected += [[np.mean(a * b) / 2 for b in p[1]] for a in p[0]]
    every = [[float(sampled.log_prob(torch.tensor([[a, b]])).exp()) for b in range(2)] for a in range(2)]
    assert np.allclose(every, expected, atol=1e-3) == shared, np.abs(np.array(every) - expected).max()


@dataclass(frozen=True)
class Box:
    """The snapshots' last layers [snapshot, class, input], biases last, and the features [snapshot, row, input]."""

    heads: np.ndarray
    features: np.ndarray

    @classmethod
    def of(cls, weights: Weights, rows: torch.Tensor) -> "Box":
        heads = torch.cat([weights["head.weight"], weights["head.bias"][..., None]], -1)
        first, bias = weights["trunk.1.weight"], weights["trunk.1.bias"]
        hidden = [np.maximum(rows.numpy() @ w.numpy().T + b.numpy(), 0) for w, b in zip(first, bias, strict=True)]
        return cls(heads.numpy(), np.stack([np.concatenate([h, np.ones((len(h), 1))], 1) for h in hidden]))

    def chosen(self, features: np.ndarray, k: int, count: int) -> list[int]:
        scores = [(self.heads[:, k, i].max() - self.heads[:, k, i].min()) * abs(f) for i, f in enumerate(features)]
        return sorted(range(len(scores)), key=lambda i: -scores[i])[:count]

    def likelihood(self, s: int, row: int, k: int, count: int, unit: np.ndarray, widen: float = 1.0) -> np.ndarray:
        """p(class k) of the softmax for each point in the unit box [draw, count], each with its own logits."""
        features = self.features[s, row]
        head = np.repeat(self.heads[s][None], len(unit), 0)  # [draw, class, input]
        for column, i in enumerate(self.chosen(features, k, count)):
            low, high = self.heads[:, k, i].min(), self.heads[:, k, i].max()
            head[:, k, i] = (low + high) / 2 + widen * (high - low) * (unit[:, column] - 0.5)
        return np.exp(log_softmax(head @ features, -1))[:, k]


def by_quadrature(exact: Box, dimensions: int, nodes: int = 40, widen: float = 1.0) -> np.ndarray:
    """The average of each class over its own box [snapshot, row, class], not divided by their sum, by Gauss rules."""
    axis, shares = np.polynomial.legendre.leggauss(nodes)
    grid = np.stack(np.meshgrid(*[(axis + 1) / 2] * dimensions), -1).reshape(-1, dimensions)
    weight = np.stack(np.meshgrid(*[shares / 2] * dimensions), -1).reshape(-1, dimensions).prod(-1)
    shape = len(exact.heads), exact.features.shape[1], exact.heads.shape[1]
    averages = [weight @ exact.likelihood(*cell, dimensions, grid, widen) for cell in np.ndindex(shape)]
    return np.array(averages).reshape(shape)


def all_at_once(exact: Box, s: int, row: int, count: int, nodes: int) -> np.ndarray:
    """The average softmax by a Gauss rule over the box of ``count`` weights of each of three classes [class]."""
    axis, shares = np.polynomial.legendre.leggauss(nodes)
    index = np.array(list(product(range(nodes), repeat=3 * count)))
    heads, features = np.repeat(exact.heads[s][None], len(index), 0), exact.features[s, row]
    for k in range(3):
        for column, i in enumerate(exact.chosen(features, k, count)):
            low, high = exact.heads[:, k, i].min(), exact.heads[:, k, i].max()
            heads[:, k, i] = (low + high) / 2 + (high - low) / 2 * axis[index[:, k * count + column]]
    return (shares[index] / 2).prod(-1) @ np.exp(log_softmax(heads @ features, -1))


@pytest.mark.parametrize(("count", "nodes", "error"), [(1, 24, 1e-9), (2, 7, 1e-3)])
def test_the_exact_form_equals_a_quadrature_over_all_collapsed_weights(count: int, nodes: int, error: float) -> None:
    """The weights of all classes move together; another number of weights, and cubics, are off by more than .01."""
    weights, rows = snapshots(), inputs()
    box = Box.of(weights, rows)
    expected = np.array([[all_at_once(box, s, row, count, nodes) for row in range(6)] for s in range(3)])
    got = predicted(Exact(count), weights, rows)
    np.testing.assert_allclose(got.draw_log_probs.exp().numpy(), expected, rtol=error)
    np.testing.assert_allclose(got.mean.numpy(), expected.mean(0), rtol=error)
    other = Exact(3 - count)
    for form in (other, Cubic(count, 32)):
        assert np.abs(predicted(form, weights, rows).draw_log_probs.exp().numpy() - expected).max() > 0.01


def test_the_marginals_of_the_joint_equal_the_exact_form() -> None:
    """20,000 draws a snapshot: within .012, above 5 standard errors of a mean of 60,000 numbers in [0, 1].

    Control: the joint of cubics moves one logit at a time.
    """
    weights, rows = snapshots(), inputs()

    def marginals(form: Form) -> torch.Tensor:
        joint = posterior(form, weights).joint(rows[None], places=None, draws=60_000, rng=Seed(0))
        return torch.stack([joint.row_log_prob(torch.full((1, 6), k)).exp()[0] for k in range(3)], -1)

    exact = posterior(Exact(2), weights).predict(rows).mean
    torch.testing.assert_close(marginals(Exact(2)), exact, rtol=0, atol=0.012)
    assert (marginals(Cubic(2, 32)) - exact).abs().max() > 0.012


def test_the_softmax_form_equals_a_quadrature_over_the_range_of_its_weight() -> None:
    weights, rows = snapshots(), inputs()
    averages = by_quadrature(Box.of(weights, rows), 1)
    expected = averages / averages.sum(-1, keepdims=True)
    got = predicted(Softmax(), weights, rows)
    np.testing.assert_allclose(got.draw_log_probs.exp().numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(got.mean.numpy(), expected.mean(0), rtol=1e-9)
    # controls: the averages do not add up to one, and two weights give other probabilities
    assert np.abs(averages.sum(-1) - 1).max() > 0.01
    assert np.abs(expected - predicted(Cubic(2, 4), weights, rows).draw_log_probs.exp().numpy()).max() > 0.01


PIECES = ((1, 0.0285), (8, 0.003), (32, 5e-5))


@pytest.mark.parametrize(
    ("weights", "nodes", "pieces", "error"),
    [*((w, n, *piece) for w, n in ((1, 40), (2, 40), (3, 12)) for piece in PIECES), (None, 6, *PIECES[-1])],
)
def test_the_error_of_cubics_is_bounded_by_the_error_of_their_sigmoid(
    weights: int | None, nodes: int, pieces: int, error: float
) -> None:
    """Each average is off by at most the sigmoid's error e: p_k by e(1 + 3p_k)/(Σ − 3e), Σ the sum of 3 averages.

    A range taken for a half-width, and averages that are not divided by their sum, must fail.
    """
    state, rows, form = snapshots(), inputs(), Cubic(weights, pieces)
    averages = by_quadrature(Box.of(state, rows), CiberConfig(form).count(6), nodes)
    total = averages.sum(-1, keepdims=True)
    exact, got = averages / total, predicted(form, state, rows).draw_log_probs.exp().numpy()
    assert sigmoid_error(cubics(pieces)) < error
    bound, off = (error * (1 + 3 * exact)) / (total - 3 * error), np.abs(got - exact)
    assert (off <= bound).all() and off.max() < error
    if pieces == 1:
        assert off.max() > 1e-3  # one cubic is not exact
    elif weights is not None:
        wide = by_quadrature(Box.of(state, rows), CiberConfig(form).count(6), nodes, widen=2.0)
        for wrong in (wide / wide.sum(-1, keepdims=True), averages):
            assert (np.abs(got - wrong) > bound).any()


@forms
def test_without_ranges_ciber_equals_the_ensemble_of_snapshots(form: Form) -> None:
    rows, several = inputs(), snapshots()
    same = several | {k: v[:1].expand_as(v).clone() for k, v in several.items() if k.startswith("head")}

    def both(weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        ensemble = NetworkDraws(SPEC, weights).predict(rows)
        return predicted(form, weights, rows).draw_log_probs, ensemble.draw_log_probs

    for weights in (snapshots(1), same):
        torch.testing.assert_close(*both(weights), rtol=1e-12, atol=1e-13)
    got, moved = both(several)
    assert (got - moved).abs().max() > 0.1


@forms
def test_float32_agrees_with_float64(form: Form) -> None:
    weights, rows = snapshots(double=False), inputs(double=False)
    got = predicted(form, weights, rows).draw_log_probs
    assert got.dtype == torch.float32
    exact = predicted(form, {k: v.double() for k, v in weights.items()}, rows.double()).draw_log_probs
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [form for form in FORMS if form != Exact(2)], ids=str)
@pytest.mark.parametrize("double", [True, False])
def test_a_confident_network_has_finite_scores(form: Form, double: bool) -> None:
    """Logits hundreds apart: cubics are 0 there, and a softmax underflows in float32. Two exact weights are refused."""
    weights = snapshots(double=double)
    weights["head.weight"] = weights["head.weight"] * 300
    got = predicted(form, weights, inputs(double=double)).draw_log_probs
    assert got.min() < (-90 if isinstance(form, Exact) else -300)  # an average over wide boxes is less sure
    assert got.isfinite().all() and got.max() <= 1e-6
    with pytest.raises(DataError, match="half_widths must be so narrow that 8192 points are enough"):
        predicted(Exact(2), weights, inputs(double=double))


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_skipping_boxes_that_reach_no_cubic_changes_no_score(far: float) -> None:
    """Scores equal those with every box integrated, whether some boxes or none reach a cubic."""
    random = numbers("classes", "reach")
    logits = torch.tensor(6 * random.normal(size=(40, 3)) + far * np.eye(3)[np.arange(40) % 3])
    widths = torch.tensor(random.uniform(0, 1, (40, 3, 2)))
    got = log_probs(logits, Collapsed(torch.zeros(40, 3).double(), widths), Cubic(2, 1))
    every = within(few_uniforms.expect(cubics(1), log_odds(logits), widths), log_odds(logits), widths)
    torch.testing.assert_close(got, every - every.logsumexp(-1, keepdim=True), rtol=1e-12, atol=1e-12)


def test_log_odds_of_likely_and_unlikely_classes_keep_their_digits() -> None:
    logits = torch.tensor([[40.0, 0.0, -3.0], [0.0, 0.0, -900.0]]).double()
    rest = [[-math.log(1 + math.exp(-3)) + 40, -40.0, -43.0], [0.0, 0.0, -900 - math.log(2)]]
    torch.testing.assert_close(log_odds(logits), torch.tensor(rest, dtype=torch.float64), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("pieces", "near"), [(1, 0.18), (8, 0.04)])
def test_the_bounds_hold_and_keep_cubics_near_the_exact_tail_scores(pieces: int, near: float) -> None:
    """Against the exact average over one weight: the bounds hold, and the logs of cubics within them stay near."""
    ends = (torch.linspace(*ends, 161).double() for ends in ((-40, 40), (0.05, 8)))
    centre, half = torch.meshgrid(*ends, indexing="ij")
    logits, widths = torch.stack([centre, 0 * centre], -1), half[..., None]
    exact = few_uniforms.softmax_one(logits, 0, -half, half, torch.ones_like(half))[..., 0].log()
    lowest, highest = within(0 * centre, centre, widths), within(1 + 0 * centre, centre, widths)
    assert (lowest <= exact + 1e-12).all() and (exact <= highest + 1e-12).all()
    assert (highest - lowest)[centre + half < -5].max() < 0.007
    average = few_uniforms.expect(cubics(pieces), centre, widths)
    assert (within(average, centre, widths) - exact).abs().max() < near
    assert (average <= 0).any()  # no score without bounds


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("width", [6, 31, 64, SCORES // 8])
def test_the_weights_with_the_largest_reach_are_chosen(width: int, count: int) -> None:
    """Against a sort of each row and class, in blocks of rows and in groups of inputs; some features are 0."""
    random = numbers("classes", "blocks", width)
    weights = random.normal(size=(3, 4, width + 1))
    features = random.normal(size=(5, width)) * (random.random(width) < 0.7)
    got = Head(torch.tensor(weights)).collapse(1, torch.tensor(features), count)
    ones = np.concatenate([features, np.ones((5, 1))], 1)
    low, high = weights.min(0), weights.max(0)
    reach = (high - low) / 2 * np.abs(ones[:, None])
    order = np.argsort(-reach, -1)[..., :count]
    np.testing.assert_allclose(got.half_widths.numpy(), np.take_along_axis(reach, order, -1), rtol=1e-14)
    shift = np.take_along_axis(((low + high) / 2 - weights[1]) * ones[:, None], order, -1).sum(-1)
    np.testing.assert_allclose(got.shift.numpy(), shift, rtol=1e-12, atol=1e-14)


def test_each_snapshot_keeps_its_own_batch_norm_statistics() -> None:
    """Snapshots that differ only in running statistics have no box: their ensemble, whose members must differ."""
    spec = NetworkSpec(ConvNetConfig("convnet", 4, 2, norm="batch"), (1, 8, 8), 3, "categorical")
    one = spec.build(Seed(1)).state_dict()
    two = {k: v + 0.5 if k.endswith("running_mean") else v for k, v in one.items()}
    weights, rows = stack([one, two]), make_tiny_images().tensors("validation")[0][:4, :, :8, :8]
    got = predicted(Softmax(), weights, rows, spec).draw_log_probs
    ensemble = NetworkDraws(spec, weights).predict(rows).draw_log_probs
    torch.testing.assert_close(got, ensemble, rtol=1e-5, atol=1e-6)
    assert (got[0] - got[1]).abs().max() > 1e-3


def fit(trajectory: State, form: Form) -> State:
    make, inputs = CIBER.stages["student"].fit_one, {"trajectory": [trajectory]}
    return make(make_tiny_images(), inputs, CiberConfig(form), rng=Seed(0), report=Silent())


@pytest.mark.parametrize(("width", "weights", "most"), [(5, 7, 6), (12, None, 10)])
def test_too_many_weights_for_the_layer_or_the_integral_are_refused(width: int, weights: int | None, most: int) -> None:
    spec = NetworkSpec(MlpConfig("mlp", (width,)), (3,), 3, "categorical")
    rule = rf"methods\.ciber\.form\.weights must be 1 … {most} for a last layer of {width + 1} weights a class"
    with pytest.raises(ConfigError, match=rule):
        fit(State(snapshots_of(spec, 2), {"spec": to_mapping(spec)}), Cubic(weights, 1))


def test_the_moments_of_a_trajectory_are_left_out_of_the_state() -> None:
    moments = RunningMoments()
    for number in range(2):
        moments.update({k: v[number] for k, v in snapshots(2).items()})
    trajectory = with_moments(State(snapshots(2), {"spec": to_mapping(SPEC)}), moments, "")
    assert fit(trajectory, Softmax()).tensors.keys() == snapshots(2).keys() < trajectory.tensors.keys()
