"""HMC's acceptance, and the step size that burn-in finds."""

import itertools

import pytest
import torch
from torch import Tensor

from bdl_pipe.errors import ConfigError
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Chains, ConstantStep, Density, Hmc, sample
from bdl_pipe.sgmcmc.sampling import acceptance, density_of, run
from tests.sgmcmc.gaussian import PRECISIONS, TEMPERATURE, Z, gaussian, noisy, standard_errors


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


def test_burn_in_finds_the_step_size_of_the_given_acceptance() -> None:
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


def test_burn_in_recovers_from_step_sizes_that_overflow() -> None:
    """From step sizes 10⁴⁰ times too large a proposal is NaN: it is rejected, and the next step sizes are smaller."""
    kernel, exact, chains = Hmc(leapfrogs=5, acceptance=0.8, jitter=0.1), density_of(gaussian), 2_000
    start = torch.randn(chains, 2, generator=Seed(0).generator(), dtype=torch.float64) / PRECISIONS.sqrt()
    numbers = []

    def density(positions: Tensor) -> tuple[Tensor, Tensor]:
        numbers.append(bool(torch.isfinite(positions).all()))
        return exact(positions)

    addresses = Chains.of(Seed(4), chains)
    moves = run(
        kernel,
        lambda _: density,
        kernel.init(start, addresses.at(0)),
        ConstantStep(1e39),
        addresses,
        first=0,
        steps=350,
        burn_in=300,
    )
    states = [state for _, state in moves]
    assert not numbers[5] and torch.equal(states[0]["position"], start)  # the first proposal is not finite
    share = float((states[-1]["accepted"] - states[299]["accepted"]).mean()) / 50
    assert 0.7 < share < 0.97
    assert standard_errors(states[-1]["position"], 1 / PRECISIONS) < Z


def test_a_proposal_of_nan_density_is_rejected() -> None:
    at = torch.ones(2, 2, dtype=torch.float64)

    def broken(positions: Tensor) -> Tensor:
        return gaussian(positions) * torch.where(positions.detach() == 1, 1.0, torch.nan)[:, 0]

    drawn = sample(broken, at, Hmc(leapfrogs=2), 0.1, steps=3, rng=Seed(0))
    assert torch.equal(drawn[:, -1], at)


def test_hmc_refuses_minibatches() -> None:
    with pytest.raises(ConfigError, match="must take minibatches"):
        sample(noisy(1.0, Seed(0)), torch.ones(1, 2), Hmc(leapfrogs=1), 0.1, steps=1, rng=Seed(0))
