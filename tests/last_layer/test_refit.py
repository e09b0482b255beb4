"""G-VBLL-MAP against numpy, a class at a time, and scipy."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.last_layer import Generative
from bdl_pipe.last_layer.refit import Refit

from .generative_cases import CLASSES, WIDTH, mixture, parts


def numpy_refit(layer: Generative, features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 75 (with its inverse, by dense matrices) and the diagonal of eq. 77, a class at a time."""
    noise = np.diag(np.exp(-2 * layer.log_root_precision.detach().numpy()))
    before, after = np.linalg.inv(1.7 * np.eye(WIDTH)), np.linalg.inv(noise)
    means, variances = [], []
    for k in range(CLASSES):
        rows = features[labels == k]
        means.append(np.linalg.inv(before + len(rows) * after) @ after @ rows.sum(0))
        scatter = ((rows - rows.mean(0)) ** 2).sum(0) if len(rows) else np.zeros(WIDTH)
        variances.append((0.6 + scatter) / (len(rows) + 3.0 + 1 + 1))
    return np.stack(means), np.stack(variances)


def batches(features: Tensor, labels: Tensor, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(features.split(sizes), labels.split(sizes), strict=True))


def test_refit_is_the_closed_form_of_each_class(layer: Generative, features: Tensor, labels: Tensor) -> None:
    labels = torch.where(labels == 1, 2, labels)  # class 1 has no rows
    found = layer.refit_noise(batches(features, labels, [10, 1, 12]))
    mean, variance = numpy_refit(layer, features.numpy(), labels.numpy())
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    np.testing.assert_allclose(found.variance, variance, atol=1e-12)
    np.testing.assert_allclose(found.variance[1], 0.6 / 5)
    # an inverse gamma posterior's mode, by its density
    rows = features[labels == 2, 0].numpy()
    grid = np.linspace(0.5, 1.5, 1001) * variance[2, 0]
    posterior = scipy.stats.invgamma(1.5, scale=0.3).logpdf(grid)
    posterior += sum(scipy.stats.norm(rows.mean(), np.sqrt(grid)).logpdf(r) for r in rows)
    assert grid[posterior.argmax()] == pytest.approx(variance[2, 0], rel=2e-3)


def test_refitted_density_is_scipys_mixture(layer: Generative, features: Tensor, labels: Tensor) -> None:
    found = layer.refit_noise([(features, labels)])
    mean, variance = (torch.tensor(v) for v in numpy_refit(layer, features.numpy(), labels.numpy()))
    alpha, noise = parts(layer)[3], parts(layer)[2]
    density = np.log(mixture(features, mean, variance.diag_embed(), alpha).sum(1))
    np.testing.assert_allclose(found.log_density(features, normalised=False), density, rtol=1e-10)
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(features)
    np.testing.assert_allclose(found.log_density(features), density - before, atol=1e-10)


def test_refit_loses_no_digits_to_a_common_offset(layer: Generative, features: Tensor, labels: Tensor) -> None:
    far = features + 1e7
    found = layer.refit_noise(batches(far, labels, [10, 13])).variance
    expected = numpy_refit(layer, (far - 1e7).numpy(), labels.numpy())[1]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    member = torch.nn.functional.one_hot(labels).double().T  # the control: sums of raw squares
    count = member.sum(1, keepdim=True)
    raw = (0.6 + member @ far.square() - (member @ far).square() / count) / (count + 5)
    assert not np.allclose(raw, expected, rtol=1e-4)


def test_refit_leaves_the_layer_as_it_is(layer: Generative, features: Tensor, labels: Tensor) -> None:
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    found = layer.refit_noise([(features, labels)])
    assert isinstance(found, Refit)
    for value in found.buffers():
        value.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
