"""The output of several collapsed units: against Gauss rules on the cells of the box of their weights, and draws."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from bdl_pipe.collapsed.integrals import few_uniforms
from bdl_pipe.collapsed.integrals.piecewise import triangle_and_uniform
from bdl_pipe.collapsed.output_distributions import Linear, Part, Pieces
from bdl_pipe.collapsed.rectified import Rectified, Unit, of_units
from bdl_pipe.errors import DataError
from tests.case_files import sections_of

from . import oracle
from .cases import numbers
from .cells import rule

Weighted = tuple[float, float, list[float]]  # outgoing, centre, half-widths


class Case(NamedTuple):
    """y = base + Σ_k w_k relu(c_k + Σ_i h_{ki}U_{ki}) + T."""

    units: list[Weighted]
    base: float = 0.3
    radius: float = 0.8

    def part(self, units: Sequence[Weighted] | None = None) -> Part:
        def value(number: float) -> torch.Tensor:
            return torch.full((1, 1, 1), number, dtype=torch.float64)

        parts = [
            Unit(value(w), value(c), torch.tensor(h, dtype=torch.float64)[None, None, None])
            for w, c, h in units or self.units
        ]
        return of_units(value(self.base), parts, value(self.radius))

    def before(self, points: np.ndarray) -> np.ndarray:
        """The input of the rectifier of each unit [n, unit]."""
        ends = np.cumsum([0, *(len(h) for _, _, h in self.units)])
        parts = [c + points[:, a:b] @ h for (_, c, h), (a, b) in zip(self.units, itertools.pairwise(ends), strict=True)]
        return np.stack(parts, -1)

    def output(self, points: np.ndarray) -> np.ndarray:
        """b + Σ w relu(v), by its definition [n]."""
        return self.base + np.maximum(self.before(points), 0) @ np.array([w for w, _, _ in self.units])

    def points(self, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """A rule for functions polynomial except where a unit switches or the output equals one of ``levels``."""
        widths = [h for _, _, h in self.units]
        rows = np.zeros((len(widths), sum(map(len, widths))))
        for k, h in enumerate(widths):
            start = sum(map(len, widths[:k]))
            rows[k, start : start + len(h)] = h
        outgoing, centre = (np.array([unit[i] for unit in self.units]) for i in (0, 1))
        normals, offsets = [*rows], [*-centre]
        patterns = list(itertools.product((0.0, 1.0), repeat=len(widths)))
        for active, level in itertools.product(patterns, levels):
            normals.append((outgoing * active) @ rows)
            offsets.append(level - self.base - (outgoing * active) @ centre)

        def kinks(points: np.ndarray) -> np.ndarray:
            beyond = self.output(points)[:, None] - np.array(levels)
            return np.concatenate([self.before(points), np.tile(beyond, len(patterns))], 1)

        return rule(np.stack(normals), np.array(offsets), kinks, 3)

    def density(self, y: float) -> float:
        points, weights = self.points([y - self.radius, y, y + self.radius])
        return float(weights @ np.maximum(self.radius - np.abs(y - self.output(points)), 0)) / self.radius**2

    def cdf(self, y: float) -> float:
        r = self.radius
        points, weights = self.points([y - r, y, y + r])
        x = np.clip(y - self.output(points), -r, r)
        return float(weights @ np.where(x < 0, (r + x) ** 2 / (2 * r**2), 1 - (r - x) ** 2 / (2 * r**2)))

    def moments(self) -> tuple[float, float]:
        points, weights = self.points([])
        mean = float(weights @ self.output(points))
        return mean, float(weights @ (self.output(points) - mean) ** 2) + self.radius**2 / 6


def density(part: Part, y: float) -> float:
    return float(part.log_density(torch.tensor([[y]], dtype=torch.float64)).exp())


def cdf(part: Part, y: float) -> float:
    return float(part.cdf(torch.tensor([[y]], dtype=torch.float64)))


CASES = {name: Case(**case) for name, case in sections_of(__file__).items()}
SWITCHING = {"one": CASES["one: switching"], "two": CASES["two: both switch"], "three": CASES["three: all switch"]}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
def test_moments_density_and_cdf_equal_quadrature_of_the_definition(case: Case) -> None:
    part, (mean, variance) = case.part(), case.moments()
    low, high = (float(end) for end in part.reach)
    assert float(part.mean) == pytest.approx(mean, rel=1e-12, abs=1e-13)
    assert float(part.variance) == pytest.approx(variance, rel=1e-11)
    for share in (1e-3, 0.45, 0.93):
        y = low + share * (high - low)
        assert density(part, y) == pytest.approx(case.density(y), rel=1e-10, abs=1e-12)
        assert cdf(part, y) == pytest.approx(case.cdf(y), rel=1e-10, abs=1e-12)
    assert density(part, low - 1e-9) == 0 == density(part, high + 1e-9)


@pytest.mark.parametrize("case", SWITCHING.values(), ids=SWITCHING)
def test_a_wrong_unit_box_or_rectifier_changes_the_density(case: Case) -> None:
    """A unit that is always or never on, a box a tenth too wide, no rectifier: off by more than 1e-3."""
    y = case.moments()[0] + 0.1
    exact, ((w, c, h), *rest) = case.density(y), case.units
    for units in ([(w, c + 9, h), *rest], [(w, c - 9, h), *rest], [(w, c, [1.1 * x for x in h]), *rest]):
        assert abs(density(case.part(units), y) / exact - 1) > 1e-3
    linear = Case([(w, c + 9, h) for w, c, h in case.units], case.base - 9 * sum(w for w, _, _ in case.units))
    assert abs(density(linear.part(), y) / exact - 1) > 1e-3


def test_the_number_of_units_decides_the_form() -> None:
    assert isinstance(SWITCHING["one"].part(), Rectified)
    two, three = SWITCHING["two"].part(), SWITCHING["three"].part()
    assert isinstance(two, Pieces) and isinstance(two.part, Rectified) and len(two.share) == 2
    assert isinstance(three, Pieces) and isinstance(three.part, Linear) and len(three.share) == 8
    for part in (two, three):
        torch.testing.assert_close(part.share.sum(0), torch.ones(1, 1, 1).double(), rtol=0, atol=1e-15)


def linear(d: int) -> Linear:
    """Boxes of three samples of five rows."""
    random, shape = numbers("parts", "linear", d), (3, 5, 1)
    centre, widths = random.normal(size=shape), random.uniform(0, 1, (*shape, d))
    return Linear(*map(torch.tensor, (centre, widths, random.uniform(0.3, 2, shape))))


def rectified(d: int) -> Rectified:
    """Units that are on, off and between; a width of zero among them."""
    random, shape = numbers("parts", "rectified", d), (3, 5, 1)
    widths = random.uniform(0.1, 1, (*shape, d))
    widths[0, 0] = 0
    sign, base, centre = random.choice([-1.0, 1.0], shape), random.normal(size=shape), 1.2 * random.normal(size=shape)
    return Rectified(*map(torch.tensor, (base, sign, centre, widths, random.uniform(0.3, 2, shape))))


PARTS = {f"{name}: switching": case.part() for name, case in SWITCHING.items()}
PARTS |= {f"Linear{d}": linear(d) for d in (1, 3, 8)} | {f"Rectified{d}": rectified(d) for d in (1, 4)}
parts = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


@parts
def test_the_density_is_the_derivative_of_the_cdf_and_rescaling_keeps_both(part: Part) -> None:
    low, high = part.reach
    assert float(part.cdf(low.amin(0)).max()) < 1e-12 and float(part.cdf(high.amax(0)).min()) > 1 - 1e-12
    for beyond in (low.amin(0) - 1e-6, high.amax(0) + 1e-6):
        assert (part.log_density(beyond) == -torch.inf).all()
    shift, scale = torch.tensor([20.0]).double(), torch.tensor([9.0]).double()
    other = part.rescale(shift, scale)
    torch.testing.assert_close(other.mean, shift + scale * part.mean)
    torch.testing.assert_close(other.variance, scale**2 * part.variance)
    torch.testing.assert_close(torch.cat(other.reach), shift + scale * torch.cat(part.reach))
    length = high - low
    step = 1e-5 * length.min()
    for share in (0.07, 0.33, 0.71):
        y = low[0] + share * (high[0] - low[0])
        slope = (part.cdf(y + step) - part.cdf(y - step)) / (2 * step)
        torch.testing.assert_close(part.log_density(y).exp(), slope, rtol=1e-4, atol=1e-6 / float(length.max()))
        moved = shift + scale * y
        torch.testing.assert_close(other.log_density(moved).exp(), part.log_density(y).exp() / 9, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.cdf(moved), part.cdf(y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("widths", [(1,), (2,), (2, 1)])
def test_each_point_of_a_batch_equals_its_own_quadrature(widths: tuple[int, ...]) -> None:
    """[draw, batch, output], with units that are on, off and between."""
    random, shape = numbers("several", "batch"), (4, 6, 1)
    normal = (random.normal(size=shape) for _ in range(2 + 2 * len(widths)))
    units = [Unit(*map(torch.tensor, (next(normal), next(normal), random.uniform(0, 1, (*shape, d))))) for d in widths]
    base, radius = torch.tensor(next(normal)), torch.tensor(random.uniform(0.3, 2, shape))
    part, y = of_units(base, units, radius), torch.tensor(random.normal(size=(6, 1)))
    densities = part.log_density(y).exp()
    for s, row in itertools.product(range(4), range(6)):
        parts = [(float(u.outgoing[s, row]), float(u.centre[s, row]), u.half_widths[s, row, 0].tolist()) for u in units]
        case = Case(parts, float(base[s, row]), float(radius[s, row]))
        assert float(densities[s, row]) == pytest.approx(case.density(float(y[row])), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("ratio", [0.0, 1e-9, 1e-3, 0.3, 0.5, 0.7, 1.0, 1.4, 1e3])
def test_the_pieces_of_noise_plus_a_uniform_equal_independent_sums(ratio: float) -> None:
    """Pieces of the density against corners in 400 digits, pieces of the distribution function against few_uniforms."""
    r, g = torch.tensor([0.8, 0.8 * ratio], dtype=torch.float64)
    noise = triangle_and_uniform(r, g)
    assert (noise.knots.diff() >= 0).all()
    height = min(1 / 0.8, 1 / (2 * float(g)) if ratio else math.inf)
    for k, share in itertools.product(range(5), (0.0, 0.3, 0.9)):
        x = share * (noise.knots[k + 1] - noise.knots[k])
        y, powers = float(noise.knots[k] + x), torch.stack([x**i for i in range(4)])
        exact = float(oracle.density(y, 0.0, [float(g)], float(r)))
        assert float(noise.density[k] @ powers[:3]) == pytest.approx(exact, abs=2e-12 * height)
        below = few_uniforms.triangular_cdf(torch.tensor(y, dtype=torch.float64), torch.zeros(()).double(), g[None], r)
        assert float(noise.cdf[k] @ powers) == pytest.approx(float(below), abs=2e-12)


def test_the_density_is_exact_and_continuous_where_knots_coincide() -> None:
    """Two units start to switch at a knot, and zero is one of the knots; one unit has its knot at the triangle's."""
    two = Case([(1.0, 0.0, [0.25, 0.25]), (1.0, 0.5, [0.5])], base=0.0, radius=1.0)
    for case in (two, Case([(1.0, 0.3, [0.7])], base=0.0, radius=1.0)):
        part = case.part()
        for y in (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5):
            assert density(part, y) == pytest.approx(case.density(y), rel=1e-10, abs=1e-12)
            assert density(part, y) == pytest.approx(density(part, y + 1e-9), abs=1e-8)


@pytest.mark.parametrize("case", SWITCHING.values(), ids=SWITCHING)
def test_the_quadrature_on_cells_agrees_with_a_dense_grid(case: Case) -> None:
    """The oracle itself, on the middles of 160³ cubes."""
    axis = (2 * np.arange(160) + 1) / 160 - 1
    output = case.output(np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3))
    for y in case.moments()[0] + np.array([-0.5, 0.2]):
        on_grid = np.maximum(case.radius - np.abs(y - output), 0).mean() / case.radius**2
        assert case.density(y) == pytest.approx(on_grid, rel=1e-4)


def test_noise_below_the_rounding_and_more_than_ten_weights_of_a_unit_are_refused() -> None:
    with pytest.raises(DataError, match="radius must be above the rounding"):
        density(Case(SWITCHING["two"].units, radius=1e-20).part(), 1.0)
    with pytest.raises(DataError, match="half_widths must be at most 10"):
        rectified(11).log_density(torch.zeros(5, 1))


def test_far_beyond_the_support_the_density_is_zero_and_the_cdf_zero_or_one() -> None:
    """So far out, knots round to the same number; one uniform has no width."""
    part = CASES["two: no width in the single one"].part()
    for y in (1e6, -1e9, 1e12):
        assert density(part, y) == 0 and cdf(part, y) == pytest.approx(float(y > 0), abs=1e-12)
