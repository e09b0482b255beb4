"""The spectral bound against numpy's singular values."""

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError
from bdl_pipe.networks.spectral import SpectralBound, bound_spectral_norms


@pytest.mark.parametrize("shape", [(6, 4), (3, 9), (8, 3, 3, 3)])
def test_a_large_weight_is_scaled_to_the_bound_and_a_small_one_left_alone(shape: tuple[int, ...]) -> None:
    weight = torch.tensor(np.random.default_rng(0).normal(0, 1, shape), dtype=torch.float32)
    sigma = np.linalg.norm(weight.numpy().reshape(shape[0], -1), 2)
    found = SpectralBound(0.7)(weight)
    torch.testing.assert_close(found, weight * float(0.7 / sigma))
    assert torch.equal(SpectralBound(1.01 * float(sigma))(weight), weight)


def test_the_gradient_is_that_of_finite_differences() -> None:
    weight = torch.tensor(np.random.default_rng(1).normal(0, 1, (4, 3)), requires_grad=True)
    assert torch.autograd.gradcheck(SpectralBound(0.7), weight)
    assert torch.autograd.gradcheck(SpectralBound(70.0), weight)


def test_layers_are_bounded_and_nothing_else() -> None:
    module = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5, 3))
    assert bound_spectral_norms(module, 0.2) == ["0", "3"]
    for layer in (module[0], module[3]):
        norm = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
        torch.testing.assert_close(norm, torch.tensor(0.2), rtol=1e-5, atol=0)
    with pytest.raises(ConfigError, match="norm_bound must be > 0, got 0"):
        bound_spectral_norms(nn.Linear(2, 2), 0.0)
