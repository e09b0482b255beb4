"""Step sizes, thinning, and what a value out of range or a chain that diverges is told."""

from collections.abc import Callable

import pytest
import torch

from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import ConstantStep, CyclicalSteps, Hmc, PolynomialDecay, Psgld, Sghmc, Sgld, Sgnht, sample
from bdl_pipe.sgmcmc.sampling import kept_steps
from bdl_pipe.sgmcmc.schedules import ScaledSteps, Thinning


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
