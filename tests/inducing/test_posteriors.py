"""q(U), q(W) and their KLs against torch.distributions; hard caps; starting values."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bdl_pipe.errors import ConfigError
from bdl_pipe.inducing import WeightConfig, bayesianize, kl
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.inducing.posteriors import Factorised, FullCovariance, Members, Triangle
from bdl_pipe.inducing.weightspace import FactorisedWeights, FullCovarianceWeights

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


@pytest.mark.parametrize("cap", [None, 0.1])
def test_the_factorised_kl_equals_torch_distributions(cap: float | None) -> None:
    q = shake(Factorised(SHAPE, 0.01, cap, generator()))
    expected = kl_divergence(Normal(q.mean, q.sd), Normal(zeros(1), 1.0)).sum()
    torch.testing.assert_close(q.kl(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("cap", [None, 0.1])
def test_the_full_covariance_kl_equals_torch_distributions(cap: float | None) -> None:
    q = shake(FullCovariance(SHAPE, 0.01, cap, generator()))
    expected = kl_divergence(
        MultivariateNormal(q.mean, scale_tril=q.covariance()), MultivariateNormal(zeros(6), torch.eye(6).double())
    )
    torch.testing.assert_close(q.kl(), expected, rtol=1e-10, atol=0)


def test_members_have_no_kl_and_a_map_estimate_has_its_negative_log_prior() -> None:
    assert Members(SHAPE, 5, 0.1, generator()).kl() == 0
    q = Factorised(SHAPE, 0.01, 0, generator())
    gap = q.kl() + Normal(0.0, 1.0).log_prob(q.mean).sum()  # a constant
    torch.testing.assert_close(gap, torch.tensor(-0.5 * 6 * math.log(2 * math.pi)))
    assert q.shapes() == {} and torch.equal(q({}, q.spread()), q.mean)


@pytest.mark.parametrize("config", [{}, {"prior_sd": 1.3}, {"prior_scale": 4.0}])
def test_the_weight_space_kl_equals_torch_distributions(config: dict) -> None:
    net = bayesianize(mlp(), kind={"0": {"kind": "ffg_w"}, "2": {"kind": "fcg_w"}}, **config)
    shaken(net).double()
    first, second = net.layers["0"], net.layers["2"]
    assert isinstance(first, FactorisedWeights) and isinstance(second, FullCovarianceWeights)
    sds = [config.get("prior_sd", config.get("prior_scale", 1.0) / math.sqrt(columns)) for columns in (4, 7)]
    expected = kl_divergence(Normal(first.mean, first.sd), Normal(zeros(1), sds[0])).sum()
    expected = expected + kl_divergence(
        MultivariateNormal(second.mean.flatten(), scale_tril=second.covariance()),
        MultivariateNormal(zeros(14), sds[1] ** 2 * torch.eye(14).double()),
    )
    torch.testing.assert_close(kl(net), expected, rtol=1e-6, atol=0)


def test_the_cap_on_standard_deviations_is_hard() -> None:
    q = Factorised(SHAPE, 0.01, 0.1, generator())
    w = FactorisedWeights(torch.ones(2, 3), WeightConfig("ffg_w", sd_max=0.1), 1.0)
    full = Triangle(4, 0.01, 0.1)
    with torch.no_grad():
        q.free_sd.fill_(50)
        w.free_sd.fill_(50)
        full.below.fill_(3)
        full.log_diagonal.fill_(2)
    assert q.sd.max() <= 0.1 and w.sd.max() <= 0.1
    torch.testing.assert_close(q.sd, torch.full(SHAPE, 0.1))
    factor = full()
    torch.testing.assert_close((factor @ factor.mT).diagonal().sqrt(), torch.full((4,), 0.1))


def test_a_full_covariance_below_its_cap_is_unchanged() -> None:
    full, free = Triangle(4, 0.01, 0.1), Triangle(4, 0.01, None)
    assert torch.equal(full(), free()) and torch.equal(full(), 0.01 * torch.eye(4))


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
    net = shaken(bayesianize(mlp(), rows=3, cols=2)).double()
    expected = zeros(1)[0]
    for (key, layer), (out, columns) in zip(net.layers.items(), [(6, 4), (2, 7)], strict=True):
        assert isinstance(layer, Inducing), key
        lam, beta = layer.rescale, 1.0 if rows is None else min(1.0, rows / columns)
        eye = torch.eye(out * columns, dtype=torch.float64)
        dense = kl_divergence(
            MultivariateNormal(zeros(len(eye)), lam**2 * eye), MultivariateNormal(zeros(len(eye)), eye)
        )
        expected = expected + beta * dense + layer.posterior.kl()
    torch.testing.assert_close(kl(net, rows), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_function_space_kl_of_a_convolution_equals_the_kl_of_its_outputs(rows: int) -> None:
    """Outputs F = W X of all places of all rows have covariances λ²A and A: KL[q ‖ p] = R(λ) rank(A) / (d_out d_in).

    The rank comes from the patches that the convolution reads, unfolded from images; a KL without places is too small.
    """
    image = torch.randn(rows, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = bayesianize(torch.nn.Conv2d(2, 3, 3), rows=3, cols=2).double()
    patches = torch.nn.functional.unfold(image, 3).movedim(1, 0).flatten(1)  # [channel x place of the filter, column]
    columns = torch.cat([patches, patches.new_ones(1, patches.shape[1])])
    covariance = torch.kron(torch.eye(3, dtype=torch.float64), columns.mT @ columns)  # with the prior N(0, I) of W
    rank, layer = int(torch.linalg.matrix_rank(covariance)), net.layers["network"]
    lam = layer.rescale
    one = kl_divergence(MultivariateNormal(zeros(1), lam**2 * torch.eye(1)), MultivariateNormal(zeros(1), torch.eye(1)))
    expected = rank * one + layer.posterior.kl()
    torch.testing.assert_close(kl(net, rows, net.positions(image[:1])), expected, rtol=1e-6, atol=0)
    assert rank == 3 * min(19, 4 * rows)
    if rank < 3 * 19:
        assert kl(net, rows) < expected - 1  # the KL without places


def test_positions_count_places_and_calls() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(1, 1, 3, padding=1), torch.nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
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
    own = members.detach().std(0).mean()  # of 5, biased by c₄(5) = .940
    assert float(own) == pytest.approx(0.094, rel=0.05) and float(members.std()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"rows": 0}, "rows"),
        ({"lambda_max": 1e-3}, "lambda_max"),
        ({"sd_max": 1e-4}, "sd_max"),
        ({"kind": "ffg_w", "sd_max": 0}, "sd_max"),
        ({"members": 0}, "members"),
        ({"prior_sd": 0}, "prior_sd"),
        ({"sd_init": 0}, "sd_init"),
        ({"spread": -1}, "spread"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} "):
        WeightConfig(**options)
