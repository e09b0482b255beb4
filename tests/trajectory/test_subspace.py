"""The plane against scikit-learn's principal components, and its likelihood against the network's own."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.normalisation import evaluation, refresh_batch_norm
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.subspace import SubspaceConfig, Target, principal

from .cases import flat, linear_trajectory, walk

CONFIG = SubspaceConfig(
    dimension=2, temperature=4.0, prior_variance=1.0, rows=None, draws=2, batch_norm_rows=None, batch_norm_batch=1000
)
HEADS = NetworkSpec(MlpConfig("mlp", (5,), dropout=0.3), (4,), 1, "gaussian_head")
IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2), (1, 8, 8), 3, "categorical")
Z = torch.tensor([0.7, -1.2], dtype=torch.float64)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("dimension", [1, 3, 5])
def test_components_equal_scikit_learn_up_to_sign(dimension: int, offset: float) -> None:
    past = linear_trajectory()
    w = torch.tensor(flat(past.tensors) + offset, dtype=torch.float32)
    found, theirs = principal(w, dimension), PCA(dimension, svd_solver="full").fit(w.double().numpy())
    expected = theirs.components_ * np.sqrt(theirs.explained_variance_)[:, None]
    signs = np.sign((found.components.numpy() * expected).sum(1))[:, None]
    np.testing.assert_allclose(found.mean.numpy(), theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose(found.components.numpy(), signs * expected, atol=1e-9)
    assert not np.allclose(found.components.numpy(), signs * theirs.components_, atol=1e-2)  # without the scale


def test_the_likelihood_at_a_point_equals_the_likelihood_of_its_network(tiny_table: FitData) -> None:
    """Predicted log-variances move, too; dropout is off."""
    past = walk(HEADS, spread=0.2)
    target = Target(tiny_table, {"trajectory": [past]}, CONFIG, "pca_ess", Seed(0))
    state = target.networks(Z[None], Silent()).state()
    network = HEADS.build(Seed(0)).eval()
    network.load_state_dict({k: v[0] for k, v in state.tensors.items()})
    inputs, targets = tiny_table.tensors("train")
    mean, log_variance = network(inputs).double().chunk(2, dim=-1)
    expected = torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(targets).sum().item() / 4
    assert target.total(Z, 1000) == pytest.approx(expected, rel=1e-6)
    assert target.total(Z, 7) == pytest.approx(expected, rel=1e-6)
    assert target.total(0 * Z, 1000) != pytest.approx(expected, rel=1e-3)
    still = torch.stack([past.tensors["head.bias"][:, 1]]).std()
    assert still > 0  # the bias of the log-variance differs between snapshots


def test_the_likelihood_of_some_rows_is_scaled_up_to_all_rows(tiny_table: FitData) -> None:
    """The mean over 100 choices of 20 of 80 rows against all of them, within 6 standard errors (2e-9)."""
    past, rows = linear_trajectory(), torch.arange(20)

    def target(rows: int | None, choice: int = 0) -> Target:
        config = dataclasses.replace(CONFIG, rows=rows)
        return Target(tiny_table, {"trajectory": [past]}, config, "pca_ess", Seed(choice))

    whole = target(None).total(Z, 1000)
    some = [target(20, choice) for choice in range(100)]
    logs = np.array([each.total(Z, 1000) for each in some])
    error = logs.std(ddof=1) / 10
    assert {(len(each), each.num_train) for each in some} == {(20, 80)}
    assert 0 < error < 0.05 * abs(whole) and abs(logs.mean() - whole) < 6 * error
    assert abs(logs.mean() / 4 - whole) > 6 * error  # not scaled up
    assert some[0].tempered(Z, rows).item() == pytest.approx(logs[0])
    for many in (80, 1000):
        assert target(many).total(Z, 1000) == pytest.approx(whole, rel=1e-9)


def test_batches_of_images_are_in_channels_last_order(tiny_images: FitData) -> None:
    """Each batch has the network's fastest memory order, though with one channel all orders hold the same values."""
    target, strides = Target(tiny_images, {"trajectory": [walk(IMAGES, spread=0.2)]}, CONFIG, "pca_ess", Seed(0)), []
    target._snapshots.network.register_forward_pre_hook(lambda _, given: strides.append(given[0].stride(1)))
    target.total(Z, 50)
    assert strides == [1] * 4


def test_gradients_equal_central_differences(tiny_images: FitData) -> None:
    """Through batch statistics; central differences of float32 outputs, good to some 1 %."""
    target = Target(tiny_images, {"trajectory": [walk(IMAGES, spread=0.2)]}, CONFIG, "pca_vi", Seed(0))
    rows, z = torch.arange(160), Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target.tempered(z, rows), z)
    for axis in range(2):
        away = torch.zeros(2, dtype=torch.float64)
        away[axis] = 1e-2
        slope = (target.total(Z + away, 160) - target.total(Z - away, 160)) / 2e-2
        assert gradient[axis].item() == pytest.approx(slope, rel=1e-2, abs=1e-2)


def test_batches_are_normalised_by_their_own_statistics(tiny_images: FitData) -> None:
    """With all rows in one batch a drawn network has the batch's statistics, but for the variance's n − 1."""
    target = Target(tiny_images, {"trajectory": [walk(IMAGES, spread=0.2)]}, CONFIG, "pca_ess", Seed(0))
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
