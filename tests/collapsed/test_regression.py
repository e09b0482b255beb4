"""CIBER for regression: against Gauss rules over the box of actual weights, by hand, and without its ranges."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import triang

from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear, Pieces
from bdl_pipe.collapsed.rectified import Rectified
from bdl_pipe.collapsed.regression import CIBER_LAST, CiberLastConfig, CiberLastPosterior
from bdl_pipe.collapsed.second_to_last import CIBER_SECOND, CiberSecondConfig, CiberSecondPosterior, most_varied
from bdl_pipe.config import read, to_mapping
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from tests.conftest import make_tiny_table

from .cases import Weights, numbers, snapshots_of

SPEC = NetworkSpec(MlpConfig("mlp", (6, 5)), (3,), 1, "gaussian_head", variance_floor=0.01)
TWO = NetworkSpec(MlpConfig("mlp", (6,)), (3,), 2, "gaussian_head")
TANH = NetworkSpec(MlpConfig("mlp", (5,), "tanh"), (3,), 1, "gaussian_head")
PLACES = {  # (unit, input) of what varies most in the last hidden layer; input 6 is the bias
    "one unit": [(2, 0), (2, 6), (2, 4)],
    "two units": [(1, 3), (4, 2), (1, 6)],
    "three units": [(0, 1), (3, 6), (4, 2)],
}
MATCHED = 2.2970038  # the radius nearest in L2, in standard deviations; the radius of equal variance is √6
snapshots = partial(snapshots_of, spread=0.3)
kinds = pytest.mark.parametrize("kind", ["last", "input", *PLACES])


def inputs(count: int = 5) -> torch.Tensor:
    return torch.tensor(1.5 * numbers("regression", "inputs").normal(size=(count, 3)))


def last(weights: Weights, count: int | None = 3, tail: float = 0.0, spec: NetworkSpec = SPEC) -> CiberLastPosterior:
    return CiberLastPosterior(spec, CiberLastConfig("variance", tail, count), weights)


def second(weights: Weights, tail: float = 0.0) -> CiberSecondPosterior:
    return CiberSecondPosterior(SPEC, CiberSecondConfig("density", tail, 2), weights)


def varied(where: list[tuple[int, int]]) -> Weights:
    """Snapshots that differ a little in all weights and most in the weights ``where`` of the last hidden layer."""
    weights = snapshots_of(SPEC, spread=0.1)
    for number, (unit, column) in enumerate(where):
        name, at = ("bias", (unit,)) if column == 6 else ("weight", (unit, column))
        weights[f"trunk.3.{name}"][(slice(None), *at)] += (3 - number) * torch.tensor([-0.6, 0.5, 0.1]).double()
    return weights


def posterior(kind: str, weights: Weights) -> CiberLastPosterior | CiberSecondPosterior:
    """The last layer, one unit before it by each input, or the weights of largest variance before it."""
    if kind in PLACES:
        return CiberSecondPosterior(SPEC, CiberSecondConfig("variance", 0.0, 3, "variance"), weights)
    return last(weights) if kind == "last" else second(weights)


def layers(weights: Weights, s: int, rows: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights, biases last, and inputs, a one last, of each layer of snapshot s."""
    matrices, values = [], [np.concatenate([rows, np.ones((len(rows), 1))], 1)]
    for name in ("trunk.1", "trunk.3", "head"):
        parts = [weights[f"{name}.weight"][s].numpy(), weights[f"{name}.bias"][s].numpy()[:, None]]
        matrices.append(np.concatenate(parts, 1))
        hidden = np.maximum(values[-1] @ matrices[-1].T, 0)
        values.append(np.concatenate([hidden, np.ones((len(rows), 1))], 1))
    return matrices, values[:-1]


def noise(weights: Weights, s: int, rows: np.ndarray) -> np.ndarray:
    """The standard deviation of the noise, which the second output gives [row]."""
    matrices, values = layers(weights, s, rows)
    return np.sqrt(0.01 + np.logaddexp(0, values[-1] @ matrices[-1][1]))


def box(weights: Weights, depth: int, where: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each weight of a layer."""
    matrices = [layers(weights, k, np.zeros((1, 3)))[0][depth] for k in range(3)]
    past = np.stack([[matrix[place] for place in where] for matrix in matrices])
    return past.min(0), past.max(0)


def chosen(kind: str, weights: Weights, s: int, rows: np.ndarray, row: int, count: int) -> list[tuple[int, int]]:
    """(unit, input) of the collapsed weights: of largest reach in the mean, or of the unit of the widest range.

    The range of a unit is of its part of the mean, over the box of its ``count`` weights of largest reach.
    """
    if kind in PLACES:
        return PLACES[kind]
    matrices, values = layers(weights, s, rows)
    depth, best = (2 if kind == "last" else 1), (-1.0, [(0, 0)])
    for unit, incoming in enumerate(matrices[depth][:1] if kind == "last" else matrices[depth]):
        low, high = box(weights, depth, [(unit, i) for i in range(len(incoming))])
        reach = (high - low) * np.abs(values[depth][row])
        columns = list(np.argsort(-reach)[:count])
        centre = incoming.copy()
        centre[columns] = (low + high)[columns] / 2
        active, half = centre @ values[depth][row], reach[columns].sum() / 2
        effect = abs(matrices[-1][0][unit]) * (max(active + half, 0) - max(active - half, 0))
        best = max(best, (effect, [(unit, int(i)) for i in columns]), key=lambda b: b[0])
    return best[1]


def gauss(count: int, nodes: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Points of [−1, 1]^count [node, place] and weights that add up to one."""
    axis, weight = np.polynomial.legendre.leggauss(nodes)
    grids = (np.stack(np.meshgrid(*[part] * count), -1).reshape(-1, count) for part in (axis, weight / 2))
    points, shares = grids
    return points, shares.prod(-1)


@kinds
def test_moments_and_distribution_equal_a_gauss_rule_over_the_collapsed_weights(kind: str) -> None:
    """By the networks at the nodes of a rule; kinks leave an error of a few thousandths.

    A range taken for a half-width, a radius 1.1 times as large and other weights must fail.
    """
    weights, rows = varied(PLACES[kind]) if kind in PLACES else snapshots_of(SPEC), inputs().numpy()
    predictive, depth, alpha = posterior(kind, weights).predict(inputs()), 2 if kind == "last" else 1, math.sqrt(6)
    if kind == "input":
        alpha = MATCHED
    points, share = gauss(2 if kind == "input" else 3)

    def worst(alpha: float, widen: float = 1.0, moved: int = 0, snapshots: int = 1) -> float:
        errors = []
        for s, row in np.ndindex(snapshots, 5):
            matrices, values = layers(weights, s, rows)
            where = chosen(kind, weights, s, rows, row, points.shape[1])
            low, high = box(weights, depth, where)
            layer = np.repeat(matrices[depth][None], len(points), 0)
            for place, (unit, column) in enumerate(where):
                layer[:, unit, (column + moved) % layer.shape[-1]] = (
                    low[place] + high[place] + widen * (high[place] - low[place]) * points[:, place]
                ) / 2
            mean = (layer @ values[depth][row])[:, 0]
            if depth == 1:
                head = np.repeat(matrices[-1][:1], len(points), 0)
                mean = (np.maximum(layer @ values[1][row], 0) * head[:, :-1]).sum(-1) + head[:, -1]
            r = alpha * noise(weights, s, rows)[row]
            variance = share @ (mean - share @ mean) ** 2 + r**2 / 6
            errors.append(abs(float(predictive.draw_mean[s, row, 0]) - share @ mean))
            errors.append(abs(float(predictive.draw_variance[s, row, 0]) / variance - 1))
            for y in (float(predictive.mean[row, 0]) + by for by in (-0.5, 0.8)):
                below = share @ triang.cdf(y, 0.5, mean - r, 2 * r)
                errors.append(abs(float(predictive.part.cdf(torch.full((5, 1), y).double())[s, row, 0]) - below))
        return max(errors)

    assert worst(alpha, snapshots=3) < 5e-3
    assert min(worst(alpha, widen=2.0), worst(1.1 * alpha), worst(alpha, moved=1)) > 2e-2


def test_one_collapsed_weight_gives_a_difference_of_triangular_cdfs() -> None:
    """E[tri(y − c − hU)] = [T(y − c + h) − T(y − c − h)]/(2h), T the triangular distribution function, by SciPy."""
    weights, rows, y = snapshots(SPEC), inputs().numpy(), np.linspace(-2, 2, 5)
    density = last(weights, 1).predict(inputs()).part.log_density(torch.tensor(y)[:, None]).exp()
    for s, row in np.ndindex(3, 5):
        matrices, values = layers(weights, s, rows)
        ((_, i),) = where = chosen("last", weights, s, rows, row, 1)
        (low,), (high,) = box(weights, 2, where)
        middle, r = matrices[-1][0].copy(), math.sqrt(6) * noise(weights, s, rows)[row]
        middle[i] = (low + high) / 2
        offset, h = y[row] - middle @ values[-1][row], (high - low) / 2 * abs(values[-1][row][i])
        below = triang.cdf([offset - h, offset + h], 0.5, -r, 2 * r)
        assert float(density[s, row, 0]) == pytest.approx((below[1] - below[0]) / (2 * h), rel=1e-9, abs=1e-13)


@kinds
def test_inputs_share_the_collapsed_weights(kind: str) -> None:
    """The marginals are exact, of 60,000 draws; for two inputs, each given twice, the joint exceeds the product."""
    collapsed = posterior(kind, varied(PLACES[kind]) if kind in PLACES else snapshots_of(SPEC, spread=0.5))
    rows = inputs(2)
    exact, draw = collapsed.predict(rows), partial(collapsed.joint, draws=60_000, rng=Seed(0))
    targets, twice = exact.mean.expand(1, 2, 1), torch.tensor([[0, 0, 1, 1]])
    joint, together = draw(rows[None], places=None), draw(rows[None], places=twice)
    torch.testing.assert_close(joint.row_log_prob(targets)[0], exact.log_prob(targets[0]), atol=0.03, rtol=0)
    torch.testing.assert_close(joint.predictive.mean, exact.mean, atol=0.03, rtol=0.03)
    torch.testing.assert_close(joint.predictive.variance, exact.variance, atol=0.03, rtol=0.03)
    observed = targets[:, twice[0]]
    assert float(together.gap(observed)) > 0.1
    listed = draw(rows[None, twice[0]], places=None)
    torch.testing.assert_close(together.log_prob(observed), listed.log_prob(observed))


def test_the_weights_of_largest_variance_are_chosen() -> None:
    chosen = {"one unit": {2: [0, 6, 4]}, "two units": {1: [3, 6], 4: [2]}, "three units": {0: [1], 3: [6], 4: [2]}}
    forms = {"one unit": Rectified, "two units": Rectified, "three units": Linear}
    for kind, where in PLACES.items():
        collapsed = posterior(kind, varied(where))
        assert collapsed.chosen == chosen[kind]
        part = collapsed.predict(inputs()).part
        assert isinstance(part, Pieces) == (kind != "one unit")
        assert isinstance(part.part if isinstance(part, Pieces) else part, forms[kind])
    random = numbers("second", "variances").normal(size=(4, 3, 2)) * np.arange(1, 7).reshape(3, 2)
    order = np.argsort(-random.var(0).ravel())[:2]
    by_unit = most_varied(torch.tensor(random), 2)
    assert sorted(2 * unit + c for unit, columns in by_unit.items() for c in columns) == sorted(order.tolist())
    assert most_varied(torch.ones(1, 3, 2), 3) == {0: [0, 1], 1: [0]}  # nothing moved


@pytest.mark.parametrize("kind", ["last", "input", "two units"])
def test_one_snapshot_gives_its_network_with_triangular_noise(kind: str) -> None:
    """One snapshot has no box: the mean and variance of the network, and triangular noise."""
    one, rows = {k: v[:1] for k, v in snapshots(SPEC).items()}, inputs()
    collapsed, plain = posterior(kind, one).predict(rows), NetworkDraws(SPEC, one).predict(rows)
    torch.testing.assert_close(collapsed.mean, plain.mean)
    factor = MATCHED**2 / 6 if kind == "input" else 1.0  # the radius nearest in L2 is narrower
    torch.testing.assert_close(collapsed.variance, factor * plain.variance, rtol=1e-6, atol=0)
    r = collapsed.part.reach[1] - collapsed.mean
    expected = triang.pdf(0.3, 0.5, -r[0].numpy(), 2 * r[0].numpy())
    np.testing.assert_allclose(collapsed.part.log_density(collapsed.mean + 0.3).exp()[0], expected, rtol=1e-9)


def test_variances_grow_with_the_collapsed_weights_up_to_all_of_them() -> None:
    """Each further weight widens the box, up to all weights; more weights than a tree of corners takes work as well."""
    weights, rows = snapshots(SPEC), inputs()
    spread = [last(weights, count).predict(rows).draw_variance for count in (1, 3, 6)]
    assert (spread[1] > spread[0]).all() and (spread[2] >= spread[1]).all()
    torch.testing.assert_close(last(weights, None).predict(rows).draw_variance, spread[2])
    wide = NetworkSpec(MlpConfig("mlp", (40,)), (3,), 1, "gaussian_head", variance_floor=0.01)
    many = last(snapshots(wide), None, 0.01, wide).predict(rows)
    assert many.log_prob(many.mean).isfinite().all()
    torch.testing.assert_close(
        many.cdf(many.quantile(0.3)), torch.full((5, 1), 0.3, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_two_targets_have_the_mean_of_each_alone_and_one_score_of_both() -> None:
    """Given the snapshot the targets are independent, so that their log densities add up before the mean over it."""
    weights, rows, targets = snapshots(TWO), inputs(), inputs()[:, :2]
    both, sums = last(weights, 3, 0.0, TWO).predict(rows), torch.zeros(3, 5, dtype=torch.float64)
    for output in range(2):
        heads = {f"head.{name}": weights[f"head.{name}"][:, [output, 2 + output]] for name in ("weight", "bias")}
        alone = last({**weights, **heads}, 3, 0.0, dataclasses.replace(TWO, outputs=1)).predict(rows)
        torch.testing.assert_close(both.mean[:, output], alone.mean[:, 0])
        sums += alone.part.log_density(targets[:, [output]])[..., 0]
    torch.testing.assert_close(both.log_prob(targets), sums.logsumexp(0) - math.log(3))


def fit(name: str, spec: NetworkSpec = SPEC, **section: object) -> State:
    method = CIBER_LAST if name == "ciber_last" else CIBER_SECOND
    config = read(method.config, {"radius": "variance", "tail": 0.01, **section}, f"methods.{name}")
    trajectory = State(snapshots(spec), {"spec": to_mapping(spec), "epochs": 3, "loss": 0.0})
    stage, inputs = method.stages["student"], {"trajectory": [trajectory]}
    return stage.fit_one(make_tiny_table(), inputs, config, rng=Seed(0), report=Silent())


VARIED = {"weights": 3, "choice": "variance"}


@pytest.mark.parametrize(
    ("name", "spec", "section", "message"),
    [
        ("ciber_last", SPEC, {"weights": 7}, r"ciber_last\.weights must be at most 6, .* got 7"),
        ("ciber_second", SPEC, {"weights": 8}, r"ciber_second\.weights must be at most 7, .* got 8"),
        ("ciber_second", TWO, {"weights": 1}, r"ciber_second must have data of one target, got 2"),
        ("ciber_second", TANH, {"weights": 1}, r"sgd\.network must be an mlp with relu"),
    ],
)
def test_settings_that_the_trajectory_does_not_allow_are_refused(
    name: str, spec: NetworkSpec, section: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^methods\.{message}"):
        fit(name, spec, **section)


def test_a_state_stores_the_choice_only_if_it_is_not_the_default_and_the_tail() -> None:
    """A tail gives far targets a finite score. States from before the key ``choice`` existed have no choice."""
    state = fit("ciber_second", **VARIED)
    assert state.config["ciber_second"]["choice"] == "variance"
    again = CiberSecondPosterior.from_state(state)
    assert again.config == CiberSecondConfig("variance", 0.01, 3, "variance")
    assert "choice" not in fit("ciber_second", weights=3).config["ciber_second"]
    for stored in (again, CiberLastPosterior.from_state(fit("ciber_last", weights=2))):
        predictive, far = stored.predict(inputs()), torch.full((5, 1), 1e3)
        assert predictive.log_prob(far).isfinite().all()
        assert (CollapsedMixture(predictive.part, 0.0).log_prob(far) == -torch.inf).all()
