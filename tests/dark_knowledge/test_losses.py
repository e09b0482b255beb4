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
    by_hand = [stats.entropy(p) + stats.entropy(p, q) for p, q in zip(teacher, student.exp(), strict=True)]
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


def tabular_student(teacher_probs: torch.Tensor) -> torch.Tensor:
    """argmin over free logits of eq. 8 averaged over draws [draw, input, class]."""
    logits = torch.zeros(teacher_probs.shape[1:], dtype=DOUBLE, requires_grad=True)

    def loss():
        return torch.stack([classification_loss(logits.log_softmax(-1), p) for p in teacher_probs]).mean(0).sum()

    minimise(loss, [logits])
    return logits.detach().softmax(-1)


def test_the_classification_fixed_point_equals_the_mixture():
    """The softmax of averaged logits is another fixed point."""
    logits = 3 * random(20, 6, 4)
    mixture = logits.softmax(-1).mean(0)
    torch.testing.assert_close(tabular_student(logits.softmax(-1)), mixture, rtol=0, atol=1e-7)
    wrong = tabular_student(logits.mean(0, keepdim=True).softmax(-1))
    assert float((wrong - mixture).abs().max()) > 0.05


INPUTS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0]) + 5
TRAINING = HeldRows(INPUTS, INPUTS)


def test_noisy_inputs_have_the_stated_noise_variance():
    """χ² test of 20,000 residuals at a false-alarm rate of 1e-6; the rows are far apart against the noise."""
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 1e-3), TRAINING, 10_000, Seed(0))
    distance = torch.cdist(x, INPUTS)
    residual = (x - INPUTS[distance.argmin(1)]).double()
    assert stats.chi2.ppf(5e-7, 20_000) < float((residual / 1e-3).square().sum()) < stats.chi2.isf(5e-7, 20_000)
    assert len(distance.argmin(1).unique()) == 30


def test_uniform_inputs_are_uniform_in_the_widened_box():
    """Kolmogorov–Smirnov in each coordinate, at 1e-6 in all."""
    x = inputs.draw(inputs.UniformConfig("uniform_box", 0.25), TRAINING, 5000, Seed(0))
    low, high = INPUTS.amin(0), INPUTS.amax(0)
    for i in range(2):
        width = float(high[i] - low[i])
        test = stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]) - 0.25 * width, 1.5 * width).cdf)
        assert test.pvalue > 5e-7
        assert stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]), width).cdf).pvalue < 5e-7  # no margin


def test_inputs_repeat_at_one_seed_and_without_noise_are_training_rows():
    config = inputs.NoisyConfig("noisy_training", 0.1)
    first, second, other = (inputs.draw(config, TRAINING, 8, Seed(0).fold("x", t)) for t in (3, 3, 4))
    assert torch.equal(first, second) and not torch.equal(first, other)
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 0.0), TRAINING, 50, Seed(0))
    assert bool((x[:, None] == INPUTS).all(-1).any(1).all())


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


def test_inputs_that_do_not_fit_the_data_are_refused(tmp_path):
    np.savez(tmp_path / "more.npz", x=np.zeros((3, 7)))
    config = inputs.UnlabelledConfig("unlabelled", str(tmp_path / "more.npz"), 0.3, 0.0)
    with pytest.raises(DataError, match=r"more\.npz: array 'x' must be numbers \[n, 2\], got float64 \[3, 7\]"):
        inputs.Generator(config, cases.table())
    with pytest.raises(ConfigError, match=r"inputs\.name must not be augmented for rows of a table"):
        inputs.Generator(inputs.AugmentedConfig("augmented", AugmentConfig("all", {})), cases.table())
