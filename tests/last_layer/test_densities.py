"""Diagonal Gaussians' log densities, expanded, against the direct formula."""

import math

import pytest
import torch

from bdl_pipe.last_layer.densities import log_densities

from .generative_cases import draws


@pytest.mark.parametrize(("offset", "apart"), [(0.0, 0.3), (1e4, 0.3), (1e4, 30.0)])
def test_float32_keeps_four_digits_under_a_common_offset(offset: float, apart: float) -> None:
    """Against the direct formula in float64 at the same rounded values; the control expands uncentred in float32."""
    mean = (offset + apart * draws(10, 640, at="far means")).float()
    features = (mean[torch.arange(64) % 10] + draws(64, 640, at="far rows")).float()
    variance = (0.5 + draws(10, 640, at="far variances").square()).float()
    x, m, v = features.double()[:, None], mean.double(), variance.double()
    expected = torch.distributions.Normal(m, v.sqrt()).log_prob(x).sum(-1)
    torch.testing.assert_close(log_densities(features, mean, variance).double(), expected, rtol=1e-6, atol=1e-3)
    quadratic = features.square() @ (1 / variance).T - 2 * features @ (mean / variance).T
    quadratic += (mean.square() / variance).sum(-1)
    plain = -0.5 * (quadratic + (variance.log() + math.log(2 * math.pi)).sum(-1))
    assert offset == 0 or not torch.allclose(plain.double(), expected, rtol=1e-4)


def test_centring_keeps_digits_that_float64_alone_would_lose() -> None:
    mean = draws(10, 64, at="far means")
    features = mean[torch.arange(20) % 10] + draws(20, 64, at="far rows")
    variance = torch.full_like(mean, 0.5)
    shifted = log_densities(features + 2.0**27, mean + 2.0**27, variance)
    torch.testing.assert_close(shifted, log_densities(features, mean, variance), rtol=1e-5, atol=1e-5)
