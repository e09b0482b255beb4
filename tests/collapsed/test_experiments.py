"""The paper's figure 1 and analytic experiments: closed forms behind benchmarks/ciber_*.py; wrong variants fail."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from bdl_pipe.collapsed.integrals.piecewise import density_matched
from bdl_pipe.seeds import Seed
from benchmarks import ciber_figure1 as figure1
from benchmarks import ciber_figure2 as figure2
from benchmarks import ciber_integrals as integrals
from benchmarks import ciber_linear as linear
from benchmarks import ciber_toy as toy
from benchmarks.references import ciber_nuts as nuts

RNG = Seed(0).fold("test experiments")


def test_the_box_integral_of_example_4_equals_50_digit_values() -> None:
    """At five radii; the half of the weights where the unit is on against SciPy's quadrature."""
    assert float(integrals.nearest_radius()) == pytest.approx(density_matched(), rel=1e-13)
    for r in (0.8, 1.2, 2.0, math.sqrt(6), 7.0):
        exact = integrals.Example.of(mpf(r))
        assert integrals.by_box(r) == pytest.approx(float(exact.total), rel=1e-14)
        kinks = sorted({min(max(1 + sign * r, 0.0), 3.0) for sign in (-1, 0, 1)})
        on = quad(lambda w, r=r: max(0.0, (r - abs(1 - w)) / r**2) / 6, 0, 3, points=kinks, epsabs=1e-13)[0]
        assert float(exact.on) == pytest.approx(on, rel=1e-10)
    assert float(integrals.Example.of(mp.sqrt(6)).total) == pytest.approx(0.25547051268608525, rel=1e-15)


def test_only_one_variant_of_example_4_gives_the_printed_value() -> None:
    """0.164: the triangle of half the radius, only the weights where the unit is on; the stated setting differs."""
    hits = {
        (name, what)
        for name, r in integrals.radii().items()
        for what, value in integrals.variants(r).items()
        if abs(value - integrals.PAPER_P) <= 0.0005
    }
    assert hits == {("(√6)/2", "the half where the unit is on")}
    assert float(integrals.Example.of(mp.sqrt(6) / 2).on) == pytest.approx(0.163861, abs=1e-6)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 2.0), (1.8227, 1.0), (4.0, 4.0)])
def test_the_mean_sigmoid_under_a_gaussian_equals_adaptive_quadrature(mean: float, deviation: float) -> None:
    exact = integrals.gaussian_sigmoid(mean, deviation)
    by_scipy = quad(lambda z: expit(mean + deviation * z) * norm.pdf(z), -14, 14, epsabs=1e-13)[0]
    assert float(exact) == pytest.approx(by_scipy, abs=1e-12)
    if mean == 1.8227:
        assert float(exact) == pytest.approx(integrals.PAPER_I, abs=1e-5)
        with mp.workdps(integrals.DIGITS):  # mpmath's own adaptive rule
            ends = [mpf(k) for k in (-16, -4, 0, 4, 16)]
            other = mp.quad(lambda z: mp.npdf(z) / (1 + mp.exp(-(mpf(mean) + z))), ends)
            assert abs(exact - other) < mpf(10) ** -45
    assert abs(float(integrals.gaussian_sigmoid(mean, 1.05 * deviation)) - by_scipy) > 1e-5 or mean == 0


def gap(problem: linear.Problem, density: Callable[[linear.Problem, Tensor], Tensor]) -> Tensor:
    y = linear.grid(problem)
    return linear.divergence(y, linear.truth(problem, y), density(problem, y))


def test_the_divergence_of_one_monte_carlo_sample_equals_its_closed_form() -> None:
    """KL(N(0, 1 + s²) ‖ N(f, 1)) = (s² + f² - log(1 + s²))/2; the other direction differs."""
    for spread in (0.25, 1.0, 4.0):
        problem = linear.isotropic(3, spread, 1, 20, RNG)
        closed = (spread**2 + problem.f[:, 0] ** 2 - math.log1p(spread**2)) / 2
        torch.testing.assert_close(gap(problem, linear.monte_carlo), closed, rtol=1e-6, atol=1e-8)
        y = linear.grid(problem)
        back = linear.divergence(y, linear.monte_carlo(problem, y), linear.truth(problem, y))
        assert ((back - closed).abs() > 1e-3 * closed).all()


def test_the_divergence_of_the_fitted_gaussian_equals_its_closed_form() -> None:
    problem = linear.isotropic(2, 2.0, 5, 20, RNG)
    true, spread = problem.deviation**2, 1 + problem.f.var(1)
    closed = (true / spread + problem.f.mean(1) ** 2 / spread - 1 + (spread / true).log()) / 2
    torch.testing.assert_close(gap(problem, linear.fitted), closed, rtol=1e-6, atol=1e-9)


def test_the_total_variation_of_shifted_gaussians_equals_its_closed_form() -> None:
    """2Φ(shift/2) - 1, and 1 where they do not meet."""
    y = torch.linspace(-40, 40, 20_001, dtype=torch.float64)[None]
    one = torch.ones(1, 1, dtype=torch.float64)
    for shift in (0.3, 2.0, 30.0):
        gap = linear.variation(y, linear.gaussian(y, 0 * one, one), linear.gaussian(y, shift * one, one))
        assert float(gap) == pytest.approx(2 * norm.cdf(shift / 2) - 1, abs=1e-6)


@pytest.mark.parametrize("match", ["variance", "density"])
def test_the_box_density_has_mass_one_and_its_known_moments(match: str) -> None:
    """Mass, mean, variance Σh²/3 + r²/6 by the sum on the grid; r²/6 is 1 only if the radius matches the variance."""
    problem = linear.isotropic(2, 1.0, 5, 20, RNG)
    y, box = linear.grid(problem), linear.Box.of(problem)
    q = box.log_density(y, match).exp()
    reach = linear.radius(1.0, match)
    mass, mean = torch.trapezoid(q, y, dim=-1), torch.trapezoid(q * y, y, dim=-1)
    second = torch.trapezoid(q * (y - mean[:, None]) ** 2, y, dim=-1)
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=1e-5, atol=0)
    torch.testing.assert_close(mean, box.centre, rtol=0, atol=1e-5)
    torch.testing.assert_close(second, box.variance + reach**2 / 6, rtol=1e-3, atol=0)
    assert ((second - box.variance - 1).abs() > 0.05).all() == (match == "density")


def test_the_deviation_of_a_line_equals_the_function_space_form() -> None:
    """The deviation of f, also against the deviation of its samples."""
    problem = linear.line(3, 0.5, 40_000, 4, RNG)
    spread = problem.f.std(1)
    torch.testing.assert_close(spread, problem.spread, rtol=0.02, atol=0)  # 6 standard errors
    random = RNG.fold("line", 3).generator()
    inputs = 2 * torch.rand(4, 3, generator=random, dtype=torch.float64) - 1
    at = 4 * torch.rand(4, generator=random, dtype=torch.float64) - 2
    for row, x, spread_of_row in zip(inputs.numpy(), at.numpy(), problem.spread.tolist(), strict=True):
        kernel = (1 + row * x) @ np.linalg.solve(1 + np.outer(row, row) + 0.25 * np.eye(3), 1 + row * x)
        assert spread_of_row == pytest.approx(math.sqrt(1 + x * x - kernel) / 0.5, rel=1e-10)  # the function-space form


def toy_weights(count: int) -> np.ndarray:
    return RNG.fold("toy").numpy().standard_normal((count, toy.WEIGHTS)) * toy.prior_sd()


def test_the_toy_network_and_its_log_joint_match_torch_and_scipy() -> None:
    """Functions equal torch's; log joints differ from SciPy's by one constant, except with another noise."""
    weights, x = toy_weights(6), np.linspace(-1, 1, 7)
    first, bias, middle, shift, last = (torch.from_numpy(a) for a in toy.parts(weights))
    hidden = (torch.from_numpy(x)[None, :, None] * first[:, None] + bias[:, None]).relu()
    hidden = torch.stack([torch.nn.functional.linear(h, m, s) for h, m, s in zip(hidden, middle, shift, strict=True)])
    f = torch.einsum("dxu,du->dx", hidden.relu(), last).numpy()
    np.testing.assert_allclose(toy.functions(weights, x), f, rtol=1e-12)
    inputs, targets = toy.data(Seed(0), 0.2)
    fits = norm.logpdf(targets, toy.functions(weights, inputs), 0.2).sum(1)
    density = fits + norm.logpdf(weights, 0, toy.prior_sd()).sum(1)
    for noise, same in ((0.2, True), (0.3, False)):
        whitened = weights / toy.prior_sd()
        ours = [nuts.log_joint(w, inputs, targets, toy.prior_sd(), noise, np) for w in whitened]
        assert (np.ptp(density - ours) < 1e-9) == same


def test_the_collapsed_last_layer_equals_the_average_over_its_box() -> None:
    """CIBER's density against 40,000 draws of the box at 8 points, a false alarm in 1e-6; the plain mixture fails."""
    weights, x, y = 0.5 * toy_weights(3), np.array([0.3, -0.8]), np.array([-0.4, 0.0, 0.3, 0.8])
    got = figure2.collapsed(weights, x, y, 0.5)
    last = toy.parts(weights)[4]
    random, reach = RNG.fold("draws").numpy(), 0.5 * math.sqrt(6)
    drawn = random.uniform(last.min(0), last.max(0), (40_000, toy.HIDDEN))
    z = toy.features(weights, x)
    f = np.einsum("nu,sxu->nsx", drawn, z)[..., None]
    triangles = np.maximum(reach - np.abs(y - f), 0).mean(1) / reach**2  # [draw, x, y]
    spread = triangles.std(0) / math.sqrt(len(drawn))
    half = (last.max(0) - last.min(0)) / 2
    centre, variance = z @ ((last.max(0) + last.min(0)) / 2), ((half * z) ** 2).sum(-1) / 3 + 0.25
    tail = norm.pdf(y, centre[..., None], np.sqrt(variance)[..., None]).mean(0)
    expected = 0.99 * triangles.mean(0) + 0.01 * tail
    assert (np.abs(got - expected) < norm.isf(5e-7 / 8) * spread).all()
    assert (np.abs(figure2.mixture(weights, x, y, 0.5) - expected) > norm.isf(5e-7 / 8) * spread).any()


def test_aligning_units_keeps_functions_and_undoes_a_permutation() -> None:
    weights, aligned, grid = toy_weights(4), figure2.aligned, figure2.GRID
    np.testing.assert_allclose(toy.functions(aligned(weights), grid), toy.functions(weights, grid))
    first, bias, middle, shift, last = toy.parts(weights[:1])
    order = RNG.fold("order").numpy().permutation(toy.HIDDEN)
    other = [first, bias, middle[:, order].reshape(1, -1), shift[:, order], last[:, order]]
    pair = np.concatenate([weights[:1], np.concatenate(other, 1)])
    assert not np.allclose(pair[0], pair[1])
    back = toy.features(aligned(pair), grid) * toy.parts(aligned(pair))[4][:, None]
    np.testing.assert_allclose(back[1], back[0], atol=1e-12)


def test_scores_of_gaussians_equal_their_closed_forms() -> None:
    """The truth, a shift and a double deviation: W₁, KL, coverage of the 90 % interval, relative width."""
    y = np.linspace(-14, 14, 281)
    truth = figure2.gaussians(y, np.array([0.0, 0.0, 0.0]), 1.0)
    densities = figure2.gaussians(y, np.array([0.0, 0.7, 0.0]), np.array([1.0, 1.0, 2.0]))
    scores = figure2.score(truth, densities, y)
    np.testing.assert_allclose(scores["W₁"], [0, 0.7, math.sqrt(2 / math.pi)], atol=2e-3)
    np.testing.assert_allclose(scores["KL"], [0, 0.7**2 / 2, math.log(2) + 1 / 8 - 1 / 2], atol=1e-6)
    reach = norm.isf(0.05)
    covered = [norm.cdf(reach + m) - norm.cdf(-reach + m) for m in (0.0, 0.7)]
    covered.append(norm.cdf(2 * reach) - norm.cdf(-2 * reach))
    np.testing.assert_allclose(scores["coverage"], covered, atol=2e-3)
    np.testing.assert_allclose(scores["width"], [1, 1, 2], atol=5e-3)


@pytest.mark.parametrize("noise", toy.NOISES)
def test_the_stored_nuts_reference_has_converged_on_the_data_of_its_seed(noise: float) -> None:
    """Converged by R-hat; walks spread less than independent draws; residuals are far smaller than under the prior."""
    reference = toy.read_reference(noise)
    about, (x, y) = reference.about, toy.data(Seed(0), noise)
    np.testing.assert_array_equal(reference.x, x)
    np.testing.assert_allclose(reference.y, y, rtol=1e-6, atol=1e-9)  # sines of processors differ in the last digit
    assert reference.weights.shape == (2000, 140) and reference.runs.shape == reference.walks.shape == (40, 10, 140)
    assert about["r_hat_max"] < 1.01 and about["ess_min"] > 1000 and about["divergences"] <= 20
    deviations = [block.std(1).mean() for block in (reference.walks, reference.runs)]
    assert 0.01 < deviations[0] < deviations[1] / 3
    residuals = (y - toy.functions(reference.weights, x)) / noise
    assert (residuals**2).sum(1).mean() < 30  # of ten rows
    prior = (y - toy.functions(toy_weights(500), x)) / noise
    assert (prior**2).sum(1).mean() > 100


LIKELIHOODS = [None, "variance", "density"]


def reach(match: str) -> float:
    return math.sqrt(6) if match == "variance" else density_matched()


def tri(u: float, match: str | None) -> float:
    """Return the density at u."""
    return float(norm.pdf(u)) if match is None else max(0.0, 1 - abs(u) / reach(match)) / reach(match)


@pytest.mark.parametrize("match", LIKELIHOODS)
def test_densities_of_y_agree_with_adaptive_quadrature(match: str | None) -> None:
    """Closed form, 50 digits and SciPy's quadrature agree; the half where the unit is off is large enough to matter."""
    likelihood = figure1.Likelihood(match)
    for y in (-1.3, 0.4, 2.0, 4.1):
        bends = [] if match is None else [y - reach(match), y, y + reach(match)]
        inside = sorted({0.0, *(w for w in bends if -3 < w < 3)})
        slow = quad(lambda w, y=y: tri(y - max(w, 0), match) / 6, -3, 3, points=inside, epsabs=1e-12)[0]
        with mp.workdps(figure1.DIGITS):
            gap = abs(figure1.closed(likelihood, y) - figure1.by_quadrature(likelihood, y))
        assert gap < mp.mpf(10) ** -30
        assert float(figure1.by_quadrature(likelihood, y)) == pytest.approx(slow, rel=1e-6)
        if match is not None:
            assert figure1.density_of(match, y) == pytest.approx(float(figure1.closed(likelihood, y)), rel=1e-13)
        assert tri(y, match) / 2 > 1e-3 * slow or y > 4  # the half where the unit is off must matter


@pytest.mark.parametrize("match", LIKELIHOODS)
def test_the_mean_is_three_quarters(match: str | None) -> None:
    """In 50 digits, from the library and from the sum of the drawn surface; without the ReLU, f = w, the sum is 0."""
    with mp.workdps(figure1.DIGITS):
        assert abs(figure1.mean_by_quadrature(figure1.Likelihood(match)) - mp.mpf(3) / 4) < mp.mpf(10) ** -40
    if match is not None:
        assert float(figure1.exact(match).mean) == pytest.approx(0.75, abs=1e-15)
    density = list(figure1.densities().values())[LIKELIHOODS.index(match)]
    w, y = np.linspace(-3, 3, 301), np.linspace(-9, 12, 2101)
    drawn = np.trapezoid(np.trapezoid(figure1.surface(density, w, y), y), w)
    assert drawn == pytest.approx(0.75, abs=2e-4)
    linear = y * density(y - w[:, None]) / 6
    assert np.trapezoid(np.trapezoid(linear, y), w) == pytest.approx(0, abs=2e-4)


def test_peaks_and_pits_are_counted_as_connected_parts() -> None:
    """Two hills are two parts, a ridge along the diagonal of the grid is one, and a pit is counted apart from hills."""
    x, y = np.meshgrid(np.linspace(-4, 4, 81), np.linspace(-4, 4, 81))
    hill = np.exp(-(x**2) - y**2)
    assert figure1.parts(hill - 0.5 * np.exp(-((x - 3) ** 2) - y**2)) == (1, 1)
    two = np.exp(-((x - 2) ** 2) - y**2) + np.exp(-((x + 2) ** 2) - y**2)
    assert figure1.parts(two - 0.1 * hill)[0] == 2
    ridge = np.eye(81) * np.linspace(0.1, 1, 81)[:, None]
    assert figure1.parts(ridge - 0.1 * hill)[0] == 1


@pytest.mark.soak
@pytest.mark.slow
def test_the_page_lists_every_likelihood_and_the_picture_is_drawn(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figure1, "PAGES", tmp_path)
    figure1.draw(figure1.densities())
    assert (tmp_path / "figure1.png").stat().st_size > 10_000
    rows, worst = figure1.values()
    assert len(rows) == len(figure1.POINTS) and worst < 1e-13
    text = "\n".join(figure1.page(rows, worst))
    assert all(f"| {name} | " in text for name in (figure1.GAUSSIAN, *figure1.LIKELIHOODS)) and "TODO" not in text
