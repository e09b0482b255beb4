"""SGHMC and HMC against their stationary covariances on a Gaussian; Z = 5 standard errors unless said otherwise."""

import pytest
import scipy.linalg
import torch
from torch import Tensor

from bdl_pipe.errors import ConfigError
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import hamiltonian
from bdl_pipe.sgmcmc.hamiltonian import HmcConfig, SghmcConfig

Z = 5.0
PRECISIONS = torch.tensor([100.0, 30.0], dtype=torch.float64)


def energy(positions: Tensor) -> Tensor:
    return 0.5 * (positions.square() * PRECISIONS).sum(1)


def start(chains: int, variances: Tensor, at: str) -> Tensor:
    drawn = torch.randn(chains, 2, generator=Seed(0).fold(at).generator(), dtype=torch.float64)
    return variances.sqrt() * drawn


def far(sample: Tensor, variance: Tensor) -> float:
    """Standard errors from a variance, of as many independent Gaussians of mean 0: √(2/n) of it."""
    return float(((sample.square().mean(0) - variance) / variance).abs().max()) / (2 / len(sample)) ** 0.5


def test_sghmc_keeps_the_stationary_covariance_of_its_linear_recursion() -> None:
    """P = M P Mᵀ + diag(0, 2αT), by SciPy: θ's variance is 1.003 T/λ here, r's 1.055 T at λ = 100.

    Chains that start from that law stay in it; 100,000 of them, 30 steps. T/λ itself for r is told apart.
    """
    config, temperature, chains = SghmcConfig("sghmc", 0.01, 0.1), 0.01, 100_000
    covariances = []
    for precision in PRECISIONS.tolist():
        e, a = config.step_size, config.friction
        step = [[1, e], [-e * precision, 1 - a - e * e * precision]]
        covariances.append(scipy.linalg.solve_discrete_lyapunov(step, [[0, 0], [0, 2 * a * temperature]]))
    theta, speed = (torch.tensor([c[i][i] for c in covariances], dtype=torch.float64) for i in (0, 1))
    assert float(theta[0] * PRECISIONS[0] / temperature) == pytest.approx(1.0026, abs=1e-4)
    roots = torch.stack([torch.linalg.cholesky(torch.tensor(c, dtype=torch.float64)) for c in covariances])
    drawn = torch.randn(chains, 2, 2, generator=Seed(1).generator(), dtype=torch.float64)
    both = torch.einsum("wij,cwj->cwi", roots, drawn)
    run = hamiltonian.sghmc(
        lambda _: energy, both[..., 0], both[..., 1], config, temperature, first=0, steps=30, rng=Seed(2)
    )
    *_, (_, positions, velocities) = run
    assert far(positions, theta) < Z and far(velocities, speed) < Z
    assert far(velocities, torch.full_like(speed, temperature)) > 2 * Z
    loud = hamiltonian.sghmc(
        lambda _: energy, both[..., 0], both[..., 1], config, 2 * temperature, first=0, steps=30, rng=Seed(2)
    )
    *_, (_, wrong, _) = loud
    assert far(wrong, theta) > 2 * Z  # the control: noise of twice the temperature


@pytest.mark.parametrize("step_size", [0.02, 0.15])
def test_hmc_keeps_the_target_at_any_step_size(step_size: float) -> None:
    """20,000 chains from e^{−U/T} after 20 proposals, at a step where most are accepted and one where many are not."""
    temperature, chains = 0.5, 20_000
    target = temperature / PRECISIONS
    run = hamiltonian.hmc(
        energy,
        start(chains, target, "hmc"),
        HmcConfig("hmc", step_size, 5),
        temperature,
        first=0,
        steps=20,
        rng=Seed(3),
    )
    *_, (_, positions, accepted) = run
    assert far(positions, target) < Z
    assert far(positions, 1.2 * target) > 2 * Z  # the control: a law a little wider
    assert bool((accepted.double().mean() > 0.9) == (step_size == 0.02))


def test_both_go_on_from_any_step_with_the_same_bits() -> None:
    theta, speed = start(3, torch.ones(2, dtype=torch.float64), "a"), start(3, torch.ones(2, dtype=torch.float64), "b")
    config = SghmcConfig("sghmc", 0.01, 0.1)
    whole = list(hamiltonian.sghmc(lambda _: energy, theta, speed, config, 0.1, first=0, steps=6, rng=Seed(0)))
    _, at, moving = whole[2]
    rest = list(hamiltonian.sghmc(lambda _: energy, at, moving, config, 0.1, first=3, steps=6, rng=Seed(0)))
    assert torch.equal(rest[-1][1], whole[-1][1]) and torch.equal(rest[-1][2], whole[-1][2])
    proposals = list(hamiltonian.hmc(energy, theta, HmcConfig("hmc", 0.1, 3), 0.1, first=0, steps=6, rng=Seed(0)))
    rest_of_them = list(
        hamiltonian.hmc(energy, proposals[2][1], HmcConfig("hmc", 0.1, 3), 0.1, first=3, steps=6, rng=Seed(0))
    )
    assert torch.equal(rest_of_them[-1][1], proposals[-1][1])


def test_a_proposal_without_a_number_is_refused() -> None:
    theta = torch.ones(2, 2, dtype=torch.float64)
    run = hamiltonian.hmc(
        lambda x: energy(x) * torch.where(x.detach() == 1, 1.0, torch.nan)[:, 0],
        theta,
        HmcConfig("hmc", 0.1, 2),
        0.1,
        first=0,
        steps=3,
        rng=Seed(0),
    )
    *_, (_, positions, accepted) = run
    assert torch.equal(positions, theta) and not accepted.any()


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (SghmcConfig, (0.0, 0.1)),
        (SghmcConfig, (0.1, 0.0)),
        (SghmcConfig, (0.1, 1.0)),
        (HmcConfig, (0.0, 1)),
        (HmcConfig, (0.1, 0)),
    ],
)
def test_numbers_out_of_range_are_refused(config: type, values: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        config("sghmc" if config is SghmcConfig else "hmc", *values)
