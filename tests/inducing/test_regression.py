"""Our parts of the 1-D regression: data, density, functions, distance, and the stored draws of NUTS."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.distributions import Normal

from bdl_pipe.seeds import Seed
from benchmarks import inducing_regression as regression
from benchmarks.references import inducing_nuts as nuts


def weights(count: int) -> np.ndarray:
    """Whitened weights, [draw, 151]."""
    return Seed(1).numpy().standard_normal((count, regression.WEIGHTS))


def torchs(flat: Tensor) -> nn.Sequential:
    """The network with these weights, as torch builds it."""
    network = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    parts = flat.split([50, 50, 50, 1])
    for parameter, part in zip(network.parameters(), parts, strict=True):
        parameter.data = part.view_as(parameter)
    return network


def test_the_data_follow_the_model_of_the_paper() -> None:
    """Residuals from cos(4x + 0.8): χ² over 100 rows within its 1e-5 quantiles; from cos(0.4x + 0.8) far outside."""
    x, y = regression.data(Seed(0))
    assert x.shape == y.shape == (100,) and x.dtype == y.dtype == np.float64
    assert ((x[:50] >= -1) & (x[:50] <= -0.7)).all() and ((x[50:] >= 0.5) & (x[50:] <= 1)).all()
    assert np.ptp(x[:50]) > 0.25 and np.ptp(x[50:]) > 0.42  # missed with probability 2e-4 and 5e-4; seed fixed
    assert 48 < ((y - np.cos(4 * x + 0.8)) ** 2).sum() / 0.01 < 175
    assert ((y - np.cos(0.4 * x + 0.8)) ** 2).sum() / 0.01 > 1000
    again, other = regression.data(Seed(0)), regression.data(Seed(1))
    assert np.array_equal(again[0], x) and np.array_equal(again[1], y) and not np.array_equal(other[0], x)


def test_the_log_joint_equals_torch_distributions_up_to_a_constant() -> None:
    """The difference from torch.distributions at random weights is one constant; with a wrong prior it varies."""
    x, y = (torch.from_numpy(a) for a in regression.data(Seed(0)))
    gaps, sd = [], torch.from_numpy(regression.prior_sd())
    for w in torch.from_numpy(weights(8)):
        network = torchs(w * sd)
        prior = sum(
            Normal(torch.zeros_like(p), 4 / math.sqrt(layer.in_features)).log_prob(p).sum()
            for layer in (network[0], network[2])
            for p in layer.parameters()
        )
        likelihood = Normal(network(x[:, None])[:, 0], 0.1).log_prob(y).sum()
        gaps.append(float((prior + likelihood).detach() - nuts.log_joint(w, x, y, sd, torch)))
    assert np.ptp(gaps) < 1e-7  # of densities of 1e4 and more
    wrong = [float(nuts.log_joint(w, x, y, sd * 1.1, torch)) for w in torch.from_numpy(weights(8))]
    right = [float(nuts.log_joint(w, x, y, sd, torch)) for w in torch.from_numpy(weights(8))]
    assert np.ptp(np.subtract(wrong, right)) > 1


def test_functions_equal_the_outputs_of_torch_networks() -> None:
    flat, x = weights(5) * regression.prior_sd(), np.linspace(-2, 2, 7)
    expected = torch.stack([torchs(torch.from_numpy(w))(torch.from_numpy(x)[:, None])[:, 0] for w in flat])
    np.testing.assert_allclose(regression.functions(flat, x), expected.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_the_distances_equal_closed_forms() -> None:
    """W₁ between N(0, 1) and N(m, s²) by quantiles: |m| for s = 1, (s − 1)√(2/π) for m = 0."""
    u = norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None] + np.zeros(161)
    for m, s, expected in ((0.0, 1.0, 0.0), (0.7, 1.0, 0.7), (0.0, 2.0, math.sqrt(2 / math.pi))):
        found = regression.distances(regression.GRID, u, m + s * u[::2])
        assert found == pytest.approx(dict.fromkeys(found, expected), abs=2e-3)
    assert list(found) == ["data", "between", "outside", "all"]


def test_each_distance_covers_its_own_region_of_inputs() -> None:
    reference = np.zeros((3, 161))
    draws = np.where(np.abs(regression.GRID) < 0.3, 1.0, 0.0) * np.ones((2, 1))
    found = regression.distances(regression.GRID, reference, draws)
    assert found["data"] == found["outside"] == 0 and found["between"] > 0.4


def test_a_stored_reference_is_read_back_with_every_tenth_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps every tenth function, chain by chain."""
    monkeypatch.setattr(nuts, "GRID", np.linspace(-2, 2, 3))
    monkeypatch.setattr(nuts, "KEPT", 80)
    (x, y), draws = regression.data(Seed(0)), Seed(3).numpy().standard_normal((4, 200, 3))
    nuts.store(tmp_path / "nuts.safetensors", x, y, draws, {"seed": 0})
    read = regression.read_reference(tmp_path / "nuts.safetensors")
    assert np.array_equal(read.x, x) and np.array_equal(read.y, y) and np.array_equal(read.grid, nuts.GRID)
    assert read.draws.shape == (80, 3) and read.draws.dtype == np.float32
    np.testing.assert_array_equal(read.draws[20:40], draws[1, ::10].astype(np.float32))
    assert set(read.about) == {"seed", "r_hat_max", "ess_min"}


def test_predictions_of_the_prior_have_its_variance_and_a_method_gets_the_data() -> None:
    """The prior's variance at x: 16 E[tanh²(4√(x² + 1) z)] + 16/50; 2,000 draws, 5 standard errors if Gaussian."""
    zeros = np.zeros((1, 3))
    reference = regression.Reference(*regression.data(Seed(0)), np.array([-2.0, 0.0, 1.0]), zeros, {})
    draws, other = regression.predict(reference, regression.prior, [Seed(0), Seed(1)])
    assert not np.array_equal(draws, other)
    assert draws.shape == (2000, 3)
    z = norm.ppf((np.arange(4000) + 0.5) / 4000)
    for x, found in zip(reference.grid, draws.var(0), strict=True):
        expected = 16 * (np.tanh(4 * math.sqrt(x**2 + 1) * z) ** 2).mean() + 16 / 50
        assert found == pytest.approx(expected, rel=5 * math.sqrt(2 / 2000))
    targets: list[Tensor] = []
    regression.predict(reference, lambda x, y, rngs: targets.append(y) or [lambda grid: grid[None]], [Seed(0)])
    assert torch.equal(targets[0], torch.from_numpy(reference.y))


@pytest.fixture(scope="module")
def stored() -> regression.Reference:
    return regression.read_reference()


def test_the_stored_reference_has_these_data_and_has_converged(stored: regression.Reference) -> None:
    x, y = regression.data(Seed(0))
    assert np.array_equal(stored.x, x) and np.array_equal(stored.y, y) and np.array_equal(stored.grid, regression.GRID)
    assert stored.draws.shape == (2000, 161) and np.isfinite(stored.draws).all()
    about = stored.about
    assert (about["draws"], about["burn_in"], about["chains"]) == (25_000, 5_000, 4)
    assert int(about["divergences"]) <= 20  # type: ignore[call-overload]  # 0.1 % of the draws
    assert float(about["r_hat_max"]) < 1.01 and float(about["ess_min"]) > 1000  # type: ignore[arg-type]


def test_the_stored_reference_fits_the_data_and_is_wide_away_from_them(stored: regression.Reference) -> None:
    """Squared residuals from the posterior's mean over 0.01 are χ² of a little under 100: 48 to 175, as for noise."""
    mean, sd = stored.draws.mean(0), stored.draws.std(0)
    residuals = stored.y - np.interp(stored.x, stored.grid, mean)
    assert 48 < (residuals**2).sum() / 0.01 < 175
    masks = regression.regions(stored.grid)
    assert sd[masks["data"]].max() < 0.1 < sd[masks["between"]].max()
    assert sd[[0, -1]].min() > 5 * sd[masks["data"]].max()


def test_halves_of_the_reference_are_ten_times_closer_than_the_prior(stored: regression.Reference) -> None:
    floor = regression.halves(stored)
    (prior,) = regression.predict(stored, regression.prior, [Seed(0)])
    found = regression.distances(stored.grid, stored.draws, prior)
    assert all(floor[name] < 0.1 * found[name] for name in floor)
