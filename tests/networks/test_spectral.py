"""The spectral bound against numpy's singular values."""

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError
from bdl_pipe.networks.spectral import SpectralBound, bound_spectral_norms, remove_bounds


@pytest.mark.parametrize("shape", [(6, 4), (3, 9), (8, 3, 3, 3)])
def test_a_large_weight_is_scaled_to_the_bound_and_a_small_weight_is_unchanged(shape: tuple[int, ...]) -> None:
    weight = torch.tensor(np.random.default_rng(0).normal(0, 1, shape), dtype=torch.float32)
    sigma = np.linalg.norm(weight.numpy().reshape(shape[0], -1), 2)
    bounded = SpectralBound(0.7)(weight)
    torch.testing.assert_close(bounded, weight * float(0.7 / sigma))
    assert torch.equal(SpectralBound(1.01 * float(sigma))(weight), weight)


def by_svd(weight: torch.Tensor, bound: float) -> torch.Tensor:
    """W / max(1, σ/c), σ from the decomposition of W itself, with torch's own gradient of singular values."""
    return weight / (torch.linalg.svdvals(weight.flatten(1))[0] / bound).clamp_min(1)


def of_values(rows: int, columns: int, values: list[float]) -> torch.Tensor:
    """A matrix with these singular values, and zero for the others."""
    random = np.random.default_rng(3)
    left_vectors, _ = np.linalg.qr(random.normal(size=(rows, len(values))))
    right, _ = np.linalg.qr(random.normal(size=(columns, len(values))))
    return torch.tensor(left_vectors @ np.diag(values) @ right.T)


@pytest.mark.parametrize(("rows", "columns"), [(6, 9), (9, 6), (7, 7)])
@pytest.mark.parametrize("values", [[2.0, 0.5], [2.0], [2.0, 2.0 - 1e-9, 1e-7]], ids=["rank 2", "rank 1", "near a tie"])
def test_value_and_gradient_match_a_singular_value_decomposition(rows: int, columns: int, values: list[float]) -> None:
    weight = of_values(rows, columns, values).requires_grad_()
    slope = torch.tensor(np.random.default_rng(4).normal(size=(rows, columns)))
    ours, theirs = SpectralBound(0.7)(weight), by_svd(weight, 0.7)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    (gradient,) = torch.autograd.grad(ours, weight, slope)
    (expected,) = torch.autograd.grad(theirs, weight, slope)
    near = len(values) == 3  # there the two vectors of the largest value are only known to 1e-16/1e-9
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5 if near else 1e-12)


def test_tied_singular_values_give_the_value_and_a_valid_slope() -> None:
    """σ of an orthogonal Q is 1 along every u: its slope u vᵀ with v = Qᵀu, for the u that was found."""
    weight = of_values(5, 8, [3.0] * 5).requires_grad_()
    bounded = SpectralBound(1.0)(weight)
    torch.testing.assert_close(bounded, weight.detach() / 3, rtol=1e-12, atol=1e-14)
    (slope,) = torch.autograd.grad(bounded.sum(), weight)
    # of W/σ: 1/σ − (Σ W/σ²) ∂σ, so what is left for ∂σ must be of rank one, norm one and ⟨∂σ, W⟩ = σ
    of_sigma = (1 / 3 - slope) / (weight.detach().sum() / 9)
    values = torch.linalg.svdvals(of_sigma)
    torch.testing.assert_close(values, torch.tensor([1.0, 0, 0, 0, 0]).double(), rtol=1e-9, atol=1e-9)
    assert float((of_sigma * weight).sum().detach()) == pytest.approx(3.0, rel=1e-9)


def test_a_weight_of_zeros_is_unchanged_and_has_a_slope() -> None:
    weight = torch.zeros(3, 4, requires_grad=True)
    bounded = SpectralBound(0.7)(weight)
    assert torch.equal(bounded, torch.zeros(3, 4))
    (slope,) = torch.autograd.grad(bounded.sum(), weight)
    assert torch.equal(slope, torch.ones(3, 4))


def test_squared_singular_values_lose_no_precision_in_float32() -> None:
    """Singular values from 1 to 1e-5, whose squares fall below float32's rounding: the largest value stays exact."""
    exact = of_values(40, 60, list(np.geomspace(1, 1e-5, 40)))
    bounded = SpectralBound(0.1)(exact.float()).double()
    torch.testing.assert_close(bounded, by_svd(exact, 0.1), rtol=1e-5, atol=1e-8)
    assert float(torch.linalg.svdvals(bounded)[0]) == pytest.approx(0.1, rel=1e-6)


def test_removed_bounds_leave_the_bounded_or_the_free_weights() -> None:
    for keep in (True, False):
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        layers = [module[0], module[2]]
        free = [layer.weight.detach().clone() for layer in layers]
        bound_spectral_norms(module, 0.2)
        bounded = [layer.weight.detach().clone() for layer in layers]
        remove_bounds(module, keep_values=keep)
        assert all(map(torch.equal, (layer.weight for layer in layers), bounded if keep else free))
        assert set(module.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_only_convolutions_and_linear_layers_are_bounded() -> None:
    module = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5, 3))
    assert bound_spectral_norms(module, 0.2) == ["0", "3"]
    for layer in (module[0], module[3]):
        norm = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
        torch.testing.assert_close(norm, torch.tensor(0.2), rtol=1e-5, atol=0)
    with pytest.raises(ConfigError, match="norm_bound must be > 0, got 0"):
        bound_spectral_norms(nn.Linear(2, 2), 0.0)
