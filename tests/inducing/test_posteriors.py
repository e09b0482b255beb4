"""q(U), q(W) and their KLs against torch.distributions; hard caps; starting values."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bdl_pipe.inducing import WeightConfig, bayesianize, kl
from bdl_pipe.inducing.posteriors import Factorised, FullCovariance, Members, Triangle
from bdl_pipe.inducing.weightspace import FactorisedWeights

from .cases import mlp, normal, shaken

SHAPE = (3, 2)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def shake(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter += 0.5 * normal(*parameter.shape, seed=i)
    return module.double()


def zeros(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64)


def normal_of(size: int, sd: Tensor | float = 1.0) -> MultivariateNormal:
    """N(0, sd² I)."""
    return MultivariateNormal(zeros(size), sd**2 * torch.eye(size).double())


@pytest.mark.parametrize("cap", [None, 0.1])
def test_the_kl_equals_torch_distributions(cap: float | None) -> None:
    q = shake(Factorised(SHAPE, 0.01, cap, generator()))
    expected = kl_divergence(Normal(q.mean, q.sd), Normal(zeros(1), 1.0)).sum()
    torch.testing.assert_close(q.kl(), expected, rtol=1e-12, atol=0)
    full = shake(FullCovariance(SHAPE, 0.01, cap, generator()))
    law = MultivariateNormal(full.mean, scale_tril=full.covariance())
    torch.testing.assert_close(full.kl(), kl_divergence(law, normal_of(6)), rtol=1e-10, atol=0)


def test_members_have_no_kl_and_a_map_estimate_has_its_negative_log_prior() -> None:
    assert Members(SHAPE, 5, 0.1, generator()).kl() == 0
    q = Factorised(SHAPE, 0.01, 0, generator())
    gap = q.kl() + Normal(0.0, 1.0).log_prob(q.mean).sum()  # a constant
    torch.testing.assert_close(gap, torch.tensor(-0.5 * 6 * math.log(2 * math.pi)))
    assert q.shapes() == {} and torch.equal(q({}, q.spread()), q.mean)


@pytest.mark.parametrize("config", [{}, {"prior_sd": 1.3}, {"prior_scale": 4.0}])
def test_the_weight_space_kl_equals_torch_distributions(config: dict) -> None:
    net = shaken(bayesianize(mlp(), kind={"0": {"kind": "ffg_w"}, "2": {"kind": "fcg_w"}}, **config)).double()
    first, second = net.layers["0"], net.layers["2"]
    sds = [config.get("prior_sd", config.get("prior_scale", 1.0) / math.sqrt(columns)) for columns in (4, 7)]
    expected = kl_divergence(Normal(first.mean, first.sd), Normal(zeros(1), sds[0])).sum()
    law = MultivariateNormal(second.mean.flatten(), scale_tril=second.covariance())
    torch.testing.assert_close(kl(net), expected + kl_divergence(law, normal_of(14, sds[1])), rtol=1e-6, atol=0)


def test_the_cap_on_standard_deviations_is_hard() -> None:
    """A full covariance below its cap is unchanged."""
    q, full, free = Factorised(SHAPE, 0.01, 0.1, generator()), Triangle(4, 0.01, 0.1), Triangle(4, 0.01, None)
    w = FactorisedWeights(torch.ones(2, 3), WeightConfig("ffg_w", sd_max=0.1), 1.0)
    assert torch.equal(full(), free()) and torch.equal(full(), 0.01 * torch.eye(4))
    with torch.no_grad():
        for parameter, value in ((q.free_sd, 50), (w.free_sd, 50), (full.below, 3), (full.log_diagonal, 2)):
            parameter.fill_(value)
    assert q.sd.max() <= 0.1 and w.sd.max() <= 0.1
    torch.testing.assert_close(q.sd, torch.full(SHAPE, 0.1))
    torch.testing.assert_close((full() @ full().mT).diagonal().sqrt(), torch.full((4,), 0.1))


def test_full_covariance_draws_have_the_covariance_of_their_factor() -> None:
    """As a linear map of the noise: JJᵀ = LLᵀ."""
    q = shake(FullCovariance(SHAPE, 0.1, None, generator()))
    jacobian = torch.func.jacrev(lambda e: q({"inducing": e}, q.spread()).flatten())(zeros(6))
    factor = q.covariance()
    assert factor.tril(-1).detach().abs().max() > 0
    torch.testing.assert_close(jacobian @ jacobian.mT, factor @ factor.mT)
    torch.testing.assert_close(q({"inducing": zeros(6)}, q.spread()), q.centre())


@pytest.mark.parametrize("rows", [None, 2, 100])
def test_the_kl_of_a_layer_is_the_conditional_kl_plus_the_kl_of_u(rows: int | None) -> None:
    """β = min(1, N/d_in), d_in with the bias."""
    net, expected = shaken(bayesianize(mlp(), rows=3, cols=2)).double(), zeros(1)[0]
    for layer, (out, columns) in zip(net.layers.values(), [(6, 4), (2, 7)], strict=True):
        dense = kl_divergence(normal_of(out * columns, layer.rescale), normal_of(out * columns))
        beta = 1.0 if rows is None else min(1.0, rows / columns)
        expected = expected + beta * dense + layer.posterior.kl()
    torch.testing.assert_close(kl(net, rows), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_function_space_kl_of_a_convolution_equals_the_kl_of_its_outputs(rows: int) -> None:
    """Outputs F = W X of all places of all rows have covariances λ²A and A: KL[q ‖ p] = R(λ) rank(A) / (d_out d_in).

    The rank comes from the patches that the convolution reads, unfolded from images; a KL without places is too small.
    """
    image, net = normal(rows, 2, 4, 4).double(), bayesianize(nn.Conv2d(2, 3, 3), rows=3, cols=2).double()
    patches = nn.functional.unfold(image, 3).movedim(1, 0).flatten(1)  # [channel x place of the filter, column]
    columns = torch.cat([patches, patches.new_ones(1, patches.shape[1])])
    covariance = torch.kron(torch.eye(3, dtype=torch.float64), columns.mT @ columns)  # with the prior N(0, I) of W
    rank, layer = int(torch.linalg.matrix_rank(covariance)), net.layers["network"]
    expected = rank * kl_divergence(normal_of(1, layer.rescale), normal_of(1)) + layer.posterior.kl()
    torch.testing.assert_close(kl(net, rows, net.positions(image[:1])), expected, rtol=1e-6, atol=0)
    assert rank == 3 * min(19, 4 * rows)
    if rank < 3 * 19:
        assert kl(net, rows) < expected - 1  # the KL without places


def test_positions_count_places_and_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(self.conv(x)).flatten(1))

    assert bayesianize(Twice(), rows=1, cols=1).positions(torch.zeros(1, 1, 4, 4)) == {"conv": 32, "head": 1}


def test_lambda_has_a_hard_cap_and_gradients_up_to_it() -> None:
    layer = bayesianize(mlp(), lambda_max=0.03).layers["0"]
    torch.testing.assert_close(layer.rescale.detach(), torch.tensor(1e-3))
    with torch.no_grad():
        layer.free_lambda.fill_(5.0)
    layer.kl(None).backward()
    assert 0.029 < float(layer.rescale.detach()) <= 0.03 and float(layer.free_lambda.grad) < 0  # a step would go up
    with torch.no_grad():
        layer.free_lambda.fill_(100.0)
    assert float(layer.rescale) <= 0.03


def test_starting_values_match_the_paper() -> None:
    """Means and deviations of many N(0, s²) numbers: false-alarm rate 1e-3, seeded; twice the variance fails."""
    net = bayesianize(nn.Linear(200, 150), rows=16, cols=32)
    layer = net.layers["network"]

    def p_value(values: Tensor, variance: float) -> float:
        n, total = values.numel(), float((values.double() ** 2).sum()) / variance
        both = (stats.chi2.cdf(total, n), stats.chi2.sf(total, n))
        return 4 * min(*both, stats.norm.sf(abs(float(values.double().mean())) * math.sqrt(n / variance)))

    for values, variance in ((layer.z_out, 1 / 16), (layer.z_in, 1 / 32), (layer.posterior.mean, 1.0)):
        assert p_value(values, variance) > 1e-3 > p_value(values, 2 * variance)
    torch.testing.assert_close(layer.posterior.sd.detach() ** 2, torch.full((16, 32), 1e-3))  # J.2 prints variances
    torch.testing.assert_close(layer.log_d_out.exp().detach(), torch.full((16,), 1e-3))
    assert layer.scale == pytest.approx(1 / math.sqrt(201))
    members = bayesianize(nn.Linear(200, 150), "ensemble_u", rows=16, cols=32).layers["network"].posterior.members
    spread = members.detach().std(0).mean()  # of 5, biased by c₄(5) = .940
    assert float(spread) == pytest.approx(0.094, rel=0.05) and float(members.std()) == pytest.approx(1, rel=0.1)
