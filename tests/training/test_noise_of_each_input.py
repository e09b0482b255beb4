"""A noise of each input, with SciPy as the oracle of the likelihoods."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.target import TargetConfig, row_log_likelihood
from bdl_pipe.training.likelihood import OutputLikelihood
from tests.cases import CONFIGS, WHOLE, fit
from tests.conftest import make_tiny_images
from tests.refusals import refusal

CLASSES = read(METHODS["bnn"].config, {**CONFIGS["bnn", "classification"], "noise": "each input"}, "methods.bnn")


def section(method: str) -> dict[str, Any]:
    return CONFIGS[method, "regression"]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=Seed(len(shape)).generator()).double()


def test_the_density_is_the_gaussian_with_the_outputs_mean_and_variance() -> None:
    likelihood = OutputLikelihood("regression", 0.3, "each input").double()
    likelihood.slope.fill_(0.6)
    outputs, targets = drawn(5, 7, 4), drawn(7, 2)
    mean, free = outputs.numpy()[..., :2], outputs.numpy()[..., 2:]
    each = norm(mean, np.exp((np.log(0.3) + 0.6 * free) / 2)).logpdf(targets.numpy()).sum(-1)
    log_prob = likelihood(outputs).log_prob(targets).detach()
    np.testing.assert_allclose(log_prob, np.log(np.exp(each).mean(0)), rtol=1e-6)


def test_the_density_of_a_chain_is_the_gaussian_with_the_outputs_mean_and_variance() -> None:
    spec = NetworkSpec(MlpConfig("mlp", (4,)), (3,), 2, "gaussian_head", noise_variance=0.3)
    outputs, targets = drawn(7, 4), drawn(7, 2)
    expected = norm(outputs[:, :2], (0.3 * outputs[:, 2:].exp()).sqrt()).logpdf(targets).sum(-1)
    log_likelihood = row_log_likelihood(spec, outputs, targets)  # without the constants of two outputs
    np.testing.assert_allclose(log_likelihood - np.log(2 * np.pi * 0.3), expected, rtol=1e-12)
    np.testing.assert_allclose(spec.predictive(outputs[None]).log_prob(targets), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bnn", "dropout", "ffg_u"])
def test_an_estimate_moves_the_log_variances_along_its_line_and_no_mean(method: str, tiny_table: FitData) -> None:
    learner = posterior_of(fit(method, "student", tiny_table, noise="each input")).learner
    rows = tiny_table.tensors("validation")[0]
    before = learner.predict(rows, rng=Seed(3))
    line = {"shift": torch.tensor(0.7), "slope": torch.tensor(0.25)}
    learner.load_state_dict(learner.with_estimated(learner.state_dict(), line))
    after = learner.predict(rows, rng=Seed(3))
    assert isinstance(before, Gaussian) and isinstance(after, Gaussian)
    assert before.draw_variance.std(1).min() > 0, "each input has its own"
    torch.testing.assert_close(after.draw_variance.log(), 0.7 + 0.25 * before.draw_variance.log(), atol=1e-5, rtol=1e-5)
    assert torch.equal(after.draw_mean, before.draw_mean)


def test_what_has_no_noise_of_each_input_is_refused(tiny_table: FitData) -> None:
    images, begun, each = make_tiny_images(40), fit("sgd", "trajectory", tiny_table), {"noise": "each input"}
    bnn = METHODS["bnn"].stages["student"].fit_one
    path, unlearnt = {"trajectory": [begun]}, {**section("ffg_u"), **each, "learn_noise": False}
    of_classes = "noise must be one: classes have no noise, got 'each input'"
    for message, begins in (
        (refusal(bnn, images, {}, CLASSES, rng=Seed(0), report=Silent()), of_classes),
        (refusal(TargetConfig(CLASSES.network, 1.0, 1.0, "each input").spec, images), f"target.{of_classes}"),
        (refusal(read, METHODS["ffg_u"].config, unlearnt, "ffg_u"),
         "ffg_u.learn_noise must be true if the noise is of each input, got False"),
        (refusal(fit, "dropout", "student", tiny_table, path, training=WHOLE, **each),
         "noise must be one with a trajectory as input"),
    ):  # fmt: skip
        assert message.startswith(f"ConfigError: {begins}")
