"""One Fourier series for a mixture's distribution function, against each sample's own and draws from the model."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe import metrics
from bdl_pipe.collapsed.integrals import many_uniforms
from bdl_pipe.collapsed.integrals.series import Series
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear

from .cases import numbers

Box = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # centre, half-widths, radius


def box(kind: str, d: int, draws: int = 5, batch: int = 4, outputs: int = 1) -> Box:
    """Of samples some standard deviations apart, of different widths."""
    random = numbers("series", kind, d)
    shape = (draws, batch, outputs)
    widths = random.uniform(0.1, 1, (*shape, d))
    if kind == "spread":
        widths = 10 ** random.uniform(-6, 0, (*shape, d))
    elif kind == "few":
        widths = widths * (random.uniform(size=(*shape, d)) < 0.3)
    elif kind == "none":
        widths = widths * 0
    values = (random.normal(0, 2, shape), widths, random.uniform(0.5, 2, shape))
    return tuple(torch.tensor(v) for v in values)  # type: ignore[return-value]


def exact(given: Box, tail: float, y: torch.Tensor) -> torch.Tensor:
    """By the relatively exact distribution function of each sample."""
    part = Linear(*given)
    gaussian = torch.special.ndtr((y - part.mean) / part.variance.sqrt())
    return ((1 - tail) * many_uniforms.cdf(y, *given) + tail * gaussian).mean(0)


@pytest.mark.parametrize("tail", [0.0, 0.01, 0.9])
@pytest.mark.parametrize(("kind", "d"), [("equal", 7), ("equal", 51), ("spread", 51), ("spread", 200), ("few", 51)])
def test_it_is_the_mean_of_the_samples(kind: str, d: int, tail: float) -> None:
    given = box(kind, d, outputs=2)
    series = Series.of(*given, tail)
    assert series is not None
    centre, sd = given[0].mean(0), Linear(*given).variance.amax(0).sqrt()
    for z in np.linspace(-12, 12, 9):  # far outside of the window, too
        y = centre + float(z) * sd
        torch.testing.assert_close(series.cdf(y), exact(given, tail, y), rtol=0, atol=1e-9)


def test_a_variance_that_is_off_by_a_thousandth_would_show() -> None:
    centre, widths, radius = box("equal", 51)
    series = Series.of(centre, widths, radius * 1.001, 0.01)
    assert series is not None
    y = centre.mean(0) + 1
    assert float((series.cdf(y) - exact((centre, widths, radius), 0.01, y)).abs().max()) > 1e-8


@pytest.mark.parametrize(("kind", "d"), [("none", 51), ("few", 7)])
def test_what_would_be_too_long_is_left_to_the_samples(kind: str, d: int) -> None:
    """Few uniforms, whose characteristic function falls as slowly as t⁻²."""
    given = box(kind, d)
    assert Series.of(*given, 0.01) is None
    y = given[0].mean(0) + 0.3
    torch.testing.assert_close(CollapsedMixture(Linear(*given), 0.01).cdf(y), exact(given, 0.01, y))


def test_quantiles_and_the_crps_are_those_of_draws_from_the_model() -> None:
    """CRPS = E|X − y| − E|X − X'|/2 and levels by 400,000 draws a row: z-tests, false alarms 1 in 10,000 altogether."""
    tail, count = 0.2, 400_000
    given = box("equal", 51, batch=2)
    found, random = CollapsedMixture(Linear(*given), tail), numbers("series", "draws")
    y = given[0].mean(0) + torch.tensor([[0.5], [-3.0]])
    low, high = metrics.interval(found, 0.9)
    part = Linear(*given)
    limit = stats.norm.isf(1e-4 / 12)
    scores = []
    for row in range(2):
        draws = []
        for _ in range(2):  # two independent sets
            s = random.integers(5, size=count)
            centre, widths, radius = (v[:, row, 0].numpy() for v in given)
            uniform = np.zeros(count)
            for i in range(widths.shape[-1]):
                uniform += widths[s, i] * random.uniform(-1, 1, count)
            boxed = centre[s] + uniform + radius[s] * random.triangular(-1, 0, 1, count)
            mean, sd = (v[:, row, 0].numpy()[s] for v in (part.mean, part.variance.sqrt()))
            normal = mean + sd * random.normal(size=count)
            draws.append(np.where(random.uniform(size=count) < tail, normal, boxed))
        each = np.abs(draws[0] - float(y[row, 0])) - np.abs(draws[0] - draws[1]) / 2
        scores.append((each.mean(), each.std() / math.sqrt(count)))
        for end, level in ((low, 0.05), (high, 0.95)):
            below = np.concatenate(draws) < float(end[row, 0])
            assert abs(below.mean() - level) < limit * math.sqrt(level * (1 - level) / len(below))
    expected, error = np.mean([m for m, _ in scores]), math.hypot(*(e for _, e in scores)) / 2
    assert abs(metrics.crps(found, y).value - expected) < limit * error
    # that of boxes 1.3 times as wide is told apart
    wider = CollapsedMixture(Linear(given[0], 1.3 * given[1], given[2]), tail)
    assert abs(metrics.crps(wider, y).value - expected) > limit * error
