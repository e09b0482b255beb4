"""Eqs. 8 and 11 against quadrature and closed forms, their exact fixed points; the student's inputs."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe.dark_knowledge import classification_loss, inputs, regression_loss
from bdl_pipe.data.augment import AugmentConfig
from bdl_pipe.data.fitdata import HeldRows
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from tests.sgmcmc import cases

DOUBLE = torch.float64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def minimise(loss, start: list[torch.Tensor]) -> None:
    """Newton-like descent of a smooth function to rounding."""
    optimiser = torch.optim.LBFGS(
        start, max_iter=500, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)


def test_the_classification_loss_equals_the_cross_entropy():
    teacher, student = random(5, 4).softmax(-1), random(5, 4, seed=1).log_softmax(-1)
    by_hand = [
        -sum(float(teacher[i, k]) * math.log(math.exp(float(student[i, k]))) for k in range(4)) for i in range(5)
    ]
    np.testing.assert_allclose(classification_loss(student, teacher).numpy(), by_hand, rtol=1e-12)


def test_the_regression_loss_equals_an_expected_negative_log_density():
    """Eq. 11 + ½ log 2π = E −log N(y; μ, e^α) over y ~ N(f, 1/λ_n), by 40-point Gauss–Hermite quadrature."""
    mean, log_variance, teacher = random(6, 2), random(6, 2, seed=1), random(6, 2, seed=2)
    precision = 3.7
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    y = teacher + torch.tensor(nodes)[:, None, None] / math.sqrt(precision)  # [node, batch, output]
    density = torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(y)
    expected = -(torch.tensor(weights / weights.sum())[:, None, None] * density).sum((0, 2))
    got = regression_loss(mean, log_variance, teacher, 1 / precision) + 2 * 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


class Conjugate:
    """Bayesian linear regression, y = xᵀw + N(0, 1/λ_n), w ~ N(0, I/λ), at seven new inputs.

    ``draws`` are 2d equally weighted points with exactly the posterior's mean and covariance, so that
    averages of quadratic functions of f are exact. The predictive is found another way, by conditioning
    the joint Gaussian of all targets.
    """

    noise, prior = 4.0, 2.0

    def __init__(self) -> None:
        x, self.new = random(12, 3), random(7, 3, seed=1)
        y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=DOUBLE) + random(12, seed=2) / math.sqrt(self.noise)
        precision = self.prior * torch.eye(3, dtype=DOUBLE) + self.noise * x.T @ x
        mean = torch.linalg.solve(precision, self.noise * x.T @ y)
        root = math.sqrt(3) * torch.linalg.cholesky(torch.linalg.inv(precision)).T  # rows √d L e_i
        self.draws = torch.cat([mean + root, mean - root])  # [draw, feature]
        outer = torch.linalg.inv(x @ x.T / self.prior + torch.eye(12, dtype=DOUBLE) / self.noise)
        cross = self.new @ x.T / self.prior
        self.mean = cross @ outer @ y
        self.epistemic = (self.new @ self.new.T / self.prior - cross @ outer @ cross.T).diagonal()

    def fixed_point(self, noise_variance: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and variance at which eq. 11, averaged over the draws, is least: a tabular student."""
        mean = torch.zeros(7, 1, dtype=DOUBLE, requires_grad=True)
        log_variance = torch.zeros(7, 1, dtype=DOUBLE, requires_grad=True)
        answers = (self.draws @ self.new.T)[..., None]  # [draw, input, output]

        def loss():
            each = [regression_loss(mean, log_variance, f, noise_variance) for f in answers]
            return torch.stack(each).mean(0).sum()

        minimise(loss, [mean, log_variance])
        return mean.detach()[:, 0], log_variance.detach().exp()[:, 0]


def test_the_regression_fixed_point_equals_the_exact_predictive():
    model = Conjugate()
    mean, variance = model.fixed_point(1 / model.noise)
    torch.testing.assert_close(mean, model.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(variance, model.epistemic + 1 / model.noise, rtol=1e-6, atol=0)


def test_without_noise_the_fixed_point_has_only_the_epistemic_variance():
    """With 1/λ_n = 0 in eq. 11 only Var f is left, which the test above would notice."""
    model = Conjugate()
    _, variance = model.fixed_point(0.0)
    torch.testing.assert_close(variance, model.epistemic, rtol=1e-5, atol=0)
    assert float((variance / (model.epistemic + 1 / model.noise)).max()) < 0.7


def tabular_student(teacher_probs: torch.Tensor) -> torch.Tensor:
    """argmin over free logits of eq. 8 averaged over draws [draw, input, class]."""
    logits = torch.zeros(teacher_probs.shape[1:], dtype=DOUBLE, requires_grad=True)

    def loss():
        return torch.stack([classification_loss(logits.log_softmax(-1), p) for p in teacher_probs]).mean(0).sum()

    minimise(loss, [logits])
    return logits.detach().softmax(-1)


def test_the_classification_fixed_point_equals_the_mixture():
    probs = (3 * random(20, 6, 4)).softmax(-1)
    torch.testing.assert_close(tabular_student(probs), probs.mean(0), rtol=0, atol=1e-7)


def test_averaged_logits_have_a_different_fixed_point():
    logits = 3 * random(20, 6, 4)
    wrong = tabular_student(logits.mean(0, keepdim=True).softmax(-1))
    assert float((wrong - logits.softmax(-1).mean(0)).abs().max()) > 0.05


INPUTS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0]) + 5
TRAINING = HeldRows(INPUTS, INPUTS)


def test_noisy_inputs_have_the_stated_noise_variance():
    """χ² test of 20,000 residuals at a false-alarm rate of 1e-6; the rows are far apart against the noise."""
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 1e-3), TRAINING, 10_000, Seed(0))
    distance = torch.cdist(x, INPUTS)
    residual = (x - INPUTS[distance.argmin(1)]).double()
    assert stats.chi2.ppf(5e-7, 20_000) < float((residual / 1e-3).square().sum()) < stats.chi2.isf(5e-7, 20_000)
    assert len(distance.argmin(1).unique()) == 30


def test_inputs_without_noise_are_training_rows():
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 0.0), TRAINING, 50, Seed(0))
    assert bool((x[:, None] == INPUTS).all(-1).any(1).all())


def test_uniform_inputs_are_uniform_in_the_widened_box():
    """Kolmogorov–Smirnov in each coordinate, at 1e-6 in all."""
    x = inputs.draw(inputs.UniformConfig("uniform_box", 0.25), TRAINING, 5000, Seed(0))
    low, high = INPUTS.amin(0), INPUTS.amax(0)
    for i in range(2):
        width = float(high[i] - low[i])
        test = stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]) - 0.25 * width, 1.5 * width).cdf)
        assert test.pvalue > 5e-7
        assert stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]), width).cdf).pvalue < 5e-7  # no margin


def test_inputs_repeat_at_one_seed_and_differ_at_another():
    config = inputs.NoisyConfig("noisy_training", 0.1)
    first, second, other = (inputs.draw(config, TRAINING, 8, Seed(0).fold("x", t)) for t in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


PICTURES = HeldRows(torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(20))


def test_augmented_inputs_are_flipped_training_images():
    config = inputs.AugmentedConfig("augmented", AugmentConfig("all", {"flip": 1.0}))
    x = inputs.draw(config, PICTURES, 50, Seed(0))
    assert bool((x.flip(-1)[:, None] == PICTURES.inputs).flatten(2).all(-1).any(1).all())


def test_unlabelled_inputs_come_from_the_file_at_the_stated_share(tmp_path):
    """Binomial test of 4,000 draws at a false-alarm rate of 1e-6; its rows are transformed as the data are."""
    data = cases.table()
    more = data.train.inputs[:5] + 100.0
    np.savez(tmp_path / "more.npz", x=more)
    config = inputs.UnlabelledConfig("unlabelled", str(tmp_path / "more.npz"), 0.3, 0.0)
    x = inputs.Generator(config, data).draw(4000, Seed(0))
    of_file = (x[:, None] == data.transform.inputs(more)).all(-1).any(1)
    of_training = (x[:, None] == data.tensors("train")[0]).all(-1).any(1)
    assert bool((of_file ^ of_training).all())
    assert stats.binomtest(int(of_file.sum()), 4000, 0.3).pvalue > 1e-6


def test_a_file_of_inputs_of_another_shape_is_refused(tmp_path):
    np.savez(tmp_path / "more.npz", x=np.zeros((3, 7)))
    config = inputs.UnlabelledConfig("unlabelled", str(tmp_path / "more.npz"), 0.3, 0.0)
    with pytest.raises(DataError, match=r"more\.npz: array 'x' must be numbers \[n, 2\], got float64 \[3, 7\]"):
        inputs.Generator(config, cases.table())


def test_augmentation_of_table_rows_is_refused():
    config = inputs.AugmentedConfig("augmented", AugmentConfig("all", {}))
    with pytest.raises(ConfigError, match=r"inputs\.name must not be augmented for rows of a table"):
        inputs.Generator(config, cases.table())
