"""Matrix-normal, k-tied and rank-1 posteriors of weights against dense Gaussians in float64 and enumerated moments."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.inducing import Bayesian, bayesianize, kl, prune, stored
from bdl_pipe.seeds import Seed
from tests.inducing.cases import RIVALS, conv_net, mlp, normal, shaken

OUT, IN, SCALE = 2, 3, 0.7
DOUBLE_1 = torch.ones((), dtype=torch.float64)
DRAWS, RATE = 40_000, 1e-6  # the false-alarm rate of all moments of one posterior together


def converted(kind: str, shape: tuple[int, int] = (OUT, IN), **options: Any) -> Bayesian:
    """A layer of 2 × 3 weights whose parameters are moved at random, in float64."""
    plain = nn.Linear(shape[1], shape[0], bias=False)
    plain.weight.data = normal(*shape)
    options = {"sd_init": 0.2, "sd_max": 0.9, "prior_sd": SCALE, "factor_sd": 0.3} | options
    return shaken(bayesianize(plain, kind, **options), by=0.5).double()  # type: ignore[arg-type]


def roots(layer: nn.Module, cap: float) -> tuple[Tensor, Tensor]:
    """The factors of the deviations: each is below ``cap``."""
    return cap * torch.sigmoid(layer.free_out), cap * torch.sigmoid(layer.free_in)  # type: ignore[operator]


def factor_laws(layer: nn.Module) -> tuple[list[Normal], list[Normal]]:
    """The laws of r and s of each component."""
    means, free = (layer.out_mean, layer.in_mean), (layer.free_out, layer.free_in)
    laws = [
        [Normal(m, 0.9 * torch.sigmoid(f)) for m, f in zip(*of, strict=True)] for of in zip(means, free, strict=True)
    ]
    return laws[0], laws[1]


def dense_kl(mean: Tensor, covariance: Tensor) -> Tensor:
    """KL from N(0, SCALE² I) of the Gaussian of the concatenated rows of W."""
    prior = MultivariateNormal(torch.zeros(OUT * IN).double(), SCALE**2 * torch.eye(OUT * IN).double())
    return kl_divergence(MultivariateNormal(mean.flatten(), covariance), prior)


def kronecker(net: Bayesian) -> Tensor:
    u, v = roots(net.layers["network"], math.sqrt(0.9))
    return torch.kron(u.square().diag(), v.square().diag())


def tied(net: Bayesian, power: int = 1) -> Tensor:
    """The covariance by loops over entries and terms; with ``power`` 2 the wrong law: variances of rank k."""
    rank = net.layers["network"].free_out.shape[1]
    u, v = (root.detach() for root in roots(net.layers["network"], math.sqrt(0.9 / rank)))
    places = product(range(OUT), range(IN))
    sums = [sum(float(u[i, k] * v[j, k]) ** power for k in range(rank)) for i, j in places]
    return torch.tensor([total ** (2 / power) for total in sums], dtype=torch.float64).diag()


def test_the_matrix_normal_kl_equals_the_dense_kronecker_gaussian() -> None:
    net = converted("matrix_normal_w")
    mean, u_v = net.layers["network"].mean, kronecker(net)
    torch.testing.assert_close(kl(net), dense_kl(mean, u_v), rtol=1e-9, atol=0)
    u, v = roots(net.layers["network"], math.sqrt(0.9))
    swapped = torch.kron(v.square().diag(), u.square().diag())  # the order of concatenated columns
    torch.testing.assert_close(dense_kl(0 * mean, swapped), dense_kl(0 * mean, u_v))  # of no effect on the KL
    wrong = torch.kron(u.diag(), v.diag())  # deviations where variances belong
    assert (dense_kl(mean, wrong) - kl(net)).detach().abs() > 0.1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_k_tied_kl_equals_the_dense_gaussian(rank: int) -> None:
    net = converted("k_tied_w", rank=rank)
    mean = net.layers["network"].mean
    torch.testing.assert_close(kl(net), dense_kl(mean, tied(net)), rtol=1e-9, atol=0)
    gap = (dense_kl(mean, tied(net, power=2)) - kl(net)).detach().abs()
    assert bool(gap > 1e-3) == (rank > 1)


def test_rank_1_of_a_k_tied_posterior_is_a_matrix_normal() -> None:
    one, other = converted("k_tied_w", rank=1), converted("matrix_normal_w")
    for name in ("mean", "free_out", "free_in"):
        value = getattr(one.layers["network"], name).detach()
        getattr(other.layers["network"], name).data = value if name == "mean" else value[:, 0]
    torch.testing.assert_close(one.layers["network"].sd, other.layers["network"].sd)
    torch.testing.assert_close(kl(one), kl(other), rtol=1e-9, atol=0)


def test_the_rank_1_kl_of_one_component_equals_torch_distributions() -> None:
    net = converted("rank1_w", members=1)
    layer = net.layers["network"]
    (r,), (s,) = factor_laws(layer)
    factors = sum(kl_divergence(q, Normal(DOUBLE_1, 0.3 * DOUBLE_1)).sum() for q in (r, s))
    prior = -Normal(0.0 * DOUBLE_1, SCALE * DOUBLE_1).log_prob(layer.mean).sum() - OUT * IN * 0.5 * math.log(
        2 * math.pi * SCALE**2
    )
    torch.testing.assert_close(kl(net), factors + prior, rtol=1e-9, atol=0)
    around_0 = sum(kl_divergence(q, Normal(0.0, 0.3)).sum().detach() for q in (r, s))
    assert (around_0 + prior - kl(net)).detach().abs() > 1


@pytest.mark.parametrize("alike", [False, True])
def test_the_rank_1_kl_of_a_mixture_bounds_its_quadrature(alike: bool) -> None:
    """The gap is the information that r and s give on the component: at most log K, and 0 for equal components."""
    net = converted("rank1_w", shape=(1, 1), members=2, spread=0.5)
    layer = net.layers["network"]
    layer.mean.data.zero_()
    if alike:
        for parameter in (layer.out_mean, layer.in_mean, layer.free_out, layer.free_in):
            parameter.data[1] = parameter.data[0]
    grid, prior, joint = torch.linspace(-4, 6, 1001).double(), Normal(1.0, 0.3), []
    for r, s in zip(*factor_laws(layer), strict=True):
        joint.append(r.log_prob(grid)[:, None] + s.log_prob(grid))
    log_q = torch.stack(joint).logsumexp(0) - math.log(2)
    log_p = prior.log_prob(grid)[:, None] + prior.log_prob(grid)
    exact = float((log_q.exp() * (log_q - log_p)).sum().detach() * 0.01**2)
    gap = float(kl(net).detach()) - exact
    assert abs(gap) < 1e-6 if alike else 0.01 < gap <= math.log(2)
    assert 2 * float(kl(net).detach()) - exact > math.log(2)  # wrong: the sum over the components


def factor_moments(layer: nn.Module, wrong: bool) -> tuple[Tensor, Tensor]:
    """The moments of W̄ ∘ r sᵀ, component by component; the wrong law has factors of its own for each weight."""
    weights, places = layer.mean.detach(), list(product(range(OUT), range(IN)))
    components = list(zip(*factor_laws(layer), strict=True))
    mean, second = torch.zeros(OUT * IN).double(), torch.zeros(OUT * IN, OUT * IN).double()
    for r, s in components:
        mean += (weights * torch.outer(r.mean, s.mean)).flatten().detach()
        for (a, (i, j)), (b, (k, m)) in product(enumerate(places), repeat=2):
            shared = a == b or not wrong
            of_outputs = r.mean[i] * r.mean[k] + (i == k and shared) * r.variance[i]
            of_inputs = s.mean[j] * s.mean[m] + (j == m and shared) * s.variance[j]
            second[a, b] += (weights[i, j] * weights[k, m] * of_outputs * of_inputs).detach()
    return mean / len(components), second / len(components)


def moments(net: Bayesian, wrong: bool) -> tuple[Tensor, Tensor]:
    """E[vec W] and E[vec W vec Wᵀ] by enumeration; ``wrong``: of another law with the same parameters."""
    layer = net.layers["network"]
    if hasattr(layer, "out_mean"):
        return factor_moments(layer, wrong)
    mean = layer.mean.flatten().detach()
    if layer.free_out.ndim == 1:
        u, v = roots(layer, math.sqrt(0.9))
        covariance = torch.kron(v.square().diag(), u.square().diag()) if wrong else kronecker(net)
    else:
        covariance = tied(net, power=2 if wrong else 1)
    return mean, torch.outer(mean, mean) + covariance.detach()


@pytest.mark.parametrize("kind", RIVALS)
def test_sampled_weights_have_the_enumerated_moments(kind: str) -> None:
    """z-tests of 6 means and 21 second moments, at a false-alarm rate of 1e-6 for all; a wrong law is rejected."""
    net = converted(kind, members=3)
    layer, noise = net.layers["network"], net.draw(DRAWS, Seed(5).generator())
    inside = {name.removeprefix("network:"): value for name, value in noise.items()}
    factors = layer.factors()
    w = torch.func.vmap(lambda n: layer(n, factors))(inside).flatten(1).detach()
    rows, columns = np.triu_indices(OUT * IN)
    sampled = torch.cat([w, w[:, rows] * w[:, columns]], 1)
    limit = stats.norm.isf(RATE / 2 / sampled.shape[1])
    for wrong in (False, True):
        mean, second = moments(net, wrong)
        z = (sampled.mean(0) - torch.cat([mean, second[rows, columns]])) / sampled.std(0) * math.sqrt(DRAWS)
        assert (z.abs().max() > limit) == wrong, float(z.abs().max())
    torch.testing.assert_close(layer.centre().flatten().detach(), moments(net, False)[0])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_stored_numbers_are_the_formulas_of_table_1(k: int) -> None:
    """d_in counts the bias as an input; batch normalisation keeps 8 numbers."""
    layers, norm = ((4, 28), (4, 18), (3, 5)), 8
    counts = {kind: stored(bayesianize(conv_net(), kind, rank=k, members=k)) - norm for kind in RIVALS}
    assert counts == {
        "matrix_normal_w": sum(out * columns + out + columns for out, columns in layers),
        "k_tied_w": sum(out * columns + k * (out + columns) for out, columns in layers),
        "rank1_w": sum(out * columns + 2 * k * (out + columns) for out, columns in layers),
    }


@pytest.mark.parametrize("kind", ["matrix_normal_w", "k_tied_w"])
def test_the_deviations_start_at_sd_init_and_stay_below_their_cap(kind: str) -> None:
    layer = bayesianize(nn.Linear(30, 20), kind, sd_init=0.01, sd_max=0.1, rank=3).layers["network"]
    spread = 0.2 if kind == "k_tied_w" else 1e-6  # the factors differ at random
    torch.testing.assert_close(layer.sd.log().mean().exp(), torch.tensor(0.01), rtol=spread, atol=0)
    for parameter in (layer.free_out, layer.free_in):
        parameter.data.fill_(50)
    assert layer.sd.max() <= 0.1 * (1 + 1e-6)
    torch.testing.assert_close(layer.sd, torch.full((20, 31), 0.1))


def test_the_terms_of_a_k_tied_posterior_are_different_from_the_start() -> None:
    """Equal terms would have equal gradients, and the deviations would keep rank 1."""
    net = bayesianize(nn.Linear(30, 20), "k_tied_w", sd_init=0.05, rank=2)
    layer = net.layers["network"]
    kl(net).backward()
    assert torch.linalg.matrix_rank(layer.sd.detach().double(), rtol=1e-5) == 2
    assert not torch.allclose(layer.free_out.grad[:, 0], layer.free_out.grad[:, 1], rtol=1e-3)


def test_the_rivals_refuse_what_they_cannot_do() -> None:
    for kind in RIVALS:
        with pytest.raises(UserError, match="none of the network's layers can be pruned"):
            prune(bayesianize(mlp(), kind), 0.5)
    with pytest.raises(ConfigError, match="members must be the same for all layers"):
        bayesianize(mlp(), {"0": {"kind": "rank1_w", "members": 2}, "2": {"kind": "ensemble_u", "members": 3}})
