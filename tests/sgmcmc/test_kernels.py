"""Every kernel's law: on Gaussians its exact discretised covariance, on other targets quadrature; and what is the same
for all: addresses, resuming, temperature. Z = 5 standard errors: a false alarm in 1.7 million comparisons."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.plugins import PluginError
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import (
    Chains,
    ConstantStep,
    CyclicalSteps,
    Density,
    Hmc,
    Kernel,
    Noisy,
    PolynomialDecay,
    Psgld,
    Sghmc,
    Sgld,
    Sgnht,
    minibatch_density,
    register_kernel,
    sample,
)
from bdl_pipe.sgmcmc.kernel import ChainState
from bdl_pipe.sgmcmc.kernels import KERNELS
from bdl_pipe.sgmcmc.sampler import SamplerConfig
from bdl_pipe.sgmcmc.sampling import acceptance, density_of, kept_steps, run
from bdl_pipe.sgmcmc.schedules import ScaledSteps, Thinning

Z = 5.0
PRECISIONS = torch.tensor([100.0, 30.0], dtype=torch.float64)
TEMPERATURE = 0.5
ALL = {
    kernel.name: kernel for kernel in (Sgld(), Psgld(), Sghmc(), Sgnht(friction=0.2, thermostat=1e-3), Hmc(leapfrogs=5))
}
STEPS = {"sgld": 5e-3, "psgld": 5e-3, "sghmc": 0.02, "sgnht": 0.01, "hmc": 0.1}
every_kernel = pytest.mark.parametrize("name", list(ALL))


def gaussian(positions: Tensor) -> Tensor:
    return -0.5 * (positions.square() * PRECISIONS).sum(1)


def noisy(variance: float, rng: Seed) -> Noisy:
    """The Gaussian's density, with independent noise of this variance on each gradient."""
    exact = density_of(gaussian)

    def at(step: int) -> Density:
        def density(positions: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = exact(positions)
            noise = torch.randn(gradient.shape, generator=rng.fold(step).generator(), dtype=gradient.dtype)
            return value, gradient + variance**0.5 * noise

        return density

    return Noisy(at)


def standard_errors(sample_: Tensor, variance: Tensor) -> float:
    """How far a sample's variances are from a variance, of independent Gaussians of mean 0: √(2/n) of it."""
    return float(((sample_.square().mean(0) - variance) / variance).abs().max()) / (2 / len(sample_)) ** 0.5


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
def test_a_kernel_keeps_its_exact_law_on_a_gaussian(name: str, noise: float) -> None:
    """Chains that start from the discretised law stay in it, with noisy gradients, too; 50,000 of them, 30 steps.

    Told apart: noise of another temperature, the law without the gradients' noise, and of SGHMC another friction.
    """
    linear, chains = LINEAR[name], 50_000
    exact = law(linear, STEPS[name], TEMPERATURE, noise)
    roots = torch.stack([torch.linalg.cholesky(torch.tensor(c)) for c in exact])
    drawn = torch.randn(chains, 2, roots.shape[-1], generator=Seed(1).generator(), dtype=torch.float64)
    start = torch.einsum("wij,cwj->cwi", roots, drawn)

    def after(kernel: Kernel, heat: float = TEMPERATURE) -> Tensor:
        addresses = Chains.of(Seed(2), chains)
        state = {**kernel.init(start[..., 0], addresses.at(0)), "position": start[..., 0]}
        if start.shape[-1] == 2:
            state["velocity"] = start[..., 1]
        schedule = ConstantStep(STEPS[name])
        moves = run(kernel, noisy(noise, Seed(3)).at, state, schedule, addresses, first=0, steps=30, temperature=heat)
        *_, (_, last) = moves
        return last["position"]

    variance = torch.tensor([c[0][0] for c in exact])
    assert standard_errors(after(linear.kernel), variance) < Z
    assert standard_errors(after(linear.kernel, 2 * TEMPERATURE), variance) > 2 * Z
    if noise:
        without = torch.tensor([c[0][0] for c in law(linear, STEPS[name], TEMPERATURE, 0.0)])
        assert standard_errors(after(linear.kernel), without) > 2 * Z
    if name == "sghmc":
        assert standard_errors(after(Sghmc(friction=0.3)), variance) > (2 * Z if noise else 0)


def test_the_laws_are_those_of_the_docstrings() -> None:
    """SGLD: T/(P(1 − ηP/4)); SGHMC is linear in α: at a small step the law is T/P."""
    for precision, exact in zip(PRECISIONS.tolist(), law(LINEAR["sgld"], 5e-3, 2.0, 0.0), strict=True):
        assert exact[0, 0] == pytest.approx(2.0 / (precision * (1 - 5e-3 * precision / 4)), rel=1e-10)
    for precision, exact in zip(PRECISIONS.tolist(), law(LINEAR["sghmc"], 1e-4, 2.0, 0.0), strict=True):
        assert exact[0, 0] * precision / 2.0 == pytest.approx(1, abs=1e-6)
    for name in ("sgld", "sghmc"):  # the noise of gradients over the injected noise
        (_, injected), (_, both) = (LINEAR[name].of(100.0, STEPS[name], 1.0, v) for v in (0.0, 7.0))
        ratio = (both[-1][-1] - injected[-1][-1]) / injected[-1][-1]
        assert ratio == pytest.approx(7.0 * LINEAR[name].kernel.noise_ratio(STEPS[name]), rel=1e-10)


def test_minibatches_of_epochs_leave_their_exact_law() -> None:
    """SGLD on rows ½(x − c_i)², whose minibatches are drawn without replacement in each epoch.

    A minibatch's gradient is off by N(c̄_B − c̄), which sums to 0 over an epoch: the covariance of two of m batches
    is −1/(m − 1) of the variance. The variance over chains and minibatches follows; told apart: independent
    minibatches, and a lost N/M.
    """
    rows, size, eta, repeats, chains, steps = 12, 3, 0.08, 300, 30, 8
    centres = torch.randn(rows, generator=Seed(5).generator(), dtype=torch.float64)
    m, keep = rows // size, 1 - eta * rows / 2
    batch_variance = float(centres.var()) / size * (1 - size / rows)  # of a mean of 3 of 12, without replacement
    own = (eta / 2 * rows) ** 2 * batch_variance
    powers = np.array([keep ** (m - 1 - i) for i in range(m)])
    alone, crossed = (powers**2).sum(), powers.sum() ** 2 - (powers**2).sum()
    exact = (own * (alone - crossed / (m - 1)) + eta * alone) / (1 - keep ** (2 * m))
    independent = (own + eta) / (1 - keep**2)
    found, lost = [], []
    for repeat in range(repeats):
        density_at = minibatch_density(
            lambda x: 0 * x[:, 0],
            lambda x, c: -0.5 * (x - c).square().sum(1),
            (centres,),
            size,
            Seed(6).fold(repeat),
        )
        start = centres.mean() + torch.zeros(chains, 1, dtype=torch.float64)
        drawn = sample(density_at, start, Sgld(), eta, steps=steps, burn_in=steps - 1, rng=Seed(7).fold(repeat))
        found.append(drawn[:, 0, 0] - centres.mean())
        without = minibatch_density(
            lambda x: 0 * x[:, 0],
            lambda x, c: -0.5 * (x - c).square().sum(1) * size / rows,
            (centres,),
            size,
            Seed(6).fold(repeat),
        )
        if repeat < 20:
            drawn = sample(without, start, Sgld(), eta, steps=steps, burn_in=steps - 1, rng=Seed(7).fold(repeat))
            lost.append(drawn[:, 0, 0] - centres.mean())
    everything = torch.stack(found)
    means = everything.mean(1)  # of chains that share their minibatches
    of_means = own * (alone - crossed / (m - 1)) / (1 - keep ** (2 * m))
    within = everything.var(1).mean()
    assert abs(float(within) - (exact - of_means)) < Z * (exact - of_means) * (2 / (repeats * (chains - 1))) ** 0.5
    spread = float(means.square().mean())
    expected = of_means + (exact - of_means) / chains
    assert abs(spread - expected) < Z * expected * (2 / repeats) ** 0.5
    wrong = independent - (eta / (1 - keep**2)) + (exact - of_means) / chains
    assert abs(spread - wrong) > Z * wrong * (2 / repeats) ** 0.5
    assert float(torch.stack(lost).var()) > 1.5 * exact


def after_proposals(kernel: Hmc, step_size: float, density: Density) -> tuple[Tensor, float]:
    """20,000 chains that start from p^{1/T}, after 20 proposals, and the share of those that were accepted."""
    start = (
        torch.randn(20_000, 2, generator=Seed(0).generator(), dtype=torch.float64) * (TEMPERATURE / PRECISIONS).sqrt()
    )
    addresses = Chains.of(Seed(3), len(start))
    state = kernel.init(start, addresses.at(0))
    sizes = ConstantStep(step_size)
    moves = run(kernel, lambda _: density, state, sizes, addresses, first=0, steps=20, temperature=TEMPERATURE)
    *_, (done, state) = moves
    return state["position"], acceptance(state, done)["acceptance"]


def test_hmc_keeps_the_target_at_any_step_size() -> None:
    """At a step where most proposals are accepted and at one where many are not; told apart: all are accepted."""
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


def test_burn_in_finds_the_step_size_of_an_acceptance() -> None:
    """Each of 500 chains from a step that is a hundred times too large or too small; the law is then exact."""
    kernel, exact = Hmc(leapfrogs=5, acceptance=0.8, jitter=0.1), density_of(gaussian)
    start = torch.randn(500, 2, generator=Seed(0).generator(), dtype=torch.float64) / PRECISIONS.sqrt()
    for step_size in (5.0, 5e-4):
        addresses = Chains.of(Seed(4), 500)
        state, before = kernel.init(start, addresses.at(0)), 0.0
        moves = run(kernel, lambda _: exact, state, ConstantStep(step_size), addresses, first=0, steps=250, burn_in=200)
        for done, state in moves:
            if done == 200:
                before = float(state["accepted"].mean())
        assert 0.7 < (float(state["accepted"].mean()) - before) / 50 < 0.97
        assert standard_errors(state["position"], 1 / PRECISIONS) < Z
        assert float(state["count"].max()) == 200  # burn-in alone adapts


def test_a_thermostat_takes_out_noise_that_it_does_not_know() -> None:
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
    left, right = -((x + 1.2) ** 2) / 0.5, -((x - 1.2) ** 2) / 0.5
    return torch.logaddexp(left - 0.7, right) - y.square() / 2


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


@every_kernel
@pytest.mark.parametrize("target", [banana, two_modes])
@pytest.mark.slow
def test_a_kernel_samples_what_is_not_gaussian(name: str, target: Callable[[Tensor], Tensor]) -> None:
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
        found = moments(drawn[:, 0])
        off = (found.mean(0) - exact).abs() / spread
        allowed = Z / 4_000**0.5 + (0 if name == "hmc" else 0.04)
        assert bool((off < allowed).all()) == (heat == 1.0), (heat, off, allowed)


@every_kernel
def test_a_chain_goes_on_in_the_middle_of_a_cycle_with_the_same_bits(name: str) -> None:
    """After 7 of 12 steps, in the exploring part of the second cycle of 5, where a chain has no noise."""
    kernel, schedule = ALL[name], CyclicalSteps(STEPS[name], cycle=5, exploration=0.6)
    start = torch.ones(3, 2, dtype=torch.float64)

    def rest(state: ChainState, first: int) -> list[ChainState]:
        density = density_of(gaussian)
        chains = Chains([Seed(0).fold(c) for c in range(3)])
        moves = run(kernel, lambda _: density, state, schedule, chains, first=first, steps=12, burn_in=9)
        return [state for _, state in moves]

    whole = rest(kernel.init(start, Chains([Seed(0).fold(c) for c in range(3)]).at(0)), 0)
    again = rest({key: value.clone() for key, value in whole[6].items()}, 7)
    assert all(torch.equal(value, again[-1][key]) for key, value in whole[-1].items())


@every_kernel
def test_a_chain_is_the_same_whichever_chains_move_with_it(name: str) -> None:
    kernel, density = ALL[name], density_of(gaussian)
    start = torch.arange(6, dtype=torch.float64).reshape(3, 2) / 10

    def last(members: list[int]) -> Tensor:
        chains = Chains([Seed(0).fold("member", member) for member in members])
        state = kernel.init(start[members], chains.at(0))
        *_, (_, state) = run(kernel, lambda _: density, state, ConstantStep(STEPS[name]), chains, first=0, steps=6)
        return state["position"]

    assert torch.equal(last([0, 1, 2])[1:], last([1, 2]))
    assert not torch.equal(last([1]), last([2]))


@every_kernel
def test_temperature_0_is_an_optimiser(name: str) -> None:
    """Without noise a chain ends at the mode; HMC, whose proposals then stand still, stays."""
    start = torch.full((2, 2), 0.3, dtype=torch.float64)
    settings = {"steps": 400, "burn_in": 399, "rng": Seed(0)}
    end = sample(gaussian, start, ALL[name], STEPS[name], temperature=0.0, **settings)[:, 0]
    if name in ("sgld", "psgld", "sghmc"):
        assert float(end.abs().max()) < 1e-6
    elif name == "sgnht":
        assert float(end.abs().max()) < 0.3
    else:
        assert float((gaussian(end) - gaussian(start)).min()) >= 0


def test_a_step_is_the_formula_of_its_paper() -> None:
    """SGLD's and pSGLD's steps written out, with the same normal numbers."""
    at = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    density, chains = density_of(gaussian), Chains.of(Seed(0), 1)
    slope, noise = -at * PRECISIONS, chains.at(4).normal(at)
    plain = Sgld().step({"position": at}, density, chains.at(4), 0.04, 0.25)["position"]
    torch.testing.assert_close(plain, at + 0.02 * slope + 0.1 * noise, rtol=0, atol=1e-15)
    kernel = Psgld(decay=0.9, damping=0.2, adapt="always")
    moment = 0.9 * torch.ones_like(at) + 0.1 * slope.square()
    metric = 1 / (0.2 + (moment / moment.mean()).sqrt())
    expected = at + 0.02 * metric * slope + (0.04 * 0.25 * metric).sqrt() * noise
    after = kernel.step(kernel.init(at, chains.at(0)), density, chains.at(4), 0.04, 0.25)
    torch.testing.assert_close(after["position"], expected, rtol=0, atol=1e-14)
    frozen = Psgld(decay=0.9, damping=0.2)
    state = frozen.init(at, chains.at(0))
    assert torch.equal(frozen.step(state, density, chains.at(4), 0.04)["second_moment"], state["second_moment"])
    assert not torch.equal(
        frozen.step(state, density, chains.at(4), 0.04, adapt=True)["second_moment"], state["second_moment"]
    )


def test_minibatch_gradients_average_to_the_full_gradient() -> None:
    """Over all minibatches of an epoch, to rounding; told apart: without N/M."""
    random = Seed(5).generator()
    inputs = torch.randn(24, 3, generator=random, dtype=torch.float64)
    targets = torch.randn(24, generator=random, dtype=torch.float64)
    at = torch.randn(2, 3, generator=random, dtype=torch.float64)

    def log_likelihood(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -4 * (y - w @ x.T).square().sum(1)

    density = minibatch_density(lambda w: -2.5 * w.square().sum(1), log_likelihood, (inputs, targets), 6, Seed(1))
    mean = torch.stack([density.at(step)(at)[1] for step in range(4)]).mean(0)
    by_hand = -5 * at + 8 * (targets - at @ inputs.T) @ inputs
    torch.testing.assert_close(mean, by_hand, rtol=1e-12, atol=1e-12)
    assert (mean - (-5 * at + 2 * (targets - at @ inputs.T) @ inputs)).norm() > 0.5 * by_hand.norm()


def test_schedules() -> None:
    assert ConstantStep(1e-5).at(12345) == 1e-5
    polynomial = PolynomialDecay(0.5, 4.0, 0.5)
    assert [polynomial.at(t) for t in (0, 5, 12)] == pytest.approx([0.25, 0.5 / 3, 0.125])
    cyclical = CyclicalSteps(0.2, cycle=4, exploration=0.5)
    assert [cyclical.at(t) for t in range(5)] == pytest.approx(
        [0.2, 0.1 + 0.1 * 0.5**0.5, 0.1, 0.1 - 0.1 * 0.5**0.5, 0.2]
    )
    assert [cyclical.samples(t) for t in range(6)] == [False, False, True, True, False, False]
    thinning = Thinning(steps=10, burn_in=3, every=1)
    assert kept_steps(thinning, cyclical) == [4, 7, 8]
    assert kept_steps(Thinning(10, 3, 2), ConstantStep(1.0)) == [5, 7, 9]
    scaled = ScaledSteps(rate=0.05, cycle=3.0, exploration=0.2)
    assert scaled.settle(Sghmc(), 60_000, 1.0, 937) == CyclicalSteps((0.05 / 60_000) ** 0.5, 2811, 0.2)
    assert ScaledSteps(rate=0.05).settle(Sgld(), 100, 10.0, 1) == ConstantStep(1e-4)


@pytest.mark.parametrize("name", ["sgld", "psgld", "sghmc", "sgnht", "hmc"])
def test_a_rate_moves_as_gradient_descent_does(name: str) -> None:
    """At temperature 0 the first move from rest at a rate ρ is −ρ times the gradient of the mean loss."""
    kernel, rows, rate = ALL[name], 50, 1e-3
    size = kernel.step_size_of(rate, rows)
    at = torch.full((1, 2), 0.1, dtype=torch.float64)
    expected = rate * -at * PRECISIONS / rows
    chains = Chains.of(Seed(0), 1)
    state = kernel.init(at, chains.at(0), temperature=0.0)
    if name == "hmc":
        state = Hmc(leapfrogs=1).step(state, density_of(gaussian), chains.at(0), size, 0.0)
        torch.testing.assert_close(state["position"] - at, expected / 2)
        return
    for step in range(2):  # a kernel with velocities moves at its second step
        state = kernel.step(state, density_of(gaussian), chains.at(step), size, 0.0)
        if not torch.equal(state["position"], at):
            break
    factor = 1 / 1.1 if name == "psgld" else 1
    torch.testing.assert_close(state["position"] - at, factor * expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: ConstantStep(0.0), "value"),
        (lambda: PolynomialDecay(1.0, 0.0, 0.5), "b"),
        (lambda: CyclicalSteps(1.0, 1, 0.5), "cycle"),
        (lambda: CyclicalSteps(1.0, 4, 1.0), "exploration"),
        (lambda: ScaledSteps(-1.0), "rate"),
        (lambda: Thinning(10, 10, 1), "burn_in"),
        (lambda: Thinning(10, 8, 3), "every"),
        (lambda: Sghmc(friction=1.0), "friction"),
        (lambda: Sgnht(thermostat=0.0), "thermostat"),
        (lambda: Psgld(decay=1.0), "decay"),
        (lambda: Psgld(damping=0.0), "damping"),
        (lambda: Hmc(leapfrogs=0), "leapfrogs"),
        (lambda: Hmc(leapfrogs=1, jitter=1.0), "jitter"),
        (lambda: Hmc(leapfrogs=1, acceptance=1.0), "acceptance"),
        (lambda: kept_steps(Thinning(8, 0, 4), CyclicalSteps(1.0, 8, 0.99)), "thinning.every"),
    ],
)
def test_a_value_out_of_range_is_named(make: Callable[[], object], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.path == path


def test_a_divergence_names_the_step_size() -> None:
    with pytest.raises(Diverged, match=r"a chain diverged before step 100, at the step size 1: lower step_size"):
        sample(lambda x: 1e9 * x.square().sum(1), torch.ones(1, 1), Sgld(), 1.0, steps=100, rng=Seed(0))


def test_a_proposal_without_a_number_is_refused() -> None:
    at = torch.ones(2, 2, dtype=torch.float64)

    def broken(positions: Tensor) -> Tensor:
        return gaussian(positions) * torch.where(positions.detach() == 1, 1.0, torch.nan)[:, 0]

    drawn = sample(broken, at, Hmc(leapfrogs=2), 0.1, steps=3, rng=Seed(0))
    assert torch.equal(drawn[:, -1], at)


def test_a_kernel_that_lacks_a_part_is_refused_before_it_runs() -> None:
    """Chains ask for the noise of minibatches at their end, when hours of work could be lost."""

    class Half(Kernel):
        name = "half"

        def step(self, state, density, rng, step_size, temperature=1.0, adapt=False):  # type: ignore[no-untyped-def]
            return state

        def step_size_of(self, rate: float, rows: float) -> float:
            return rate

    with pytest.raises(TypeError, match="noise_ratio"):
        Half()  # type: ignore[abstract]


def test_hmc_takes_no_minibatches() -> None:
    with pytest.raises(ConfigError, match="must take minibatches"):
        sample(noisy(1.0, Seed(0)), torch.ones(1, 2), Hmc(leapfrogs=1), 0.1, steps=1, rng=Seed(0))


def test_a_kernel_from_outside() -> None:
    """A name that is free, a frozen dataclass below Kernel; what it is registered as is read from params.yaml."""
    with pytest.raises(PluginError, match="is taken"):
        register_kernel(Sgld)
    sampler = {"kernel": {"name": "sgnht", "friction": 0.2, "thermostat": 0.1}, "batch": 5}
    read_ = read(SamplerConfig, sampler | {"step_size": {"name": "scaled", "rate": 0.1}}, "sampler")
    assert read_.kernel == Sgnht(friction=0.2, thermostat=0.1) and set(KERNELS) == {*ALL}
