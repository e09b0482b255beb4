"""Figure 1 of the last layers' paper: the toy problems, and the measures of fits, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from bdl_pipe.config import merge
from bdl_pipe.predictive import Gaussian
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from benchmarks import vbll_figure1 as figure1
from benchmarks.toys import last_layers as toys
from benchmarks.toys import moons
from benchmarks.toys.residual import Residual


def made(sd_of_f: np.ndarray, shift: float = 0.0, noise: float = 0.01) -> figure1.Curve:
    """Return a curve of two draws, ``sd_of_f`` below and above f + shift."""
    f = toys.curve(figure1.X) + shift
    means = torch.tensor(np.stack([f - sd_of_f, f + sd_of_f])[..., None])
    return figure1.Curve(Gaussian(means, torch.full_like(means, noise)), noise)


def test_the_measures_of_a_curve_equal_values_by_hand() -> None:
    """Deviations |x|/5: 0 at 0, at ±6 twice the mean over the data; after a large shift the band holds f nowhere."""
    size = np.abs(figure1.X)
    figure = figure1.measured(made(size / 5))
    at_data = size[(size >= 2) & (size <= 4)].mean() / 5
    y = np.sqrt(0.01 + size**2 / 25)
    by_hand = {
        "sd of f at the data": at_data,
        "sd of f at 0, over it": 0,
        "sd of f at ±6, over it": 1.2 / at_data,
        "sd of y at ±6, over it": math.sqrt(0.01 + 1.44) / y[(size >= 2) & (size <= 4)].mean(),
        "sd of the noise (true: 0.1)": 0.1,
        "error of the mean at the data": 0,
        "mean at ±6, over f": 1,
    }
    assert {name: figure[name] for name in by_hand} == pytest.approx(by_hand, abs=1e-7)
    assert figure["error of the mean at the data"] == pytest.approx(0, abs=1e-12)
    assert all(value == 1 for name, value in figure.items() if name.startswith("holds"))
    away = figure1.measured(made(0 * size + 1e-3, shift=0.3))
    assert all(value == 0 for name, value in away.items() if name.startswith("holds"))
    assert away["error of the mean at the data"] == pytest.approx(0.3)
    just = [figure1.measured(made(0 * size + 1e-3, shift=0.1 * z))["holds f, in the gap"] for z in (1.95, 1.97)]
    assert just == [1, 0]  # the central 95 % end at 1.96


def test_the_sensitivity_is_a_rank_correlation() -> None:
    distance = Seed(0).fold("distance").numpy().uniform(0, 3, 400)
    assert moons.sensitivity(np.exp(-(distance**2)), distance) == pytest.approx(1)
    assert moons.sensitivity(distance**3, distance) == pytest.approx(-1)
    shuffled = Seed(0).fold("shuffle").numpy().permutation(distance)
    assert abs(moons.sensitivity(shuffled, distance)) < 4.9 / math.sqrt(400)  # a false alarm in 1e-6
    bent = np.where(distance < 1, distance, -distance)  # in the wrong order below distance 1
    assert moons.sensitivity(bent, distance, beyond=1.0) == pytest.approx(1)
    assert moons.sensitivity(bent, distance) < 0.95  # a third of the points is in reverse order: 1 - 2/27


def test_the_share_of_familiar_points_counts_only_distant_points() -> None:
    distance, at_rows = np.array([0.1, 0.6, 1.0, 2.0, 3.0]), np.array([-9.0, 0.0, 1.0])
    assert moons.familiar(np.array([5.0, -1.0, 0.0, -2.0, 3.0]), at_rows, distance) == 0.5
    assert moons.familiar(np.array([5.0, -1.0, -1.0, -2.0, -3.0]), at_rows, distance) == 0  # the near point is left out


def test_the_distance_to_the_nearest_row_equals_a_direct_search() -> None:
    random = Seed(0).fold("rows").numpy()
    rows, points = random.standard_normal((30, 2)), random.standard_normal((50, 2))
    slow = np.sqrt(((points[:, None] - rows) ** 2).sum(-1)).min(1)
    np.testing.assert_allclose(moons.nearest(rows, points), slow, rtol=1e-12)


def test_the_cubic_has_a_gap_and_noise_of_deviation_a_tenth() -> None:
    """The noise's deviation over five seeds, 500 rows, within five of its standard errors (a false alarm in 1e-6)."""
    every = [toys.cubic(seed) for seed in range(5)]
    x, y = (np.concatenate([getattr(data.train, name) for data in every]) for name in ("inputs", "targets"))
    assert x.shape == (500, 1) and np.abs(x).min() >= 2 and np.abs(x).max() <= 4
    assert abs((x > 0).mean() - 0.5) < 4.9 * 0.5 / math.sqrt(500)
    assert (y - toys.curve(x)).std() == pytest.approx(0.1, rel=5 / math.sqrt(1000))
    assert toys.curve(np.array([4.0, -4.0, 2.0])).tolist() == [1, -1, 0.125]


def test_the_residual_network_adds_each_layer() -> None:
    network = Residual((2,), 5, 2)
    x = torch.randn(7, 2, generator=Seed(0).generator())
    first = network.first(x)
    second = first + torch.nn.functional.leaky_relu(network.hidden[0](first))
    third = second + torch.nn.functional.leaky_relu(network.hidden[1](second))
    torch.testing.assert_close(network(x), network.head(third))
    for layer in network.hidden:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    torch.testing.assert_close(network(x), network.head(first))  # a plain perceptron would leave only the head's bias


@pytest.mark.slow
def test_scores_of_the_moons_equal_the_densities_of_the_layer() -> None:
    """After one epoch: log p(φ | y) by torch.distributions; the prior's density normalises it."""
    data = [toys.moons(0)]
    short = {"training": {"epochs": 1}}
    vbll = toys.fitted((*toys.G_VBLL[:2], merge(toys.G_VBLL[2], short)), data)
    network = toys.fitted((*toys.PLAIN[:2], merge(toys.PLAIN[2], {"epochs": 1})), data)
    surfaces = moons.moons(data[0], vbll[0], network[0])
    learner = posterior_of(vbll[0]).learner
    layer = learner.layer
    with torch.no_grad():
        features = learner.trunk(torch.tensor(moons.GRID, dtype=torch.float32)).double()
        sd = (layer.noise_variance + torch.exp(2 * layer.log_std)).double().sqrt()
        laws = [Independent(Normal(mean, each), 1) for mean, each in zip(layer.mean.double(), sd, strict=True)]
        classes = torch.stack([law.log_prob(features) for law in laws], -1)
        density = (classes + layer.class_log_probs.double()).logsumexp(-1)
        prior = Independent(Normal(torch.zeros(128).double(), layer.feature_prior_variance.double().sqrt()), 1)
        at_rows = layer(learner.trunk(torch.tensor(data[0].train.inputs).float())).logsumexp(-1)
    normalised, scores = density - prior.log_prob(features), surfaces.scores
    for ours, expected in (
        (surfaces.classes, classes),
        (scores["G-VBLL: log p(φ)"], density),
        (scores["G-VBLL: less the prior's"], normalised),
        (surfaces.at_rows["G-VBLL: log p(φ)"], at_rows),
    ):
        np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-4, atol=1e-2)
    assert np.abs(scores["G-VBLL: log p(φ)"] - normalised.numpy()).max() > 1
    largest = surfaces.scores["plain network: largest probability"]
    assert largest.max() <= 0 and largest.min() >= -math.log(2) - 1e-6


@pytest.mark.slow
def test_the_tables_have_every_row_and_the_picture_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figure1, "OUT", tmp_path)
    fits = {name: [made(np.abs(figure1.X) / 5)] * 2 for name in toys.CUBIC_FITS}
    distance = moons.nearest(np.zeros((1, 2)), moons.GRID)
    scores = {"G-VBLL: log p(φ)": -distance, "plain network: largest probability": -np.ones_like(distance) / 2}
    scores["plain network: largest probability"][:3] = -0.1
    one = moons.Moons(distance, scores, scores, np.stack([-distance, -2 * distance], -1), (0.9, 0.8))
    other = replace(one, scores={name: score[::-1].copy() for name, score in scores.items()})
    assert all(f"| {name} " in figure1.cubic_table(fits) for name in toys.CUBIC_FITS)
    text = figure1.moons_table([one, other])
    assert all(f"| {name} | " in text for name in scores)
    figure1.draw(toys.cubic(0), fits, toys.moons(0), one)
    assert (tmp_path / "figure1.png").stat().st_size > 10_000
