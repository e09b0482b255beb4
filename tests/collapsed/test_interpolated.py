"""The interpolated distribution function of a collapsed mixture, against the exact one."""

import pytest
import torch

from bdl_pipe.collapsed.mixture import CollapsedMixture, Interpolated
from bdl_pipe.predictive import Gaussian
from bdl_pipe.recalibration import Recalibration, Widened
from tests.collapsed.cases import snapshots_of

from .test_regression import SPEC, TWO, inputs, last, second


def grid(exact: CollapsedMixture) -> torch.Tensor:
    ends, share = exact.table[0], torch.linspace(-0.1, 1.1, 1001, dtype=torch.float64)[:, None, None]
    return ends[0] + share * (ends[-1] - ends[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "tail"),
    [
        ("last", 0.01),
        pytest.param("last", 0.0, marks=pytest.mark.soak),
        pytest.param("second", 0.0, marks=pytest.mark.soak),
        pytest.param("second", 0.01, marks=pytest.mark.soak),
    ],
)
def test_the_distribution_function_is_within_1e_3_of_the_exact_one(which: str, tail: float) -> None:
    """Straight lines between the exact values at the ends are off by more."""
    weights = snapshots_of(SPEC, spread=0.3)
    exact = (second(weights, 2, tail) if which == "second" else last(weights, 3, tail)).predict(inputs())
    ends, at = exact.table[0], grid(exact)
    found, right = (torch.stack([made.cdf(values) for values in at]) for made in (exact.quick, exact))
    assert isinstance(exact.quick, Interpolated) and 0 < float((found - right).abs().max()) < 1e-3
    panel, lines = (ends[1:-1, None] < at).sum(0), torch.stack([exact.cdf(end) for end in ends])
    low, high = ends.gather(0, panel), ends.gather(0, panel + 1)
    t = ((at - low) / (high - low)).clamp(0, 1)
    straight = (1 - t) * lines.gather(0, panel) + t * lines.gather(0, panel + 1)
    assert float((straight - right).abs().max()) > 1e-2


def test_rows_with_a_draw_that_is_narrow_for_their_panels_have_the_exact_distribution_function() -> None:
    """Whether a row is interpolated does not depend on the other rows of a batch."""
    exact = last(snapshots_of(TWO), 3, 0.0, TWO).predict(inputs(40))
    ends = exact.table[0]
    wide = ends.diff(dim=0).amax(0) > 8 * exact.draw_variance.sqrt().amin(0)
    assert 0 < int(wide.sum()) < wide.numel()
    for values in grid(exact)[::25]:
        found, right = exact.quick.cdf(values), exact.cdf(values)
        assert torch.equal(found[wide], right[wide]) and float((found - right).abs().max()) < 1e-3
    always = Interpolated(exact, torch.full_like(ends[0], torch.inf))
    assert max(float((always.cdf(values) - exact.cdf(values)).abs().max()) for values in grid(exact)[::5]) > 1e-3


def test_the_exact_distribution_function_is_asked_for_the_rows_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = last(snapshots_of(TWO), 3, 0.0, TWO).predict(inputs(40))
    wide = exact.table[0].diff(dim=0).amax(0) > 8 * exact.draw_variance.sqrt().amin(0)
    asked, compute = [], type(exact).cdf
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
    made = Recalibration((0.5, 1.0, 2.0), (0.2, 0.5, 0.3), torch.zeros(0)).apply(exact)
    assert all(isinstance(part, Widened) for part in made.parts)
    low, high = made.quantile(0.05), made.quantile(0.95)
    assert len(calls) == 96 and (low < high).all()
    parts = [compute(exact, exact.mean + (low - exact.mean) / s) for s in (0.5, 1.0, 2.0)]
    torch.testing.assert_close(
        sum(w * p for w, p in zip((0.2, 0.5, 0.3), parts, strict=True)), torch.full_like(low, 0.05), rtol=0, atol=1e-4
    )
    plain = Gaussian(torch.zeros(1, 5, 1), torch.ones(1, 5, 1))
    assert plain.quick is plain
