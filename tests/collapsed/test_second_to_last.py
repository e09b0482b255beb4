"""The weights before the last layer that vary most, collapsed for all inputs: against the networks of drawn weights."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.output_distributions import Linear, Pieces
from bdl_pipe.collapsed.rectified import Rectified
from bdl_pipe.collapsed.second_to_last import CIBER_SECOND, CiberSecondConfig, CiberSecondPosterior, most_varied
from bdl_pipe.config import read, to_mapping
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from tests.conftest import make_tiny_table

from .cases import Weights, numbers, snapshots_of

SPEC = NetworkSpec(MlpConfig("mlp", (6, 5)), (3,), 1, "gaussian_head", variance_floor=0.01)
PLACES = {  # (unit, input) of what varies most; input 6 is the bias
    "one unit": [(2, 0), (2, 6), (2, 4)],
    "two units": [(1, 3), (4, 2), (1, 6)],
    "three units": [(0, 1), (3, 6), (4, 2)],
}
places = pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)


def inputs(count: int = 5) -> torch.Tensor:
    return torch.tensor(1.5 * numbers("second", "inputs").normal(size=(count, 3)))


def snapshots(where: list[tuple[int, int]]) -> Weights:
    """Snapshots that differ a little in all weights and most in the weights ``where`` of the last hidden layer."""
    weights = snapshots_of(SPEC, spread=0.1)
    for number, (unit, column) in enumerate(where):
        name, at = ("bias", (unit,)) if column == 6 else ("weight", (unit, column))
        weights[f"trunk.3.{name}"][(slice(None), *at)] += (3 - number) * torch.tensor([-0.6, 0.5, 0.1]).double()
    return weights


def posterior(weights: Weights, count: int = 3, choice: str = "variance", tail: float = 0.0) -> CiberSecondPosterior:
    config = read(
        CiberSecondConfig, {"radius": "variance", "tail": tail, "weights": count, "choice": choice}, "ciber_second"
    )
    return CiberSecondPosterior(SPEC, config, weights)


def test_the_weights_of_largest_variance_are_chosen() -> None:
    chosen = {
        "one unit": {2: [0, 6, 4]},
        "two units": {1: [3, 6], 4: [2]},
        "three units": {0: [1], 3: [6], 4: [2]},
    }
    kinds = {"one unit": Rectified, "two units": Rectified, "three units": Linear}
    for name, where in PLACES.items():
        found = posterior(snapshots(where))
        assert found.chosen == chosen[name]
        part = found.predict(inputs()).part
        assert isinstance(part, Pieces) == (name != "one unit")
        assert isinstance(part.part if isinstance(part, Pieces) else part, kinds[name])
    random = numbers("second", "variances").normal(size=(4, 3, 2)) * np.arange(1, 7).reshape(3, 2)
    order = np.argsort(-random.var(0).ravel())[:2]
    found_by_unit = most_varied(torch.tensor(random), 2)
    assert sorted(2 * unit + c for unit, columns in found_by_unit.items() for c in columns) == sorted(order.tolist())
    assert most_varied(torch.ones(1, 3, 2), 3) == {0: [0, 1], 1: [0]}  # nothing moved


def mean_and_noise(
    weights: Weights, s: int, row: torch.Tensor, drawn: np.ndarray, where: list[tuple[int, int]]
) -> tuple[np.ndarray, float]:
    """The mean of the network with weights drawn at some places [draw], and the snapshot's standard deviation."""
    hidden = np.maximum(weights["trunk.1.weight"][s].numpy() @ row.numpy() + weights["trunk.1.bias"][s].numpy(), 0)
    before, own = (
        np.append(hidden, 1.0),
        np.concatenate([weights["trunk.3.weight"][s], weights["trunk.3.bias"][s][:, None]], 1),
    )
    layer = np.repeat(own[None], len(drawn), 0)
    for k, (unit, column) in enumerate(where):
        layer[:, unit, column] = drawn[:, k]
    head, bias = weights["head.weight"][s].numpy(), weights["head.bias"][s].numpy()
    variance = 0.01 + np.logaddexp(0, head[1] @ np.maximum(own @ before, 0) + bias[1])
    return np.maximum(layer @ before, 0) @ head[0] + bias[0], math.sqrt(variance)


def box(weights: Weights, where: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each weight."""
    layer = np.concatenate([weights["trunk.3.weight"], weights["trunk.3.bias"][..., None]], -1)
    past = np.stack([layer[:, unit, column] for unit, column in where], -1)
    return past.min(0), past.max(0)


@places
def test_predictions_agree_with_draws_of_the_collapsed_weights(where: list[tuple[int, int]]) -> None:
    """P(y ≤ .) at two places for each snapshot and row, as binomials of 20,000: χ² of 30, a false alarm in 1e-6.

    Other weights, and a range taken for a half-width, must fail.
    """
    weights, rows = snapshots(where), inputs()
    found = posterior(weights).predict(rows)
    low, high = box(weights, where)
    other = [(unit, (column + 1) % 7) for unit, column in where]

    def total(drawn_at: list[tuple[int, int]], widen: float) -> float:
        random, sum_ = numbers("second", "draws"), 0.0
        for s, row in np.ndindex(3, 5):
            drawn = (low + high) / 2 + widen * (high - low) / 2 * random.uniform(-1, 1, (20_000, 3))
            mean, sd = mean_and_noise(weights, s, rows[row], drawn, drawn_at)
            y = mean + math.sqrt(6) * sd * (random.uniform(size=20_000) - random.uniform(size=20_000))
            for at in (found.mean[row, 0] - 0.5, found.mean[row, 0] + 0.8):
                p = float(found.part.cdf(torch.full((5, 1), float(at), dtype=torch.float64))[s, row, 0])
                p = min(max(p, 1e-4), 1 - 1e-4)
                sum_ += ((y <= float(at)).mean() - p) ** 2 / (p * (1 - p) / len(y))
        return sum_

    limit = chi2.isf(1e-6, 30)
    assert total(where, 1.0) < limit
    assert total(where, 2.0) > limit
    assert total(other, 1.0) > limit


@places
def test_moments_equal_a_gauss_rule_over_the_weights_of_the_network(where: list[tuple[int, int]]) -> None:
    """By the network itself on 24³ nodes; the kink of a rectifier leaves an error of up to 1e-3."""
    weights, rows = snapshots(where), inputs(2)
    found, (low, high) = posterior(weights).predict(rows), box(weights, where)
    axis, weight = np.polynomial.legendre.leggauss(24)
    nodes = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    share = np.einsum("i,j,k->ijk", weight, weight, weight).ravel() / 8
    for s, row in np.ndindex(3, 2):
        mean, sd = mean_and_noise(weights, s, rows[row], (low + high) / 2 + (high - low) / 2 * nodes, where)
        assert float(found.draw_mean[s, row, 0]) == pytest.approx(share @ mean, abs=2e-3)
        variance = share @ (mean - share @ mean) ** 2 + sd**2
        assert float(found.draw_variance[s, row, 0]) == pytest.approx(variance, rel=5e-3)


def test_both_choices_agree_if_each_takes_all_weights() -> None:
    """One hidden unit of two inputs has three weights, and both rules take all three."""
    spec = NetworkSpec(MlpConfig("mlp", (1,)), (2,), 1, "gaussian_head", variance_floor=0.01)
    weights, rows = snapshots_of(spec), torch.tensor(numbers("second", "one").normal(size=(5, 2)))
    both = [
        CiberSecondPosterior(spec, CiberSecondConfig("variance", 0.0, 3, choice), weights).predict(rows)
        for choice in ("input", "variance")
    ]
    targets = both[0].mean + 0.3
    torch.testing.assert_close(both[0].log_prob(targets), both[1].log_prob(targets), rtol=1e-12, atol=1e-12)


@places
def test_the_marginals_of_the_joint_equal_the_exact_predictive(where: list[tuple[int, int]]) -> None:
    """Log density, mean and variance of each of two inputs, from 60,000 draws."""
    own, rows = posterior(snapshots(where)), inputs(2)
    exact = own.predict(rows)
    targets = exact.mean.expand(1, 2, 1)
    found = own.joint(rows[None], places=None, draws=60_000, rng=Seed(0))
    torch.testing.assert_close(found.row_log_prob(targets)[0], exact.log_prob(targets[0]), atol=0.03, rtol=0)
    torch.testing.assert_close(found.predictive.mean, exact.mean, atol=0.03, rtol=0.03)
    torch.testing.assert_close(found.predictive.variance, exact.variance, atol=0.03, rtol=0.03)


def test_one_snapshot_has_the_mean_and_variance_of_its_network() -> None:
    one, rows = {k: v[:1] for k, v in snapshots(PLACES["two units"]).items()}, inputs()
    found, plain = posterior(one).predict(rows), NetworkDraws(SPEC, one).predict(rows)
    assert isinstance(plain, Gaussian)
    torch.testing.assert_close(found.mean, plain.mean)
    torch.testing.assert_close(found.variance, plain.variance, rtol=1e-6, atol=0)


def fit(**section: object) -> State:
    config: CiberSecondConfig = read(
        CIBER_SECOND.config, {"radius": "variance", "tail": 0.01, **section}, "methods.ciber_second"
    )
    found = State(snapshots(PLACES["two units"]), {"spec": to_mapping(SPEC), "epochs": 3, "loss": 0.0})
    stage = CIBER_SECOND.stages["student"]
    return stage.fit_one(make_tiny_table(), {"trajectory": [found]}, config, rng=Seed(0), report=Silent())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"weights": 3, "choice": "range"},
            r"methods\.ciber_second\.choice must be one of input, variance, got .*range",
        ),
        ({"weights": 4, "choice": "variance"}, r"ciber_second\.weights must be 1 … 3 by choice: variance, got 4"),
        ({"weights": 0, "choice": "variance"}, r"ciber_second\.weights must be 1 … 3 by choice: variance, got 0"),
    ],
)
def test_bad_settings_are_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(**section)


def test_a_state_stores_the_choice_only_if_it_is_not_the_default() -> None:
    state = fit(weights=3, choice="variance")
    assert state.config["ciber_second"]["choice"] == "variance"
    found, rows = CiberSecondPosterior.from_state(state), inputs()
    assert found.config == dataclasses.replace(posterior(snapshots(PLACES["two units"])).config, tail=0.01)
    assert found.predict(rows).log_prob(torch.full((5, 1), 1e3)).isfinite().all()
    assert "choice" not in fit(weights=3).config["ciber_second"]  # as in states from before the key existed
