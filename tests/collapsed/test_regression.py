"""CIBER for regression: against the box of actual weights, by hand, and without its ranges."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, triang

from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.regression import CIBER_LAST, CiberLastConfig, CiberLastPosterior
from bdl_pipe.collapsed.second_to_last import CIBER_SECOND, CiberSecondConfig, CiberSecondPosterior
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
TWO = NetworkSpec(MlpConfig("mlp", (6,)), (3,), 2, "gaussian_head")
snapshots = partial(snapshots_of, spread=0.3)


def inputs(count: int = 5) -> torch.Tensor:
    return torch.tensor(1.5 * numbers("regression", "inputs").normal(size=(count, 3)))


def last(weights: Weights, count: int | None = 3, tail: float = 0.0, spec: NetworkSpec = SPEC) -> CiberLastPosterior:
    return CiberLastPosterior(spec, CiberLastConfig("variance", tail, count), weights)


def second(weights: Weights, count: int = 2, tail: float = 0.0) -> CiberSecondPosterior:
    return CiberSecondPosterior(SPEC, CiberSecondConfig("density", tail, count), weights)


@pytest.mark.parametrize("make", [last, second])
def test_inputs_share_the_collapsed_weights(make: Any) -> None:
    """The marginals are exact; for two inputs, each given twice, the joint exceeds the product: boxes are wide."""
    posterior = make(snapshots_of(SPEC, spread=0.5))
    rows = inputs(2)
    exact = posterior.predict(rows)
    targets = exact.mean.expand(1, 2, 1)
    found = posterior.joint(rows[None], places=None, draws=60_000, rng=Seed(0))
    torch.testing.assert_close(found.row_log_prob(targets)[0], exact.log_prob(targets[0]), atol=0.03, rtol=0)
    torch.testing.assert_close(found.predictive.mean, exact.mean, atol=0.03, rtol=0.03)
    twice = torch.tensor([[0, 0, 1, 1]])
    together = posterior.joint(rows[None], places=twice, draws=60_000, rng=Seed(0))
    assert float(together.gap(targets[:, twice[0]])) > 0.1
    listed = posterior.joint(rows[None, twice[0]], places=None, draws=60_000, rng=Seed(0))
    torch.testing.assert_close(together.log_prob(targets[:, twice[0]]), listed.log_prob(targets[:, twice[0]]))


def layers(weights: Weights, s: int, rows: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights, biases last, and inputs, a one last, of each layer of snapshot s."""
    matrices, values = [], [np.concatenate([rows, np.ones((len(rows), 1))], 1)]
    for name in ("trunk.1", "trunk.3", "head"):
        if f"{name}.weight" in weights:
            parts = [weights[f"{name}.weight"][s].numpy(), weights[f"{name}.bias"][s].numpy()[:, None]]
            matrices.append(np.concatenate(parts, 1))
            hidden = np.maximum(values[-1] @ matrices[-1].T, 0)
            values.append(np.concatenate([hidden, np.ones((len(rows), 1))], 1))
    return matrices, values[:-1]


def noise(weights: Weights, s: int, rows: np.ndarray) -> np.ndarray:
    """The standard deviation of the noise, which the second output gives [row]."""
    matrices, values = layers(weights, s, rows)
    return np.sqrt(0.01 + np.logaddexp(0, values[-1] @ matrices[-1][1]))


def test_one_collapsed_weight_gives_a_difference_of_triangular_cdfs() -> None:
    """E[tri(y − c − hU)] = [T(y − c + h) − T(y − c − h)]/(2h), T the triangular distribution function, by SciPy."""
    weights, rows, y = snapshots(SPEC), inputs(), np.linspace(-2, 2, 5)
    found = last(weights, 1).predict(inputs())
    for s in range(3):
        matrices, values = layers(weights, s, rows.numpy())
        low, high = (
            f([layers(weights, k, rows.numpy())[0][-1][0] for k in range(3)], axis=0) for f in (np.min, np.max)
        )
        sd = noise(weights, s, rows.numpy())
        for row in range(5):
            widths = (high - low) / 2 * np.abs(values[-1][row])
            i, r = int(widths.argmax()), math.sqrt(6) * sd[row]
            middle = matrices[-1][0].copy()
            middle[i] = (low[i] + high[i]) / 2
            offset, h = y[row] - middle @ values[-1][row], widths[i]
            below = triang.cdf([offset - h, offset + h], 0.5, -r, 2 * r)
            got = found.part.log_density(torch.tensor(y)[:, None]).exp()[s, row, 0]
            assert float(got) == pytest.approx((below[1] - below[0]) / (2 * h), rel=1e-9, abs=1e-13)


def chosen_last(weights: Weights, s: int, rows: np.ndarray, row: int, count: int) -> list[tuple[int, float, float]]:
    """(input, low, high) of the collapsed weights of the mean."""
    past = np.stack([layers(weights, k, rows)[0][-1][0] for k in range(3)])
    reach = (past.max(0) - past.min(0)) * np.abs(layers(weights, s, rows)[1][-1][row])
    return [(int(i), past[:, i].min(), past[:, i].max()) for i in np.argsort(-reach)[:count]]


def by_draws(
    weights: Weights, rows: np.ndarray, s: int, row: int, which: str, alpha: float, widen: float
) -> np.ndarray:
    """Targets of the network with each of 20,000 draws of the collapsed weights, with triangular noise."""
    random = numbers("regression", "draws", which, s, row)
    matrices, values = layers(weights, s, rows)
    if which == "last":
        head = np.repeat(matrices[-1][:1], 20_000, 0)
        for i, low, high in chosen_last(weights, s, rows, row, 3):
            head[:, i] = (low + high) / 2 + widen * (high - low) * (random.uniform(size=20_000) - 0.5)
        mean = head @ values[-1][row]
    else:
        unit, columns = chosen_unit(weights, s, rows, row, 2)
        incoming = np.repeat(matrices[1][unit][None], 20_000, 0)
        for i, low, high in columns:
            incoming[:, i] = (low + high) / 2 + widen * (high - low) * (random.uniform(size=20_000) - 0.5)
        hidden = np.repeat(values[-1][row][None], 20_000, 0)
        hidden[:, unit] = np.maximum(incoming @ values[1][row], 0)
        mean = hidden @ matrices[-1][0]
    r = alpha * noise(weights, s, rows)[row]
    return mean + r * (random.uniform(size=20_000) - random.uniform(size=20_000))


def chosen_unit(
    weights: Weights, s: int, rows: np.ndarray, row: int, count: int
) -> tuple[int, list[tuple[int, float, float]]]:
    """The unit whose part of the mean has the widest range over the box of its ``count`` weights of largest reach."""
    matrices, values = layers(weights, s, rows)
    past = np.stack([layers(weights, k, rows)[0][1] for k in range(3)])  # [snapshot, unit, input]
    low, high, best = past.min(0), past.max(0), (-1.0, 0, [0])
    for unit, own in enumerate(matrices[1]):
        reach = (high - low)[unit] * np.abs(values[1][row])
        columns = list(np.argsort(-reach)[:count])
        centre = own.copy()
        centre[columns] = (low + high)[unit, columns] / 2
        active, half = centre @ values[1][row], reach[columns].sum() / 2
        effect = abs(matrices[-1][0][unit]) * (max(active + half, 0) - max(active - half, 0))
        best = max(best, (effect, unit, columns), key=lambda b: b[0])
    return best[1], [(int(i), low[best[1], i], high[best[1], i]) for i in best[2]]


@pytest.mark.parametrize(("which", "alpha"), [("last", math.sqrt(6)), ("second", 2.2970038)])
def test_predictions_agree_with_draws_of_the_collapsed_weights(which: str, alpha: float) -> None:
    """P(y ≤ .) at two places for each snapshot and row, as binomials: χ² of 30, a false alarm in 1e-6.

    A range taken for a half-width, and a radius 1.1 times as large, must fail.
    """
    weights, rows = snapshots_of(SPEC), inputs()
    found = (last(weights, 3) if which == "last" else second(weights, 2)).predict(rows)

    def total(alpha: float, widen: float) -> float:
        sum_ = 0.0
        for s, row in np.ndindex(3, 5):
            drawn = by_draws(weights, rows.numpy(), s, row, which, alpha, widen)
            for level in (0.1, 0.8):
                y = np.quantile(by_draws(weights, rows.numpy(), s, (row + 1) % 5, which, alpha, 1.0), level)
                p = float(found.part.cdf(torch.full((5, 1), y, dtype=torch.float64))[s, row, 0])
                p = min(max(p, 1e-4), 1 - 1e-4)
                sum_ += ((drawn <= y).mean() - p) ** 2 / (p * (1 - p) / len(drawn))
        return sum_

    limit = chi2.isf(1e-6, 30)
    assert total(alpha, 1.0) < limit
    assert total(alpha, 2.0) > limit
    assert total(1.1 * alpha, 1.0) > limit


@pytest.mark.parametrize("which", ["last", "second"])
def test_one_snapshot_gives_its_network_with_triangular_noise(which: str) -> None:
    """One snapshot has no box: the mean and variance of the network, and triangular noise."""
    one, rows = {k: v[:1] for k, v in snapshots(SPEC).items()}, inputs()
    found = (last(one) if which == "last" else second(one)).predict(rows)
    plain = NetworkDraws(SPEC, one).predict(rows)
    assert isinstance(plain, Gaussian)
    torch.testing.assert_close(found.mean, plain.mean)
    factor = 1.0 if which == "last" else 2.2970038**2 / 6  # the radius nearest in L2 is narrower
    torch.testing.assert_close(found.variance, factor * plain.variance, rtol=1e-6, atol=0)
    r = found.part.reach[1] - found.mean
    expected = triang.pdf(0.3, 0.5, -r[0].numpy(), 2 * r[0].numpy())
    np.testing.assert_allclose(found.part.log_density(found.mean + 0.3).exp()[0], expected, rtol=1e-9)


def test_variances_grow_with_the_collapsed_weights_up_to_all_of_them() -> None:
    """Each further weight widens the box, up to all weights; more weights than a tree of corners takes work as well."""
    weights, rows = snapshots(SPEC), inputs()
    spread = [last(weights, count).predict(rows).draw_variance for count in (1, 3, 6)]
    assert (spread[1] > spread[0]).all() and (spread[2] >= spread[1]).all()
    torch.testing.assert_close(last(weights, None).predict(rows).draw_variance, spread[2])
    wide = NetworkSpec(MlpConfig("mlp", (40,)), (3,), 1, "gaussian_head", variance_floor=0.01)
    found = last(snapshots(wide), None, 0.01, wide).predict(rows)
    assert found.log_prob(found.mean).isfinite().all()
    torch.testing.assert_close(
        found.cdf(found.quantile(0.3)), torch.full((5, 1), 0.3, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_two_targets_have_the_mean_of_each_alone_and_one_score_of_both() -> None:
    """Given the snapshot the targets are independent, so that their log densities add up before the mean over it."""
    weights, rows, targets = snapshots(TWO), inputs(), inputs()[:, :2]
    found, sums = last(weights, 3, 0.0, TWO).predict(rows), torch.zeros(3, 5, dtype=torch.float64)
    for output in range(2):
        heads = {f"head.{name}": weights[f"head.{name}"][:, [output, 2 + output]] for name in ("weight", "bias")}
        alone = last({**weights, **heads}, 3, 0.0, replace(TWO, outputs=1)).predict(rows)
        torch.testing.assert_close(found.mean[:, output], alone.mean[:, 0])
        sums += alone.part.log_density(targets[:, [output]])[..., 0]
    torch.testing.assert_close(found.log_prob(targets), sums.logsumexp(0) - math.log(3))


def trajectory(weights: Weights, spec: NetworkSpec = SPEC) -> State:
    return State(weights, {"spec": to_mapping(spec), "epochs": 3, "loss": 0.0})


def fit(method: str, spec: NetworkSpec = SPEC, **section: object) -> State:
    made = {"ciber_last": CIBER_LAST, "ciber_second": CIBER_SECOND}[method]
    config = read(made.config, {"radius": "variance", "tail": 0.01, **section}, f"methods.{method}")
    inputs = {"trajectory": [trajectory(snapshots(spec), spec)]}
    return made.stages["student"].fit_one(make_tiny_table(), inputs, config, rng=Seed(0), report=Silent())


TANH = NetworkSpec(MlpConfig("mlp", (5,), "tanh"), (3,), 1, "gaussian_head")


@pytest.mark.parametrize(
    ("method", "spec", "section", "message"),
    [
        ("ciber_last", SPEC, {"weights": 7}, r"methods\.ciber_last\.weights must be at most 6, .* got 7"),
        ("ciber_last", SPEC, {"weights": 0}, r"methods\.ciber_last\.weights must be > 0 or null, got 0"),
        ("ciber_last", SPEC, {"weights": 1, "tail": 1.0}, r"methods\.ciber_last\.tail must be in \[0, 1\), got 1\.0"),
        ("ciber_second", SPEC, {"weights": 11}, r"methods\.ciber_second\.weights must be 1 … 10, got 11"),
        ("ciber_second", SPEC, {"weights": 8}, r"methods\.ciber_second\.weights must be at most 7, .* got 8"),
        ("ciber_second", TWO, {"weights": 1}, r"methods\.ciber_second must have data of one target, got 2"),
        ("ciber_second", TANH, {"weights": 1}, r"methods\.sgd\.network must be an mlp with relu"),
    ],
)
def test_bad_settings_are_refused(method: str, spec: NetworkSpec, section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(method, spec, **section)


@pytest.mark.parametrize("method", ["ciber_last", "ciber_second"])
def test_a_tail_gives_far_targets_a_finite_score(method: str) -> None:
    state, far = fit(method, weights=2), torch.full((5, 1), 1e3)
    kind = {"ciber_last": CiberLastPosterior, "ciber_second": CiberSecondPosterior}[method]
    found = kind.from_state(state).predict(inputs())
    assert isinstance(found, CollapsedMixture)
    assert found.log_prob(far).isfinite().all()
    none = CollapsedMixture(found.part, 0.0)
    assert (none.log_prob(far) == -torch.inf).all()
