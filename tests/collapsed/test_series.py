"""One Fourier series for a mixture's distribution function, against the exact function of each sample."""

import numpy as np
import pytest
import torch

from bdl_pipe import metrics
from bdl_pipe.collapsed.integrals import many_uniforms
from bdl_pipe.collapsed.integrals.series import Series
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear

from .cases import numbers

Box = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # centre, half-widths, radius


def box(kind: str, d: int, draws: int = 5, batch: int = 4, outputs: int = 1) -> Box:
    """Boxes of samples some standard deviations apart; ``kind`` says how their widths differ."""
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
    """The distribution function of the mixture, from the relatively exact one of each sample."""
    part = Linear(*given)
    gaussian = torch.special.ndtr((y - part.mean) / part.variance.sqrt())
    return ((1 - tail) * many_uniforms.cdf(y, *given) + tail * gaussian).mean(0)


@pytest.mark.parametrize("tail", [0.0, 0.01, 0.9])
@pytest.mark.parametrize(("kind", "d"), [("equal", 7), ("equal", 51), ("spread", 51), ("spread", 200), ("few", 51)])
def test_the_series_equals_the_mean_of_the_exact_distribution_functions(kind: str, d: int, tail: float) -> None:
    given = box(kind, d, outputs=2)
    series = Series.of(*given, tail)
    assert series is not None
    centre, sd = given[0].mean(0), Linear(*given).variance.amax(0).sqrt()
    for z in np.linspace(-12, 12, 9):  # far outside of the window, too
        y = centre + float(z) * sd
        torch.testing.assert_close(series.cdf(y), exact(given, tail, y), rtol=0, atol=1e-9)


def test_a_radius_that_is_off_by_a_thousandth_is_noticed() -> None:
    centre, widths, radius = box("equal", 51)
    series = Series.of(centre, widths, radius * 1.001, 0.01)
    assert series is not None
    y = centre.mean(0) + 1
    assert float((series.cdf(y) - exact((centre, widths, radius), 0.01, y)).abs().max()) > 1e-8


@pytest.mark.parametrize(("kind", "d"), [("none", 51), ("few", 7)])
def test_too_long_a_series_is_replaced_by_the_exact_functions(kind: str, d: int) -> None:
    """With few uniforms the characteristic function falls as slowly as t⁻²."""
    given = box(kind, d)
    assert Series.of(*given, 0.01) is None
    y = given[0].mean(0) + 0.3
    torch.testing.assert_close(CollapsedMixture(Linear(*given), 0.01).cdf(y), exact(given, 0.01, y))


def test_quantiles_and_crps_agree_with_the_exact_distribution_function() -> None:
    """CRPS = ∫(F − [y ≤ x])² dx by trapezoids of the exact F; boxes 1.3 times as wide fail."""
    tail, given = 0.2, box("equal", 51, batch=1)
    found, y = CollapsedMixture(Linear(*given), tail), given[0].mean(0) + 0.5
    for level in (0.05, 0.95):
        assert float(exact(given, tail, found.quantile(level))) == pytest.approx(level, abs=1e-8)
    x = y + torch.linspace(-60, 60, 1201, dtype=torch.float64)[:, None]
    wide: Box = tuple(v.expand(-1, 1201, *v.shape[2:]) for v in given)  # type: ignore[assignment]
    f = exact(wide, tail, x)[:, 0]
    expected = float(torch.trapezoid(f[:601].square(), dx=0.1) + torch.trapezoid((1 - f[600:]).square(), dx=0.1))
    assert metrics.crps(found, y).value == pytest.approx(expected, rel=1e-3)
    wider = CollapsedMixture(Linear(given[0], 1.3 * given[1], given[2]), tail)
    assert metrics.crps(wider, y).value != pytest.approx(expected, rel=1e-2)
