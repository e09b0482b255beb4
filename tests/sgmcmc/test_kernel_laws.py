"""Every kernel's law: on Gaussians its exact recursion and HMC's target, on other targets quadrature; HMC's burn-in."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from bdl_pipe.errors import ConfigError
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Chains, ConstantStep, Density, Hmc, Kernel, Psgld, Sghmc, Sgld, Sgnht, sample
from bdl_pipe.sgmcmc.sampling import acceptance, density_of, run
from tests.sgmcmc.gaussian import ALL, PRECISIONS, STEPS, TEMPERATURE, Z, gaussian, noisy, standard_errors


@dataclass(frozen=True)
class Linear:
    """A kernel on a Gaussian as a linear recursion z ← A z + N(0, Q), z = θ or (θ, r), of one precision."""

    kernel: Kernel
    of: Callable[[float, float, float, float], tuple[list[list[float]], list[list[float]]]]
    """(precision, step size, temperature, variance of the gradient's noise) -> A, Q."""


def langevin(p: float, eta: float, heat: float, v: float) -> tuple[list[list[float]], list[list[float]]]:
    return [[1 - eta * p / 2]], [[eta * heat + eta**2 * v / 4]]


def preconditioned(p: float, eta: float, heat: float, v: float) -> tuple[list[list[float]], list[list[float]]]:
    metric = 1 / 1.1  # at the start V is 1 everywhere: 1/(δ + 1)
    return [[1 - eta * metric * p / 2]], [[eta * heat * metric + (eta * metric) ** 2 * v / 4]]


def hamiltonian(p: float, e: float, heat: float, v: float) -> tuple[list[list[float]], list[list[float]]]:
    a = 0.1
    return [[1, e], [-e * p, 1 - a - e * e * p]], [[0, 0], [0, 2 * a * heat + e * e * v]]


LINEAR = {
    "sgld": Linear(Sgld(), langevin),
    "psgld": Linear(Psgld(), preconditioned),
    "sghmc": Linear(Sghmc(friction=0.1), hamiltonian),
}


def law(linear: Linear, step_size: float, heat: float, noise: float) -> list[np.ndarray]:
    """The exact stationary covariance for each precision, by SciPy's discrete Lyapunov equation."""
    pairs = [linear.of(p, step_size, heat, noise) for p in PRECISIONS.tolist()]
    return [scipy.linalg.solve_discrete_lyapunov(np.array(a), np.array(q)) for a, q in pairs]


@pytest.mark.parametrize("noise", [0.0, 400.0])
@pytest.mark.parametrize("name", list(LINEAR))
def test_a_step_is_the_recursion_of_the_exact_law(name: str, noise: float) -> None:
    """A by steps from unit states at temperature 0; Q by steps from zero with the normal numbers alone.

    Told apart: another temperature, gradients without their noise, and SGHMC with another friction.
    """
    addresses = Chains.of(Seed(1), 1).at(0)
    start = LINEAR[name].kernel.init(torch.zeros(1, 2, dtype=torch.float64), addresses, 0.0)
    keys = ["position", "velocity"][: 1 + ("velocity" in start)]

    def after(
        units: Tensor, heat: float = 0.0, of_gradient: float = 0.0, kernel: Kernel = LINEAR[name].kernel
    ) -> Tensor:
        """The state after a step [key, precision]."""

        def density(positions: Tensor) -> tuple[Tensor, Tensor]:
            return positions.sum(1), -positions * PRECISIONS + of_gradient

        state = start | {key: unit[None] for key, unit in zip(keys, units, strict=True)}
        moved = kernel.step(state, density, addresses, STEPS[name], heat)
        return torch.stack([moved[key][0] for key in keys])

    zero = torch.zeros(len(keys), 2, dtype=torch.float64)
    matrix = torch.stack([after(zero + unit[:, None]) for unit in torch.eye(len(keys)).double()], 1)
    for row, precision in enumerate(PRECISIONS.tolist()):
        a, q = (
            torch.tensor(p, dtype=torch.float64) for p in LINEAR[name].of(precision, STEPS[name], TEMPERATURE, noise)
        )
        torch.testing.assert_close(matrix[..., row], a, rtol=1e-12, atol=1e-12)
        normal = addresses.normal(zero[:1])[0, row]
        columns = [after(zero, heat)[:, row] / normal for heat in (TEMPERATURE, 2 * TEMPERATURE)]
        of_gradient = after(zero, of_gradient=noise**0.5)[:, row]
        injected, heated = (torch.outer(column, column) for column in columns)
        torch.testing.assert_close(injected + torch.outer(of_gradient, of_gradient), q, rtol=1e-10, atol=1e-14)
        assert not torch.allclose(heated, injected, rtol=0.5) and bool(of_gradient.any()) == (noise > 0)
    if name == "sghmc":
        assert not torch.allclose(after(zero + 1, kernel=Sghmc(friction=0.3)), after(zero + 1), rtol=0.01)


def test_the_laws_equal_the_closed_forms_of_the_docstrings() -> None:
    """SGLD: T/(P(1 − ηP/4)); SGHMC is linear in α: at a small step the law is T/P."""
    for precision, exact in zip(PRECISIONS.tolist(), law(LINEAR["sgld"], 5e-3, 2.0, 0.0), strict=True):
        assert exact[0, 0] == pytest.approx(2.0 / (precision * (1 - 5e-3 * precision / 4)), rel=1e-10)
    for precision, exact in zip(PRECISIONS.tolist(), law(LINEAR["sghmc"], 1e-4, 2.0, 0.0), strict=True):
        assert exact[0, 0] * precision / 2.0 == pytest.approx(1, abs=1e-6)
    for name in ("sgld", "sghmc"):  # the noise of gradients over the injected noise
        (_, injected), (_, both) = (LINEAR[name].of(100.0, STEPS[name], 1.0, v) for v in (0.0, 7.0))
        ratio = (both[-1][-1] - injected[-1][-1]) / injected[-1][-1]
        assert ratio == pytest.approx(7.0 * LINEAR[name].kernel.noise_ratio(STEPS[name]), rel=1e-10)


@pytest.mark.soak
def test_sgnht_removes_gradient_noise_of_unknown_variance() -> None:
    """Gradients with noise of one variance: SGNHT's law is p within 5 %, SGHMC's at its settings is 25 % too wide."""
    density_at, start = noisy(500.0, Seed(5)), torch.zeros(20_000, 2, dtype=torch.float64)
    of = {
        kernel.name: sample(density_at, start, kernel, 0.01, steps=400, burn_in=399, rng=Seed(6))[:, 0]
        for kernel in (Sghmc(friction=0.1), Sgnht(friction=0.1, thermostat=0.05))
    }
    ratio = {name: (drawn.var(0) * PRECISIONS).tolist() for name, drawn in of.items()}
    assert ratio["sgnht"] == pytest.approx([1, 1], abs=0.05)
    assert min(ratio["sghmc"]) > 1.2


def banana(positions: Tensor) -> Tensor:
    x, y = positions.unbind(1)
    return -x.square() / 2 - (y - x.square()).square() / 2


def two_modes(positions: Tensor) -> Tensor:
    x, y = positions.unbind(1)
    left_mode, right = -((x + 1.2) ** 2) / 0.5, -((x - 1.2) ** 2) / 0.5
    return torch.logaddexp(left_mode - 0.7, right) - y.square() / 2


def by_quadrature(log_density: Callable[[Tensor], Tensor], of: Callable[[Tensor], Tensor]) -> Tensor:
    """E of a function under a two-dimensional law, on a grid of 0.02."""
    axis = [torch.arange(-6, 6, 0.02, dtype=torch.float64), torch.arange(-6, 14, 0.02, dtype=torch.float64)]
    points = torch.cartesian_prod(*axis)
    weight = log_density(points).softmax(0)
    return (weight[:, None] * of(points)).sum(0)


def moments(points: Tensor) -> Tensor:
    x, y = points.unbind(1)
    return torch.stack([x, y, x.square(), (x > 0).double(), (y - 1).square().clamp(max=9)], 1)


FINE = {"sgld": (0.02, 1500), "psgld": (0.02, 1500), "sghmc": (0.06, 1200), "sgnht": (0.06, 1200), "hmc": (0.2, 150)}


# make test: the banana with the kernels that have no exact law above, and with SGHMC
TARGETS = [
    pytest.param(name, target, id=f"{target.__name__}-{name}", marks=() if quick else pytest.mark.soak)
    for target, chosen in ((banana, {"sghmc", "sgnht", "hmc"}), (two_modes, set()))
    for name, quick in ((name, name in chosen) for name in ALL)
]


@pytest.mark.parametrize(("name", "target"), TARGETS)
@pytest.mark.slow
def test_a_kernel_samples_targets_that_are_not_gaussian(name: str, target: Callable[[Tensor], Tensor]) -> None:
    """Five moments of a banana and of two unequal modes against quadrature, by 4,000 chains from a wide start.

    The allowance: Z standard errors, and for kernels with a discretised law .04 sd more; told apart: a law at T = 2.
    """
    exact, square = by_quadrature(target, moments), by_quadrature(target, lambda x: moments(x).square())
    spread = (square - exact.square()).sqrt()
    start = 1.5 * torch.randn(4_000, 2, generator=Seed(8).generator(), dtype=torch.float64)
    step_size, steps = FINE[name]
    for heat in (1.0, 2.0):
        drawn = sample(
            target, start, ALL[name], step_size, steps=steps, burn_in=steps - 1, temperature=heat, rng=Seed(9)
        )
        moments_of = moments(drawn[:, 0])
        off = (moments_of.mean(0) - exact).abs() / spread
        allowed = Z / 4_000**0.5 + (0 if name == "hmc" else 0.04)
        assert bool((off < allowed).all()) == (heat == 1.0), (heat, off, allowed)


def after_proposals(kernel: Hmc, step_size: float, density: Density) -> tuple[Tensor, float]:
    """20,000 chains that start from p^{1/T}, after 20 proposals, and the share of the proposals that was accepted."""
    start = (
        torch.randn(20_000, 2, generator=Seed(0).generator(), dtype=torch.float64) * (TEMPERATURE / PRECISIONS).sqrt()
    )
    addresses = Chains.of(Seed(3), len(start))
    state = kernel.init(start, addresses.at(0))
    sizes = ConstantStep(step_size)
    moves = run(kernel, lambda _: density, state, sizes, addresses, first=0, steps=20, temperature=TEMPERATURE)
    *_, (done, state) = moves
    return state["position"], acceptance(state, done)["acceptance"]


def test_hmc_keeps_the_target_at_small_and_large_step_sizes() -> None:
    """At a step size where most proposals are accepted and at another where many are rejected.

    Told apart: a density that rises at each call, so that all proposals are accepted.
    """
    target = TEMPERATURE / PRECISIONS
    gentle, often = after_proposals(Hmc(leapfrogs=5), 0.02, density_of(gaussian))
    rough, seldom = after_proposals(Hmc(leapfrogs=5, jitter=0.2), 0.15, density_of(gaussian))
    assert standard_errors(gentle, target) < Z and standard_errors(rough, target) < Z
    assert often > 0.9 > seldom
    calls = itertools.count()

    def rising(positions: Tensor) -> tuple[Tensor, Tensor]:  # each value is above all before it
        value, gradient = density_of(gaussian)(positions)
        return 0 * value + 1e9 * next(calls), gradient

    wrong, always = after_proposals(Hmc(leapfrogs=5), 0.15, rising)
    assert always == 1 and standard_errors(wrong, target) > 2 * Z


@pytest.mark.parametrize(("step_size", "chains", "burn_in"), [(5e-4, 500, 200), (1e39, 2_000, 300)])
def test_burn_in_finds_the_step_size_of_the_given_acceptance(step_size: float, chains: int, burn_in: int) -> None:
    """From a step that is a hundred times too small, or overflows; the law is then exact.

    From step sizes 10⁴⁰ times too large a proposal is NaN: it is rejected, and the next step sizes are smaller.
    """
    kernel, finite, addresses = Hmc(leapfrogs=5, acceptance=0.8, jitter=0.1), list[bool](), Chains.of(Seed(4), chains)
    start = torch.randn(chains, 2, generator=Seed(0).generator(), dtype=torch.float64) / PRECISIONS.sqrt()

    def density(positions: Tensor) -> tuple[Tensor, Tensor]:
        finite.append(bool(torch.isfinite(positions).all()))
        return density_of(gaussian)(positions)

    state, sizes, steps = kernel.init(start, addresses.at(0)), ConstantStep(step_size), burn_in + 50
    moves = run(kernel, lambda _: density, state, sizes, addresses, first=0, steps=steps, burn_in=burn_in)
    states = [state for _, state in moves]
    share = float((states[-1]["accepted"] - states[burn_in - 1]["accepted"]).mean()) / 50
    assert 0.7 < share < 0.97 and float(states[-1]["count"].max()) == burn_in  # burn-in alone adapts
    assert standard_errors(states[-1]["position"], 1 / PRECISIONS) < Z
    assert step_size < 1e39 or (not finite[5] and torch.equal(states[0]["position"], start))


def test_a_proposal_of_nan_density_is_rejected() -> None:
    at = torch.ones(2, 2, dtype=torch.float64)

    def broken(positions: Tensor) -> Tensor:
        return gaussian(positions) * torch.where(positions.detach() == 1, 1.0, torch.nan)[:, 0]

    drawn = sample(broken, at, Hmc(leapfrogs=2), 0.1, steps=3, rng=Seed(0))
    assert torch.equal(drawn[:, -1], at)


def test_hmc_refuses_minibatches() -> None:
    with pytest.raises(ConfigError, match="must take minibatches"):
        sample(noisy(1.0, Seed(0)), torch.ones(1, 2), Hmc(leapfrogs=1), 0.1, steps=1, rng=Seed(0))
