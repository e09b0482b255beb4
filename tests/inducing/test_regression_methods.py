"""The 1-D regression through the library: the prior that a method has, the bound, and a short fit of each."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdl_pipe.inducing import Bayesian
from bdl_pipe.inducing.config import Kind
from bdl_pipe.seeds import Seed
from benchmarks import inducing_methods as methods
from benchmarks import inducing_regression as regression
from benchmarks.references import inducing_slice

GRID = np.linspace(-2, 2, 5)
GAUSSIAN: tuple[Kind, ...] = ("ffg_w", "fcg_w", "ffg_u", "fcg_u")


def at_prior(kind: Kind, scale: float = regression.PRIOR_SCALE) -> Bayesian:
    """The network at q(W) = p(W): means 0, deviations equal to the prior's, λ = 1."""
    net = methods.bayesian(kind, Seed(0), scale)
    ends = {"mean": 0.0, "below": 0.0, "free_lambda": 0.0, "free_sd": 0.0, "log_diagonal": 0.0}
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            end = ends.get(name.rsplit(".")[-1])
            sd = scale / math.sqrt(regression.HIDDEN) if "head" in name else scale
            if end is not None:
                own = kind.endswith("_w") and ("free_sd" in name or "log_diagonal" in name)
                parameter.fill_(math.log(sd) if own else end)
    return net


def functions(net: Bayesian, count: int) -> np.ndarray:
    return methods.functions(net, Seed(5), count)(torch.from_numpy(GRID)).double().numpy()


@pytest.fixture(scope="module")
def problem() -> tuple[regression.Reference, Tensor, Tensor]:
    """The stored reference on every eighth point of the grid."""
    stored = regression.read_reference()
    rough = regression.Reference(stored.x, stored.y, stored.grid[::8], stored.draws[:, ::8], {})
    return rough, torch.from_numpy(stored.x), torch.from_numpy(stored.y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GAUSSIAN)
def test_a_method_at_its_prior_has_the_functions_of_the_reference_prior(kind: Kind) -> None:
    """At q = p the KL is 0, and W₁ to the reference's prior is as small as between two samples of that prior.

    At each x the deviation is 3 to 4, so W₁ between 3,000 and 20,000 functions is about 0.07; inputs move together, and
    the chance of 0.25, four standard errors of the mean, is below 1e-4 (seed fixed). With 1.5 times the prior's scale,
    W₁ is 0.9.
    """
    weights = regression.prior_sd() * Seed(9).numpy().standard_normal((20_000, regression.WEIGHTS))
    prior, net = regression.functions(weights, GRID), at_prior(kind)
    assert float(net.kl().detach()) == pytest.approx(0, abs=1e-3)
    assert regression.distances(GRID, prior, functions(net, 3000))["all"] < 0.25
    wrong = at_prior(kind, 1.5 * regression.PRIOR_SCALE)
    assert regression.distances(GRID, prior, functions(wrong, 3000))["all"] > 0.5


def test_the_bound_over_all_data_equals_torch_distributions(
    problem: tuple[regression.Reference, Tensor, Tensor],
) -> None:
    """For two draws: the network of each draw, with torch.distributions."""
    _, x, y = problem
    net = methods.bayesian("ffg_u", Seed(0)).double()
    noise = net.draw(2, Seed(1).generator())
    fits = []
    for k in range(2):
        found = net(x[:, None], {name: v[k] for name, v in noise.items()})[:, 0]
        fits.append(MultivariateNormal(found, 0.01 * torch.eye(len(x), dtype=x.dtype)).log_prob(y))
    expected = (net.kl() - torch.stack(fits).mean()) / len(x)
    torch.testing.assert_close(methods.Bound(net)(x, y, noise), expected)


SOON = [*(kind for kind in GAUSSIAN if kind != "fcg_w"), "ensemble_u"]  # fcg_w needs thousands of updates


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOON)
def test_a_short_fit_is_nearer_to_the_reference_than_the_prior(
    kind: Kind, problem: tuple[regression.Reference, Tensor, Tensor]
) -> None:
    """At the data, its distance is below a fifth of the prior's distance; its mirror image is farther.

    300 updates at a rate of 0.01 in place of 20,000 at 0.001, seed fixed. The prior is symmetric about 0, so the mirror
    image is a fit to −y.
    """
    reference, x, y = problem
    (prior,) = regression.predict(reference, regression.prior, [Seed(0)])
    far = regression.distances(reference.grid, reference.draws, prior)["data"]
    (net,) = methods.fit(kind, x, y, [Seed(0)], steps=300, rate=0.01, draws=8)
    draws = methods.functions(net, Seed(5), 200)(torch.from_numpy(reference.grid)).double().numpy()
    found, mirrored = (regression.distances(reference.grid, reference.draws, d)["data"] for d in (draws, -draws))
    assert found < 0.2 * far < mirrored


def test_an_ensemble_of_points_fits_the_data_with_distinct_members(
    problem: tuple[regression.Reference, Tensor, Tensor],
) -> None:
    reference, x, y = problem
    (nets,) = methods.fit_points(x, y, [Seed(0)], steps=300, rate=0.01)
    draws = methods.of_points(nets)(torch.from_numpy(reference.grid)).detach().double().numpy()
    assert draws.shape == (methods.MEMBERS, len(reference.grid))
    found = regression.distances(reference.grid, reference.draws, draws)
    assert found["data"] < 0.15 and len(np.unique(draws[:, 0])) == methods.MEMBERS


def test_the_log_evidence_equals_a_gaussian_density(problem: tuple[regression.Reference, Tensor, Tensor]) -> None:
    """log N(y | 0, s²ΦΦᵀ + 0.01 I) by torch.distributions, with the reference's functions for Φ."""
    _, x, y = problem
    first = torch.randn(3, 100, dtype=torch.float64, generator=Seed(2).generator())
    found = inducing_slice.conditional(first, x, y)
    for w, evidence in zip(first, found.log_evidence, strict=True):
        units = [_one_output(w, u, x) for u in range(51)]
        phi = torch.stack(units, 1)
        covariance = 16 / 50 * phi @ phi.T + 0.01 * torch.eye(len(x), dtype=x.dtype)
        expected = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
        assert float(evidence) == pytest.approx(float(expected), rel=1e-8)


def _one_output(whitened: Tensor, unit: int, x: Tensor) -> Tensor:
    """f with one output weight 1 and the others 0, of the problem's own network."""
    flat = torch.cat([4 * whitened, torch.eye(51, dtype=x.dtype)[unit]])
    return torch.from_numpy(regression.functions(flat[None].numpy(), x.numpy())[0])


def test_slice_steps_sample_a_gaussian_posterior() -> None:
    """N(0, 1) times N(1 | w, 1/3): mean 3/4 and variance 1/4, of 400 chains after 40 steps, within 5 standard errors.

    A chain is independent of the others, so the errors are as for 400 draws; without the likelihood the mean is 0.
    """

    def run(weight: float) -> Tensor:
        generator, state = Seed(0).generator(), torch.zeros(400, 2, dtype=torch.float64)

        def density(w: Tensor) -> Tensor:
            return -1.5 * weight * (w - 1).square().sum(-1)

        value = density(state)
        for _ in range(40):
            state, value = inducing_slice.slice_step(density, state, value, generator)
        return state

    found = run(1.0)
    assert ((found.mean(0) - 0.75).abs() < 5 * 0.5 / 20).all()
    assert ((found.var(0) / 0.25 - 1).abs() < 5 * math.sqrt(2 / 400)).all()
    assert (run(0.0).mean(0).abs() < 5 / 20).all()
