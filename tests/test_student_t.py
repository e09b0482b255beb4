"""Mixtures of Student ts against SciPy, mpmath with fifty digits and draws; and networks that predict them."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import t
from torch import Tensor

from bdl_pipe import networks, recalibration
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.distribution import sample
from bdl_pipe.metrics.regression import crps
from bdl_pipe.posterior import NetworkDraws, NetworkSpec, Predictor
from bdl_pipe.predictive import Gaussian
from bdl_pipe.programs import trace
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT, degrees_of, free_of
from bdl_pipe.training.likelihood import OutputLikelihood, least_head, with_line
from tests.cases import CONFIGS, fit
from tests.refusals import refusal

DRAWS, ROWS, OUTPUTS = 3, 4, 2


def made(seed: int = 0, least: float = 2.5) -> StudentT:
    mean, squared, degrees = torch.rand(3, DRAWS, ROWS, OUTPUTS, generator=Seed(seed).generator(), dtype=torch.float64)
    return StudentT(4 * mean - 2, squared + 0.1, least + 6 * degrees)


def parts(of: StudentT) -> t:
    return t(of.degrees.numpy(), of.draw_mean.numpy(), of.squared_scale.sqrt().numpy())


def values(seed: int) -> Tensor:
    return 3 * torch.randn(ROWS, OUTPUTS, generator=Seed(seed).generator(), dtype=torch.float64)


def test_a_mixture_equals_the_mean_of_scipys_densities() -> None:
    ours, y = made(), values(1)
    theirs = parts(ours)
    np.testing.assert_allclose(ours.log_prob(y), np.log(theirs.pdf(y).prod(-1).mean(0)), rtol=1e-12)
    assert (ours.log_prob(y) - ours.draw_log_prob(y).mean(0)).min() > 1e-3  # wrong: the mean of the log densities
    np.testing.assert_allclose(ours.cdf(y), theirs.cdf(y).mean(0), rtol=1e-12)
    np.testing.assert_allclose(ours.variance, theirs.var().mean(0) + theirs.mean().var(0), rtol=1e-12)
    np.testing.assert_allclose(ours.cdf(ours.quantile(0.03)), 0.03, rtol=1e-9)
    moved = ours.rescale(torch.tensor([3.0, 0.0]), torch.tensor([2.0, 5.0]))
    own = torch.tensor([3.0, 0.0]) + torch.tensor([2.0, 5.0]) * y
    torch.testing.assert_close(moved.log_prob(own), ours.log_prob(y) - math.log(10))
    assert StudentT(ours.draw_mean, ours.squared_scale, 2.0).variance.isinf().all()


@pytest.mark.parametrize("degrees", [3.0, 40.0, 6e4])
def test_the_density_equals_fifty_digits(degrees: float) -> None:
    with mpmath.workdps(50):
        nu, z = mpmath.mpf(degrees), mpmath.mpf("1.7") / mpmath.sqrt(mpmath.mpf("0.3"))
        normaliser = mpmath.loggamma((nu + 1) / 2) - mpmath.loggamma(nu / 2) - mpmath.log(nu * mpmath.pi * 0.3) / 2
        exact = float(normaliser - (nu + 1) / 2 * mpmath.log(1 + z**2 / nu))
    one = torch.ones(1, 1, 1)
    ours = StudentT(one, 0.3 * one, degrees * one).log_prob(2.7 * one[0])
    assert float(ours) == pytest.approx(exact, rel=1e-6)  # in float32, also where both log Γ are large


def test_the_crps_equals_the_integral_by_scipy() -> None:
    ours, y = made(2), values(3)
    theirs, expected = parts(ours), 0.0
    for row in range(ROWS):
        for output in range(OUTPUTS):
            at = float(y[row, output])

            def below(z: float, row: int = row, output: int = output) -> float:
                return float(theirs.cdf(z)[:, row, output].mean())

            inner = [-5.0, 0.0, 5.0]
            expected += quad(lambda z: below(z) ** 2, -200, at, points=[p for p in inner if p < at], limit=200)[0]
            expected += quad(lambda z: (1 - below(z)) ** 2, at, 200, points=[p for p in inner if p > at], limit=200)[0]
    assert crps(ours, y).value == pytest.approx(expected / (ROWS * OUTPUTS), rel=1e-5)
    mixed = Mixture([recalibration.widened(ours, 1.0), recalibration.widened(ours, 1.0)], (0.3, 0.7))
    assert crps(mixed, y).value == pytest.approx(expected / (ROWS * OUTPUTS), rel=1e-5)
    gaussian = Gaussian(ours.draw_mean, ours.draw_variance)  # wrong: the tails of a Gaussian
    assert abs(crps(gaussian, y).value * ROWS * OUTPUTS / expected - 1) > 1e-3


def test_widths_and_draws_follow_the_mixture() -> None:
    ours, y = made(4), values(5)
    wide = recalibration.widened(ours, 1.7)
    assert isinstance(wide, StudentT)
    narrow = ours.mean + (y - ours.mean) / 1.7
    torch.testing.assert_close(wide.log_prob(y), ours.log_prob(narrow) - OUTPUTS * math.log(1.7))
    torch.testing.assert_close(wide.variance, 1.7**2 * ours.variance)
    drawn = sample(ours, 20_000, Seed(6))
    below = torch.stack([(drawn < level).double().mean(0) for level in (y,)])[0]
    # standard errors are at most .0036; 8 numbers within 4.5 of them: a false alarm once in 18,000 runs
    assert (below - ours.cdf(y)).abs().max() < 4.5 * 0.5 / math.sqrt(20_000)


def test_a_student_t_of_logarithms_becomes_gaussians_close_to_it() -> None:
    ours = made(7, least=3.0)
    far = torch.full((ours.draw_mean.shape[-1],), 1e6)
    torch.testing.assert_close(ours.gaussians(far).mean, ours.mean)
    torch.testing.assert_close(ours.gaussians(far).variance, ours.variance)
    z = np.linspace(-60, 60, 120_001)
    at = torch.from_numpy(z)[:, None]
    for degrees, most in ((3.1, 0.012), (6.0, 0.0012)):
        one = StudentT(torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double(), degrees)
        density = t(degrees).pdf(z)
        plain, mixture = Gaussian(one.draw_mean, one.draw_variance), one.gaussians(torch.full((1,), 1e6))
        logs = [of.log_prob(at).numpy() for of in (mixture, plain)]
        lost = [np.trapezoid(density * (np.log(density) - log), z) for log in logs]
        assert 0 < lost[0] < most < lost[1] / 10


def test_wide_student_ts_of_logarithms_have_no_gaussian_that_sets_the_mean() -> None:
    """Logarithms with scales of 0.1, 0.8 and 2, in units of 0.5 logarithms: 3.1 degrees, a sd of 1.68 scales."""
    squared = (torch.tensor([0.1, 0.8, 2.0]).double() / 0.5).square().reshape(1, 3, 1)
    ours = StudentT(torch.zeros_like(squared), squared, 3.1)
    free, bounded = (ours.gaussians(torch.tensor([most])).draw_variance.sqrt() * 0.5 for most in (1e6, 2.0))
    assert torch.equal(free[:, 0], bounded[:, 0]) and free[:, 0].max() < 1, "no Gaussian of this row is that wide"
    whole = ours.variance[:, 0].sqrt() * 0.5
    torch.testing.assert_close(bounded.amax(0)[1:, 0], torch.maximum(whole, torch.ones(3).double())[1:])
    means = [(of.square() / 2).exp().mean(0)[:, 0] for of in (free, bounded)]
    assert means[0][1] > 5 and means[1][1] < 2, "a Gaussian of this width has a mean of exp(z) of 2.5"


def test_networks_of_logarithms_have_moments_and_almost_the_density_of_their_student_ts() -> None:
    spec = NetworkSpec(networks.MlpConfig("mlp", (5,)), (2,), 1, "student_head", variance_floor=0.1)
    posterior = NetworkDraws.of(spec, [dict(spec.build(Seed(draw)).state_dict()) for draw in range(DRAWS)])
    rng, scale = np.random.default_rng(9), torch.tensor([0.5])
    rows = Examples(rng.standard_normal((40, 2)), np.exp(rng.standard_normal((40, 1))))
    transform = replace(Transform.of_targets(torch.tensor([0.5]), scale), log=True)
    plain = Predictor(posterior, transform)
    student = plain.transformed(rows.inputs, rng=Seed(0))
    assert isinstance(student, StudentT)
    targets = torch.from_numpy(rows.targets)
    by_gaussians = plain.final(student).log_prob(targets)
    by_student = Exponential(student.rescale(transform.shift, scale)).log_prob(targets)
    assert 0 < (by_gaussians - by_student).abs().mean() < 0.05
    learnt = recalibration.fit(iter([(slice(0, 40), student)]), rows, transform)
    assert len(learnt.factors) > 1
    fitted = Predictor(posterior, transform, recalibration=learnt)
    for predictor in (plain, fitted):
        own = predictor.final(student)
        assert own.mean.isfinite().all() and own.variance.isfinite().all()
        assert crps(own, targets).value < 10 and own.quantile(0.05).isfinite().all()
    # the shares are of the same mixture that predicts: no recalibration has a larger likelihood of these rows
    assert fitted.final(student).log_prob(targets).mean() > by_gaussians.mean()
    program = trace(fitted, torch.from_numpy(rows.inputs), rng=Seed(0))
    assert program.error < 1e-5


def test_a_network_of_three_outputs_and_a_likelihood_predict_student_ts() -> None:
    network = networks.MlpConfig("mlp", (5,))
    spec = NetworkSpec(network, (2,), OUTPUTS, "student_head", variance_floor=0.01)
    outputs = spec.build(Seed(1))(torch.randn(ROWS, 2, generator=Seed(2).generator()))
    assert outputs.shape == (ROWS, 3 * OUTPUTS)
    of = spec.predictive(outputs[None])
    assert isinstance(of, StudentT)
    mean, free, tails = outputs[None].split(OUTPUTS, dim=-1)
    torch.testing.assert_close(of.draw_mean, mean)
    torch.testing.assert_close(of.squared_scale, 0.01 + (1 + free.exp()).log())
    torch.testing.assert_close(of.degrees, 3 + 3 * tails.exp())
    torch.testing.assert_close(free_of(of.degrees), tails, rtol=1e-4, atol=1e-5)
    assert degrees_of(torch.tensor([-100.0, 100.0])).isfinite().all()
    likelihood = OutputLikelihood("regression", 0.3, "each input", "student")
    assert likelihood.width(OUTPUTS) == 3 * OUTPUTS
    torch.testing.assert_close(likelihood(outputs[None]).squared_scale, 0.3 * free.exp())


@pytest.mark.parametrize("floor", [None, 0.05])
def test_two_lines_of_held_out_rows_are_the_likeliest(floor: float | None) -> None:
    """Rows of a Student t of 4 degrees, whose outputs claim 3/5 of its scale and many degrees of freedom."""
    generator, rows = Seed(8).generator(), 400
    spec = NetworkSpec(networks.MlpConfig("mlp", (5,)), (2,), 1, "student_head", variance_floor=floor)
    weight, bias = torch.randn(3, 6, generator=generator), torch.tensor([0.2, -1.0, 3.0])
    features = torch.randn(rows, 6, generator=generator)
    predictive = spec.predictive((features @ weight.T + bias)[None])
    assert isinstance(predictive, StudentT)
    noise = torch.from_numpy(t(4).rvs((rows, 1), random_state=9))
    targets = predictive.draw_mean[0] + predictive.squared_scale[0].sqrt() / 0.6 * noise
    score, line = least_head([(predictive, targets)], floor)
    moved = with_line(weight, bias, line)

    def nll(line: tuple[Tensor, Tensor]) -> float:
        of = spec.predictive((features @ line[0].T + line[1])[None].double())
        return -float(of.log_prob(targets.double()).mean())

    assert nll(moved) == pytest.approx(score, abs=1e-5) and score < nll((weight, bias)) - 0.05
    for name in ("shift", "slope"):
        for block in range(2):
            for step in (-0.1, 0.1):
                other = {key: value.clone() for key, value in line.items()}
                other[name][block] += step
                inside = 0 <= float(other["slope"][block]) <= 1
                assert not inside or nll(with_line(weight, bias, other)) > score - 1e-5


def test_methods_that_need_gaussian_noise_refuse_a_trajectory_of_student_ts(tiny: dict[str, FitData]) -> None:
    table, images = tiny["regression"], tiny["classification"]
    trajectory = fit("sgd", "trajectory", table, tails="student")
    members = fit("ensemble", "student", table, {"trajectory": [trajectory]})
    assert isinstance(posterior_of(members).predict(table.tensors("validation")[0], rng=Seed(0)), StudentT)
    rule = "ConfigError: tails must be gaussian in the input: the "
    for method, why in (("kfac_laplace", "curvature is"), ("ciber_last", "integrals over weights are")):
        message = refusal(fit, method, "student", table, {"trajectory": [trajectory]})
        assert message == f"{rule}{why} of Gaussian noise, got 'student'"
    sampled = refusal(fit, "sgmcmc", "teacher", table, {"trajectory": [trajectory]})
    assert sampled == "ConfigError: input must be a trajectory of gaussian outputs, got 'student_head'"
    other = refusal(fit, "sgd", "trajectory", table, {"trajectory": [trajectory]})
    assert other == "ConfigError: tails must be the trajectory's, of a student_head, got 'gaussian'"
    classes = "ConfigError: tails must be gaussian: classes have no noise, got 'student'"
    network = CONFIGS["tabm", "regression"]["network"]
    assert refusal(fit, "tabm", "student", images, network=network, tails="student") == classes
    one = refusal(fit, "dropout", "student", table, noise="one", tails="student")
    assert one == "ConfigError: tails must be gaussian unless noise is each input, got 'student'"


def test_masks_of_dropout_are_a_mixture_of_student_ts_whose_estimate_moves_two_lines(tiny: dict[str, FitData]) -> None:
    table = tiny["regression"]
    learner = posterior_of(fit("dropout", "student", table, noise="each input", tails="student")).learner
    inputs = table.tensors("validation")[0]
    before = learner.predict(inputs, rng=Seed(3))
    line = {"shift": torch.tensor([0.7, 0.2]), "slope": torch.tensor([0.25, 0.5])}
    learner.load_state_dict(learner.with_estimated(learner.state_dict(), line))
    after = learner.predict(inputs, rng=Seed(3))
    assert isinstance(before, StudentT) and isinstance(after, StudentT) and len(before.draw_mean) > 1
    assert torch.equal(after.draw_mean, before.draw_mean) and before.degrees.std(1).min() > 0
    torch.testing.assert_close(after.squared_scale.log(), 0.7 + 0.25 * before.squared_scale.log(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(free_of(after.degrees), 0.2 + 0.5 * free_of(before.degrees), atol=1e-5, rtol=1e-4)
