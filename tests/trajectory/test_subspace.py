"""The plane of a trajectory, and its sampler and variational Gaussian, against scikit-learn and exact posteriors."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.normalisation import evaluation, refresh_batch_norm
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import OptimiserConfig, run_steps
from bdl_pipe.trajectory.pca_ess import PCA_ESS, PcaEssConfig, Place, sample, step
from bdl_pipe.trajectory.pca_vi import PCA_VI, Bound, PcaViConfig
from bdl_pipe.trajectory.subspace import SubspaceConfig, Target, principal

from .cases import PRIOR_VARIANCE, TEMPERATURE, coordinates, exact, flat, linear_trajectory, plane, rejects, walk

SUBSPACE: dict[str, Any] = {
    "dimension": 3,
    "temperature": TEMPERATURE,
    "prior_variance": PRIOR_VARIANCE,
    "rows": None,
    "batch_norm_rows": None,
    "batch_norm_batch": 32,
    "batch": 80,
}
CONFIG = PcaEssConfig(**SUBSPACE, draws=500, burn_in=10, every=1)
ADAM = OptimiserConfig("adam", 0.1, "cosine")
VI = PcaViConfig(**SUBSPACE, draws=1000, initial_sd=0.3, steps=250, samples=1, optimiser=ADAM)


def drawn(data: FitData, seed: int = 3, config: PcaEssConfig | PcaViConfig = CONFIG, **changes: float) -> np.ndarray:
    past, config = linear_trajectory(), dataclasses.replace(config, **changes)
    method, inputs = PCA_ESS if isinstance(config, PcaEssConfig) else PCA_VI, {"trajectory": [past]}
    state = method.stages["student"].fit_one(data, inputs, config, rng=Seed(seed), report=Silent())
    return coordinates(state, past, config.dimension)


def test_draws_follow_the_exact_posterior(tiny_table: FitData) -> None:
    """False alarms: see ``cases.rejects``. Told apart: a temperature left out or inverted."""
    z = drawn(tiny_table)
    past = linear_trajectory()
    assert not rejects(z, *exact(past, tiny_table, 3, 1 / TEMPERATURE))
    assert rejects(z, *exact(past, tiny_table, 3, 1.0))
    assert rejects(z, *exact(past, tiny_table, 3, TEMPERATURE))


def test_a_step_never_moves_to_a_point_without_likelihood() -> None:
    """A point whose log-likelihood is NaN or −∞ is never taken."""

    def cut(z: torch.Tensor) -> float:
        return math.nan if z[0] < 0 else (-math.inf if z[1] < 0 else 0.0)

    place = Place(torch.ones(2, dtype=torch.float64), 0.0)
    for number in range(200):
        place = step(place, cut, 1.0, Seed(0).fold(number).generator())
        assert (place.z >= 0).all() and place.log_likelihood == 0.0


def test_the_size_of_a_batch_does_not_change_the_draws(tiny_table: FitData) -> None:
    one = drawn(tiny_table, draws=3, burn_in=0)
    np.testing.assert_allclose(drawn(tiny_table, draws=3, burn_in=0, batch=30), one, atol=1e-4)
    assert np.abs(drawn(tiny_table, seed=4, draws=3, burn_in=0) - one).max() > 0.1


def test_a_start_of_nan_too_many_components_and_a_weight_decay_are_refused(tiny_table: FitData) -> None:
    with pytest.raises(Diverged, match="log-likelihood at the trajectory's mean is nan"):
        sample(lambda z: math.nan, CONFIG, rng=Seed(0), report=Silent())
    rule = r"^methods\.pca_ess\.dimension must be <= the trajectory's snapshots less one \(5\), got 6$"
    with pytest.raises(ConfigError, match=rule):
        drawn(tiny_table, dimension=6)
    with pytest.raises(ConfigError, match=r"^optimiser\.weight_decay must be 0: the prior is in the bound, got 0\.1$"):
        dataclasses.replace(VI, optimiser=OptimiserConfig("adam", 0.1, weight_decay=0.1))


def fitted(data: FitData, **changes: object) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of q, in numpy's components."""
    past, config = linear_trajectory(), dataclasses.replace(VI, **changes)
    target = Target(data, {"trajectory": [past]}, config, "pca_vi", Seed(3))
    bound = Bound(target, config, Seed(3))
    run_steps(bound, config.optimiser, config.steps, Silent())
    _, components = plane(past, 3)
    ours = target.plane.components.numpy()
    turn = ours @ np.linalg.pinv(components)  # signs
    factor = bound.factor().detach().numpy()
    return bound.mean.detach().numpy() @ turn, turn.T @ factor @ factor.T @ turn


def close(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], tolerance: float) -> bool:
    """Whether means differ by less than ``tolerance`` exact deviations, and covariances by that share."""
    sd = np.sqrt(expected[1].diagonal())
    mean = np.abs(found[0] - expected[0]) / sd
    covariance = np.abs(found[1] - expected[1]) / np.outer(sd, sd)
    return bool(mean.max() < tolerance and covariance.max() < tolerance)


def test_the_variational_gaussian_equals_the_exact_posterior(tiny_table: FitData) -> None:
    posterior, past = fitted(tiny_table), linear_trajectory()
    assert close(posterior, exact(past, tiny_table, 3, 1 / TEMPERATURE), 1e-2)
    assert not close(posterior, exact(past, tiny_table, 3, 2 / TEMPERATURE), 5e-2)
    assert not close(posterior, exact(past, tiny_table, 3, TEMPERATURE), 5e-2)


def test_the_loss_of_batches_averages_to_the_loss_of_all_rows(tiny_table: FitData) -> None:
    """The mean loss of 300 batches against that of all rows; 6 combined standard errors (2e-9)."""

    def losses(batch: int, draws: int) -> np.ndarray:
        config = dataclasses.replace(VI, batch=batch)
        target = Target(tiny_table, {"trajectory": [linear_trajectory()]}, config, "pca_vi", Seed(3))
        bound = Bound(target, config, Seed(3))
        with torch.no_grad():
            return np.array([bound.loss(number).item() for number in range(draws)])

    some, whole = losses(20, 300), losses(80, 300)
    error = np.hypot(some.std(), whole.std()) / np.sqrt(300)
    assert abs(some.mean() - whole.mean()) < 6 * error
    assert abs(some.mean() / 4 - whole.mean()) > 6 * error  # a likelihood of the batch alone


def test_networks_are_drawn_from_the_variational_gaussian(tiny_table: FitData) -> None:
    """False alarms: see ``cases.rejects``, of independent draws; q is exact to 1e-2, as the test above checks."""
    z, past = drawn(tiny_table, config=VI), linear_trajectory()
    assert z.shape == (1000, 3)
    mean, covariance = exact(past, tiny_table, 3, 1 / TEMPERATURE)
    assert not rejects(z, mean, covariance)
    assert rejects(z, mean, covariance * 1.5)
    assert rejects(z, *exact(past, tiny_table, 3, 1.0))


PLAIN = SubspaceConfig(
    dimension=2, temperature=4.0, prior_variance=1.0, rows=None, draws=2, batch_norm_rows=None, batch_norm_batch=1000
)
HEADS = NetworkSpec(MlpConfig("mlp", (5,), dropout=0.3), (4,), 1, "gaussian_head")
IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2), (1, 8, 8), 3, "categorical")
Z = torch.tensor([0.7, -1.2], dtype=torch.float64)


def target_of(data: FitData, past: State, seed: int = 0, rows: int | None = None) -> Target:
    config = dataclasses.replace(PLAIN, rows=rows)
    return Target(data, {"trajectory": [past]}, config, "pca_ess", Seed(seed))


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("dimension", [1, 3, 5])
def test_components_equal_scikit_learn_up_to_sign(dimension: int, offset: float) -> None:
    past = linear_trajectory()
    w = torch.tensor(flat(past.tensors) + offset, dtype=torch.float32)
    ours, theirs = principal(w, dimension), PCA(dimension, svd_solver="full").fit(w.double().numpy())
    expected = theirs.components_ * np.sqrt(theirs.explained_variance_)[:, None]
    signs = np.sign((ours.components.numpy() * expected).sum(1))[:, None]
    np.testing.assert_allclose(ours.mean.numpy(), theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose(ours.components.numpy(), signs * expected, atol=1e-9)
    assert not np.allclose(ours.components.numpy(), signs * theirs.components_, atol=1e-2)  # without the scale


def test_the_likelihood_at_a_point_equals_the_likelihood_of_its_network(tiny_table: FitData) -> None:
    """Predicted log-variances move, too; dropout is off."""
    past = walk(HEADS, spread=0.2)
    target = target_of(tiny_table, past)
    network, (inputs, targets) = HEADS.build(Seed(0)).eval(), tiny_table.tensors("train")
    network.load_state_dict({k: v[0] for k, v in target.networks(Z[None], Silent()).state().tensors.items()})
    mean, log_variance = network(inputs).double().chunk(2, dim=-1)
    expected = torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(targets).sum().item() / 4
    for batch in (1000, 7):
        assert target.total(Z, batch) == pytest.approx(expected, rel=1e-6)
    assert target.total(0 * Z, 1000) != pytest.approx(expected, rel=1e-3)
    assert past.tensors["head.bias"][:, 1].std() > 0  # the bias of the log-variance differs between snapshots


def test_the_likelihood_of_some_rows_is_scaled_up_to_all_rows(tiny_table: FitData) -> None:
    """The mean over 100 choices of 20 of 80 rows against all of them, within 6 standard errors (2e-9)."""
    past = linear_trajectory()
    whole, some = target_of(tiny_table, past).total(Z, 1000), [target_of(tiny_table, past, k, 20) for k in range(100)]
    logs = np.array([each.total(Z, 1000) for each in some])
    error = logs.std(ddof=1) / 10
    assert {(len(each), each.num_train) for each in some} == {(20, 80)}
    assert 0 < error < 0.05 * abs(whole) and abs(logs.mean() - whole) < 6 * error
    assert abs(logs.mean() / 4 - whole) > 6 * error  # not scaled up
    assert some[0].tempered(Z, torch.arange(20)).item() == pytest.approx(logs[0])
    for many in (80, 1000):
        assert target_of(tiny_table, past, rows=many).total(Z, 1000) == pytest.approx(whole, rel=1e-9)


def test_batches_of_images_are_in_channels_last_order(tiny_images: FitData) -> None:
    """Each batch has the network's fastest memory order, though with one channel all orders hold the same values."""
    target, strides = target_of(tiny_images, walk(IMAGES, spread=0.2)), []
    target._snapshots.network.register_forward_pre_hook(lambda _, given: strides.append(given[0].stride(1)))
    target.total(Z, 50)
    assert strides == [1] * 4


def test_gradients_equal_central_differences(tiny_images: FitData) -> None:
    """Through batch statistics; central differences of float32 outputs, good to some 1 %."""
    target, z = target_of(tiny_images, walk(IMAGES, spread=0.2)), Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target.tempered(z, torch.arange(160)), z)
    for axis, away in enumerate(1e-2 * torch.eye(2, dtype=torch.float64)):
        slope = (target.total(Z + away, 160) - target.total(Z - away, 160)) / 2e-2
        assert gradient[axis].item() == pytest.approx(slope, rel=1e-2, abs=1e-2)


def test_batches_are_normalised_by_their_own_statistics(tiny_images: FitData) -> None:
    """With all rows in one batch a drawn network has the batch's statistics, but for the variance's n − 1."""
    target = target_of(tiny_images, walk(IMAGES, spread=0.2))
    before = target.total(Z, 160)
    state = target.networks(torch.stack([Z, -Z]), Silent()).state()
    assert target.total(Z, 160) == before  # whatever statistics the network had
    network = IMAGES.build(Seed(0)).eval()
    inputs, labels = tiny_images.tensors("train")
    for number, point in enumerate([Z, -Z]):
        network.load_state_dict({k: v[number] for k, v in state.tensors.items()})
        logs = network(inputs).double().log_softmax(-1)
        expected = logs[torch.arange(160), labels].sum().item() / 4
        assert target.total(point, 160) == pytest.approx(expected, rel=1e-3)
    assert not torch.equal(state.tensors["trunk.1.running_mean"][0], state.tensors["trunk.1.running_mean"][1])


def test_dropout_is_off_while_statistics_are_refreshed() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    x = torch.randn(40, 3, generator=Seed(0).generator())
    state = torch.get_rng_state()
    refresh_batch_norm(network, x, 1000)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(network[1].running_mean, x.mean(0))
    with evaluation(network.train(), batch_statistics=True):
        assert [m.training for m in network] == [False, True, False]
    assert all(m.training for m in network)
