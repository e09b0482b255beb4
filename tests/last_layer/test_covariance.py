"""Each form of S against the dense matrix written out from its parameters, and torch's Gaussians."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.last_layer.layer import gaussian_kl
from bdl_pipe.networks import covariance as module
from bdl_pipe.networks.covariance import Covariance

from .cases import FORMS, draw, perturbed

COUNT, WIDTH = 3, 7


def make(kind: str, rank: int | None, count: int = COUNT, variance: float = 0.4) -> Covariance:
    return Covariance(
        kind, count, WIDTH, rank=rank, initial_variance=variance, generator=torch.Generator().manual_seed(0)
    )


def written_out(layer: Covariance) -> Tensor:
    """S [count, h, h] from the parameters by the definitions of the module's docstring."""
    variances = torch.stack([torch.diag((2 * row).exp()) for row in layer.log_scale])
    if layer.kind == "diagonal":
        return variances
    assert layer.factor is not None
    if layer.kind == "lowrank":
        return torch.einsum("khr,kgr->khg", layer.factor, layer.factor) + variances
    lower = torch.tril(layer.factor.mT, -1) + torch.stack([torch.diag(row.exp()) for row in layer.log_scale])
    return lower @ lower.mT


@pytest.fixture(params=[1, 3, 160], ids=lambda rows: f"blocks-of-{rows}")
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("kind", "rank"), FORMS)
def test_matrix_and_quadratic_form_equal_dense_algebra(kind: str, rank: int | None) -> None:
    layer = perturbed(make(kind, rank))
    form, dense, features = layer(), written_out(layer), draw(1, 11, WIDTH)
    torch.testing.assert_close(form.matrix(), dense, rtol=1e-12, atol=1e-12)
    quadratic = torch.einsum("bi,kij,bj->bk", features, dense, features)
    torch.testing.assert_close(form.quadratic(features), quadratic, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("kind", "rank"), FORMS)
@pytest.mark.parametrize(("count", "copies", "s"), [(COUNT, 1, 0.7), (1, 4, 1.9)], ids=["own", "shared"])
def test_the_kl_equals_torch_distributions(kind: str, rank: int | None, count: int, copies: int, s: float) -> None:
    """Each row of the mean has a covariance matrix of its own, or all rows share one."""
    layer, mean = perturbed(make(kind, rank, count=count)), draw(2, count * copies, WIDTH)
    prior = MultivariateNormal(torch.zeros(WIDTH).double(), s * torch.eye(WIDTH).double())
    oracle = kl_divergence(MultivariateNormal(mean, written_out(layer).expand(len(mean), -1, -1)), prior).sum()
    torch.testing.assert_close(gaussian_kl(mean, layer(), s, copies=copies), oracle, rtol=1e-10, atol=0)


def test_factor_entries_on_and_below_the_diagonal_are_ignored() -> None:
    layer = perturbed(make("dense", None))
    features = draw(1, 4, WIDTH)
    before = layer().quadratic(features), layer().divergence(1.0)
    assert layer.factor is not None
    with torch.no_grad():
        layer.factor += 9 * torch.ones_like(layer.factor).tril()
    torch.testing.assert_close((layer().quadratic(features), layer().divergence(1.0)), before, rtol=0, atol=0)
    sum(before).sum().backward()
    assert layer.factor.grad is None or not layer.factor.grad.tril().any()


@pytest.mark.parametrize(("kind", "rank"), [("dense", None), ("diagonal", None)])
def test_dense_and_diagonal_forms_start_at_the_initial_variance(kind: str, rank: int | None) -> None:
    torch.testing.assert_close(make(kind, rank)().matrix(), 0.4 * torch.eye(WIDTH).expand(COUNT, -1, -1))


def test_the_low_rank_form_starts_at_the_initial_variance_on_average() -> None:
    """The mean of 4,200 entries v/2 + F₁² + F₂², F ~ N(0, v/4): 4 deviations, false alarm 6e-5."""
    matrix = Covariance(
        "lowrank", 600, WIDTH, rank=2, initial_variance=0.4, generator=torch.Generator().manual_seed(3)
    )().matrix()
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    deviation = (2 * 2 * (0.4 / 4) ** 2 / diagonal.numel()) ** 0.5
    assert abs(diagonal.mean().item() - 0.4) < 4 * deviation
    assert abs(0.5 * 0.4 + diagonal.mean().item() - 0.4) > 4 * deviation  # F of twice the variance is detected


def test_the_excess_and_its_first_two_derivatives_are_correct() -> None:
    point = draw(3, 2, 4).requires_grad_()
    plain = torch.expm1(2 * point) - 2 * point
    torch.testing.assert_close(module._excess(point, 1.0), plain.sum(), rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(lambda x: module._excess(x, 0.7), (point,))
    assert torch.autograd.gradgradcheck(lambda x: module._excess(x, 0.7), (point,))
    stacked = torch.func.vmap(torch.func.grad(lambda x: module._excess(x, 0.7)))(point.detach())
    torch.testing.assert_close(stacked, 2 * torch.expm1(2 * point.detach() - math.log(0.7)), rtol=1e-12, atol=0)
