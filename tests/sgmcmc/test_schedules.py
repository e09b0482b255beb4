"""Step sizes, thinning, and the errors of values out of range and of chains that diverge."""

import pytest
import torch
from torch import Tensor

from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import (
    Chains,
    ConstantStep,
    CyclicalSteps,
    Density,
    PolynomialDecay,
    Sghmc,
    Sgld,
    sample,
)
from bdl_pipe.sgmcmc.sampling import density_of, kept_steps, run
from bdl_pipe.sgmcmc.schedules import ScaledSteps, Thinning, long_exploration


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
