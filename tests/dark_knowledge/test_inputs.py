"""The student data generator."""

import torch
from scipy import stats

from bdl_pipe.dark_knowledge import inputs
from bdl_pipe.data.rows import HeldRows
from bdl_pipe.seeds import Seed

INPUTS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0]) + 5
TRAINING = HeldRows(INPUTS, INPUTS)


def test_noisy_inputs_have_the_noise():
    """χ² test of 20,000 residuals at a false-alarm rate of 1e-6; the rows are far apart against the noise."""
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 1e-3), TRAINING, 10_000, Seed(0))
    distance = torch.cdist(x, INPUTS)
    residual = (x - INPUTS[distance.argmin(1)]).double()
    assert stats.chi2.ppf(5e-7, 20_000) < float((residual / 1e-3).square().sum()) < stats.chi2.isf(5e-7, 20_000)
    assert len(distance.argmin(1).unique()) == 30


def test_without_noise_they_are_training_rows():
    x = inputs.draw(inputs.NoisyConfig("noisy_training", 0.0), TRAINING, 50, Seed(0))
    assert bool((x[:, None] == INPUTS).all(-1).any(1).all())


def test_uniform_inputs_fill_the_box():
    """Kolmogorov–Smirnov in each coordinate, at 1e-6 in all."""
    x = inputs.draw(inputs.UniformConfig("uniform_box", 0.25), TRAINING, 5000, Seed(0))
    low, high = INPUTS.amin(0), INPUTS.amax(0)
    for i in range(2):
        width = float(high[i] - low[i])
        test = stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]) - 0.25 * width, 1.5 * width).cdf)
        assert test.pvalue > 5e-7
        assert stats.kstest(x[:, i].numpy(), stats.uniform(float(low[i]), width).cdf).pvalue < 5e-7  # no margin


def test_inputs_depend_on_the_address_alone():
    config = inputs.NoisyConfig("noisy_training", 0.1)
    first, second, other = (inputs.draw(config, TRAINING, 8, Seed(0).fold("x", t)) for t in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
