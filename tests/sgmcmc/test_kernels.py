"""All kernels: addresses, resuming, temperature, a step's formula; step sizes and errors of chains that diverge."""

import pytest
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
from bdl_pipe.sgmcmc.sampling import density_of, kept_steps, run
from bdl_pipe.sgmcmc.schedules import ScaledSteps, Thinning, long_exploration
from tests.sgmcmc.gaussian import ALL, PRECISIONS, STEPS, every_kernel, gaussian


@every_kernel
def test_a_chain_resumed_within_a_cycle_ends_with_the_same_bits(name: str) -> None:
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


def test_a_step_of_sgld_and_psgld_is_the_formula_of_its_paper() -> None:
    """SGLD's and pSGLD's steps written out, with the same normal numbers."""
    at = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    density, chains = density_of(gaussian), Chains.of(Seed(0), 1)
    slope, noise = -at * PRECISIONS, chains.at(4).normal(at)
    plain = Sgld().step({"position": at}, density, chains.at(4), 0.04, 0.25)["position"]
    torch.testing.assert_close(plain, at + 0.02 * slope + 0.1 * noise, rtol=0, atol=1e-15)
    kernel, moment = Psgld(decay=0.9, damping=0.2), 0.9 * torch.ones_like(at) + 0.1 * slope.square()
    metric = 1 / (0.2 + (moment / moment.mean()).sqrt())
    expected = at + 0.02 * metric * slope + (0.04 * 0.25 * metric).sqrt() * noise
    start = kernel.init(at, chains.at(0))
    after = kernel.step(start, density, chains.at(4), 0.04, 0.25, adapt=True)
    torch.testing.assert_close(after["position"], expected, rtol=0, atol=1e-14)
    assert torch.equal(kernel.step(start, density, chains.at(4), 0.04)["second_moment"], start["second_moment"])


def test_minibatch_gradients_average_to_the_full_gradient() -> None:
    """Over all minibatches of each epoch, to rounding; told apart: a likelihood without the factor N/M."""
    random = Seed(5).generator()
    inputs, targets, at = (torch.randn(s, generator=random, dtype=torch.float64) for s in ((24, 3), (24,), (2, 3)))

    def log_likelihood(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -4 * (y - w @ x.T).square().sum(1)

    density = minibatch_density(lambda w: -2.5 * w.square().sum(1), log_likelihood, (inputs, targets), 6, Seed(1))
    epochs = torch.stack([density.at(step)(at)[1] for step in range(8)]).unflatten(0, (2, 4))
    by_hand = -5 * at + 8 * (targets - at @ inputs.T) @ inputs
    torch.testing.assert_close(epochs.mean(1), by_hand.expand(2, -1, -1), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(epochs[0], epochs[1])  # each epoch has an order of its own
    assert (by_hand - (-5 * at + 2 * (targets - at @ inputs.T) @ inputs)).norm() > 0.5 * by_hand.norm()


@every_kernel
def test_a_learning_rate_moves_a_chain_as_gradient_descent_does(name: str) -> None:
    """At temperature 0 the first move from rest at a rate ρ is −ρ times the gradient of the mean loss.

    HMC's leapfrog moves by half of it, and pSGLD by its preconditioner's 1/1.1 of it.
    """
    kernel, rows, rate = Hmc(leapfrogs=1) if name == "hmc" else ALL[name], 50, 1e-3
    at, chains = torch.full((1, 2), 0.1, dtype=torch.float64), Chains.of(Seed(0), 1)
    state = ALL[name].init(at, chains.at(0), temperature=0.0)
    for step in range(2):  # a kernel with velocities moves at its second step
        if torch.equal(state["position"], at):
            state = kernel.step(state, density_of(gaussian), chains.at(step), kernel.step_size_of(rate, rows), 0.0)
    factor = {"psgld": 1 / 1.1, "hmc": 1 / 2}.get(name, 1)
    expected = factor * rate * -at * PRECISIONS / rows
    torch.testing.assert_close(state["position"] - at, expected, rtol=1e-6, atol=0)


def test_a_kernel_that_lacks_a_method_cannot_be_made() -> None:
    """Chains ask for the noise of minibatches at their end, when hours of work could be lost."""
    half = type("Half", (Kernel,), {"name": "half", "step": Sgld.step, "step_size_of": Sgld.step_size_of})
    with pytest.raises(TypeError, match="noise_ratio"):
        half()


def test_a_taken_kernel_name_is_refused_and_kernels_are_read_from_a_config() -> None:
    """A second kernel of one name is refused; a sampler's section of params.yaml names a kernel and its settings."""
    with pytest.raises(PluginError, match="is taken"):
        register_kernel(Sgld)
    sampler = {"kernel": {"name": "sgnht", "friction": 0.2, "thermostat": 0.1}, "batch": 5}
    read_ = read(SamplerConfig, sampler | {"step_size": {"name": "scaled", "rate": 0.1}}, "sampler")
    assert read_.kernel == Sgnht(friction=0.2, thermostat=0.1) and set(KERNELS) == {*ALL}


def test_schedules_have_their_step_sizes_and_kept_steps() -> None:
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
    with pytest.raises(ConfigError, match=r"thinning\.every"):
        kept_steps(Thinning(8, 0, 4), CyclicalSteps(1.0, 8, 0.99))


POLYNOMIAL = PolynomialDecay(4e4, 1.0, 0.0)


def steep(positions: Tensor) -> Tensor:
    """A Gaussian of precision 8: SGLD is stable below η = 4/8, and grows from 1 by |1 − 4η| a step above it."""
    return -4 * positions.square().sum(1)


@pytest.mark.parametrize(
    ("step_sizes", "steps", "message"),
    [
        (
            500.0,
            100,
            r"at step 1\d, at the step size 500: lower step_size.value from 500 to 0.488281, at which 100 steps did ",
        ),
        (
            POLYNOMIAL,
            100,
            r"at step \d, at the step size 4e\+04: lower step_size.a from 40000 to less than 39.0625, at which a ",
        ),
        (
            0.62,
            1000,
            r"before step 300, at the step size 0.62: lower step_size.value from 0.62 to 0.31, at which 200 steps did ",
        ),
    ],
)
def test_a_divergence_error_names_the_largest_halved_step_size_that_lasts(step_sizes, steps, message) -> None:
    """A retry has the chain's own start, random numbers and burn-in; its step size is halved until the chain lasts."""
    start, asked = torch.ones(3, 2), list[int]()
    with pytest.raises(Diverged, match=message) as caught:
        sample(steep, start, Sgld(), step_sizes, steps=steps, rng=Seed(0))
    assert "\n" not in str(caught.value)

    def density_at(step: int) -> Density:
        asked.append(step)
        return density_of(steep)

    [*run(Sgld(), density_at, {"position": start}, ConstantStep(0.4), Chains.of(Seed(0), 3), first=0, steps=300)]
    assert asked == [*range(300)]  # no step is repeated where no chain diverges


def test_draws_spread_less_the_longer_a_cycle_explores() -> None:
    """The variance of the kept draws over the true one, on Gaussians of precisions 1, .3 and .1; 400 chains."""
    precisions, start = torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64), torch.zeros(400, 3, dtype=torch.float64)

    def log_density(at: Tensor) -> Tensor:
        return -0.5 * (at.square() * precisions).sum(1)

    for exploration, expected in ((0.0, [1, 1, 1]), (0.5, [0.94, 0.83, 0.49]), (0.8, [0.06, 0.02, 0.01])):
        sizes = CyclicalSteps(0.2, cycle=500, exploration=exploration)
        draws = sample(log_density, start, Sghmc(friction=0.1), sizes, steps=1000, burn_in=500, rng=Seed(1))
        spread = draws.square().mean((0, 1)) * precisions
        assert spread.tolist() == pytest.approx(expected, abs=0.02 if exploration == 0.8 else 0.06)


def test_a_long_exploration_is_warned_of() -> None:
    for steps in (CyclicalSteps(0.1, 10, 0.8), ScaledSteps(0.1, cycle=2.0, exploration=0.5)):
        assert long_exploration(steps) > 0
    for steps in (CyclicalSteps(0.1, 10, 0.0), ScaledSteps(0.1, exploration=0.5), ConstantStep(0.1)):
        assert long_exploration(steps) == 0
