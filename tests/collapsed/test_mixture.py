"""The predictive of collapsed regression: its density and moments, its series and its interpolated distribution."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from bdl_pipe import metrics
from bdl_pipe.collapsed.integrals import many_uniforms
from bdl_pipe.collapsed.integrals.series import Series
from bdl_pipe.collapsed.mixture import CollapsedMixture, Interpolated
from bdl_pipe.collapsed.output_distributions import Linear
from bdl_pipe.collapsed.rectified import Rectified
from bdl_pipe.predictive import Gaussian
from bdl_pipe.recalibration import Recalibration, Widened

from .cases import numbers, snapshots_of
from .test_regression import SPEC, TWO, inputs, last, second

TAIL = 0.01


def predictive(tail: float = TAIL, outputs: int = 1, batch: int = 4) -> CollapsedMixture:
    random = numbers("mixture", outputs)
    shape = (3, batch, outputs)
    centre, widths = random.normal(size=shape), random.uniform(0, 1, (*shape, 2))
    return CollapsedMixture(Linear(*map(torch.tensor, (centre, widths, random.uniform(0.3, 1, shape)))), tail)


def normal(y: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).exp()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_log_density_mixes_the_parts_and_the_tail_over_samples(outputs: int) -> None:
    mixture, y = predictive(outputs=outputs), torch.tensor(numbers("mixture", "y").normal(size=(4, outputs)))
    exact = (1 - TAIL) * mixture.part.log_density(y).exp()
    exact = exact + TAIL * normal(y, mixture.part.mean, mixture.part.variance)
    torch.testing.assert_close(mixture.log_prob(y), exact.prod(-1).mean(0).log())
    plain = predictive(0.0, outputs)
    torch.testing.assert_close(plain.log_prob(y), plain.part.log_density(y).exp().prod(-1).mean(0).log())


def test_a_tail_keeps_the_moments_and_scores_targets_beyond_the_reach() -> None:
    plain, tailed = predictive(0.0), predictive()
    torch.testing.assert_close(tailed.mean, plain.mean)
    torch.testing.assert_close(tailed.variance, plain.variance)
    low, high = plain.reach
    far = high + 1
    assert (plain.log_prob(far) == -torch.inf).all()
    expected = (TAIL * normal(far, tailed.draw_mean, tailed.draw_variance)).mean(0)[:, 0].log()
    torch.testing.assert_close(tailed.log_prob(far), expected)
    inside = (low + high) / 2
    assert (tailed.log_prob(inside) - plain.log_prob(inside) > math.log(1 - TAIL) - 1e-12).all()


@pytest.mark.parametrize("tail", [0.0, TAIL])
@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.95])
def test_quantiles_invert_the_distribution_function(tail: float, level: float) -> None:
    mixture, levels = predictive(tail, outputs=2), torch.full((4, 2), level, dtype=torch.float64)
    torch.testing.assert_close(mixture.cdf(mixture.quantile(level)), levels, rtol=0, atol=1e-10)


def test_rescaling_moves_mean_density_and_quantiles() -> None:
    mixture, shift, scale = predictive(outputs=2), torch.tensor([20.0, -3.0]), torch.tensor([9.0, 0.5])
    y = torch.tensor(numbers("units").normal(size=(4, 2)))
    other = mixture.rescale(shift, scale)
    torch.testing.assert_close(other.mean, shift + scale * mixture.mean)
    expected = mixture.log_prob(y) - scale.double().log().sum()
    torch.testing.assert_close(other.log_prob(shift + scale * y), expected)
    torch.testing.assert_close(other.quantile(0.3), shift + scale * mixture.quantile(0.3), rtol=1e-9, atol=1e-9)


def test_a_rectified_part_gives_finite_scores_and_quantiles_that_invert_the_cdf() -> None:
    random, shape = numbers("mixture", "rectified"), (3, 4, 1)
    values = (random.normal(size=shape), random.choice([-1.0, 1.0], shape), random.normal(size=shape))
    part = Rectified(*map(torch.tensor, (*values, random.uniform(0, 1, (*shape, 3)), random.uniform(0.3, 1, shape))))
    mixture, levels = CollapsedMixture(part, TAIL), torch.full((4, 1), 0.25).double()
    torch.testing.assert_close(mixture.cdf(mixture.quantile(0.25)), levels, rtol=0, atol=1e-10)
    assert mixture.log_prob(mixture.mean).isfinite().all()


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


def exact(boxes: Box, tail: float, y: torch.Tensor) -> torch.Tensor:
    """The distribution function of the mixture, from the relatively exact one of each sample."""
    part = Linear(*boxes)
    gaussian = torch.special.ndtr((y - part.mean) / part.variance.sqrt())
    return ((1 - tail) * many_uniforms.cdf(y, *boxes) + tail * gaussian).mean(0)


@pytest.mark.parametrize("tail", [0.0, 0.01, 0.9])
@pytest.mark.parametrize(("kind", "d"), [("equal", 7), ("equal", 51), ("spread", 51), ("spread", 200), ("few", 51)])
def test_the_series_equals_the_mean_of_the_exact_distribution_functions(kind: str, d: int, tail: float) -> None:
    boxes = box(kind, d, outputs=2)
    series, centre, sd = Series.of(*boxes, tail), boxes[0].mean(0), Linear(*boxes).variance.amax(0).sqrt()
    for z in np.linspace(-12, 12, 9):  # far outside of the window, too
        y = centre + float(z) * sd
        torch.testing.assert_close(series.cdf(y), exact(boxes, tail, y), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "d", "tail"), [("none", 51, 0.01), ("few", 7, 0.01), ("two", 2, 0.0), ("two", 2, 0.2)]
)
def test_too_long_a_series_is_replaced_by_the_exact_functions(kind: str, d: int, tail: float) -> None:
    """With few uniforms the characteristic function falls as slowly as t⁻²."""
    boxes = box(kind, d)
    assert Series.of(*boxes, tail) is None
    for by in (-2.0, 0.3):
        y = boxes[0].mean(0) + by
        torch.testing.assert_close(CollapsedMixture(Linear(*boxes), tail).cdf(y), exact(boxes, tail, y))


@pytest.mark.parametrize(("d", "tail"), [(51, 0.2), (2, 0.0), (2, 0.2)])
def test_intervals_and_crps_agree_with_the_exact_distribution_function(d: int, tail: float) -> None:
    """CRPS = ∫(F − [y ≤ x])² dx by trapezoids of the exact F; boxes 1.3 times as wide fail."""
    boxes = box("equal", d, batch=1)
    mixture, y = CollapsedMixture(Linear(*boxes), tail), boxes[0].mean(0) + 0.5
    ends = torch.stack([exact(boxes, tail, end) for end in metrics.interval(mixture, 0.9)]).flatten()
    torch.testing.assert_close(ends, torch.tensor([0.05, 0.95], dtype=torch.float64), rtol=0, atol=1e-8)
    x = y + torch.linspace(-30, 30, 2401, dtype=torch.float64)[:, None]
    wide: Box = tuple(v.expand(-1, 2401, *v.shape[2:]) for v in boxes)  # type: ignore[assignment]
    f = exact(wide, tail, x)[:, 0]
    expected = float(torch.trapezoid(f[:1201].square(), dx=0.025) + torch.trapezoid((1 - f[1200:]).square(), dx=0.025))
    assert metrics.crps(mixture, y).value == pytest.approx(expected, rel=1e-3)
    wider = CollapsedMixture(Linear(boxes[0], 1.3 * boxes[1], boxes[2]), tail)
    assert metrics.crps(wider, y).value != pytest.approx(expected, rel=1e-2)


def grid(exact: CollapsedMixture) -> torch.Tensor:
    ends, share = exact.table[0], torch.linspace(-0.1, 1.1, 1001, dtype=torch.float64)[:, None, None]
    return ends[0] + share * (ends[-1] - ends[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "tail"),
    [
        (last, 0.01),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in ((last, 0.0), (second, 0.0), (second, 0.01))),
    ],
)
def test_the_distribution_function_is_within_1e_3_of_the_exact_one(make: Any, tail: float) -> None:
    """Straight lines between the exact values at the ends are off by more."""
    exact = make(snapshots_of(SPEC, spread=0.3), tail=tail).predict(inputs())
    ends, at = exact.table[0], grid(exact)
    quick, right = (torch.stack([one.cdf(values) for values in at]) for one in (exact.quick, exact))
    assert isinstance(exact.quick, Interpolated) and 0 < float((quick - right).abs().max()) < 1e-3
    panel, lines = (ends[1:-1, None] < at).sum(0), torch.stack([exact.cdf(end) for end in ends])
    low, high = ends.gather(0, panel), ends.gather(0, panel + 1)
    t = ((at - low) / (high - low)).clamp(0, 1)
    straight = (1 - t) * lines.gather(0, panel) + t * lines.gather(0, panel + 1)
    assert float((straight - right).abs().max()) > 1e-2


def test_rows_with_a_draw_that_is_narrow_for_their_panels_have_the_exact_distribution_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for these rows alone. Whether a row is interpolated does not depend on the other rows of a batch."""
    exact = last(snapshots_of(TWO), 3, 0.0, TWO).predict(inputs(40))
    ends, asked, compute = exact.table[0], list[int](), type(exact).cdf
    wide = ends.diff(dim=0).amax(0) > 8 * exact.draw_variance.sqrt().amin(0)
    assert 0 < int(wide.sum()) < wide.numel()
    for values in grid(exact)[::25]:
        quick, right = exact.quick.cdf(values), exact.cdf(values)
        assert torch.equal(quick[wide], right[wide]) and float((quick - right).abs().max()) < 1e-3
    always = Interpolated(exact, torch.full_like(ends[0], torch.inf))
    assert max(float((always.cdf(values) - exact.cdf(values)).abs().max()) for values in grid(exact)[::5]) > 1e-3
    monkeypatch.setattr(type(exact), "cdf", lambda self, values: asked.append(len(values)) or compute(self, values))
    exact.quick.cdf(exact.mean)
    assert asked == [int(wide.any(1).sum())] and asked[0] < len(wide)


def test_values_at_nodes_and_beyond_the_ends() -> None:
    exact = last(snapshots_of(SPEC), 3, 0.01).predict(inputs())
    ends, nodes, below = exact.table
    for panel, node in ((0, 0), (2, 7), (5, 15)):
        torch.testing.assert_close(exact.quick.cdf(nodes[panel, node]), below[panel, node], rtol=0, atol=1e-12)
    assert (exact.quick.cdf(ends[0] - 1) == 0).all() and (exact.quick.cdf(ends[-1] + 1) == 1).all()


def test_widths_of_a_recalibrated_predictive_share_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is asked for the table's 96 nodes, and for no more by the distribution functions of three widths."""
    exact = last(snapshots_of(SPEC), 3, 0.01).predict(inputs())
    calls, compute = [], type(exact).cdf
    monkeypatch.setattr(type(exact), "cdf", lambda self, values: calls.append(1) or compute(self, values))
    recalibrated = Recalibration((0.5, 1.0, 2.0), (0.2, 0.5, 0.3), torch.zeros(0)).apply(exact)
    assert all(isinstance(part, Widened) for part in recalibrated.parts)
    low, high = recalibrated.quantile(0.05), recalibrated.quantile(0.95)
    assert len(calls) == 96 and (low < high).all()
    parts = [compute(exact, exact.mean + (low - exact.mean) / s) for s in (0.5, 1.0, 2.0)]
    torch.testing.assert_close(
        sum(w * p for w, p in zip((0.2, 0.5, 0.3), parts, strict=True)), torch.full_like(low, 0.05), rtol=0, atol=1e-4
    )
    plain = Gaussian(torch.zeros(1, 5, 1), torch.ones(1, 5, 1))
    assert plain.quick is plain
