"""Predictions of the generative layer at other class shares than the training rows', against Bayes' rule in SciPy."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import Generative
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed
from tests.cases import fit
from tests.refusals import refusal

from .generative_cases import WIDTH

SHARES = [0.7, 0.0, 0.3]
OF_FOUR = [0.7, 0.0, 0.2, 0.1]


def test_the_shares_replace_the_class_prior_in_bayes_rule(layer: Generative, features: Tensor) -> None:
    """Wrong: the training rows' shares stay in the product, or the shares count twice."""
    with torch.no_grad():
        predictive = layer.predict(features, class_shares=OF_FOUR)
        variance = layer.noise_variance + torch.exp(2 * layer.log_std)
        own = layer.class_log_probs.exp().numpy()
        unchanged = layer.predict(features, class_shares=own.tolist())
        before = layer.predict(features)
    densities = np.stack(
        [
            multivariate_normal.pdf(features.numpy(), mean.numpy(), np.diag(scale.numpy()))
            for mean, scale in zip(layer.mean.detach(), variance, strict=True)
        ],
        -1,
    )
    joint = densities * OF_FOUR
    np.testing.assert_allclose(predictive.mean, joint / joint.sum(-1, keepdims=True), rtol=1e-9)
    background = multivariate_normal.logpdf(features.numpy(), np.zeros(WIDTH), layer.feature_prior_variance.detach())
    np.testing.assert_allclose(predictive.scores["feature_density"], np.log(joint.sum(-1)) - background, rtol=1e-9)
    torch.testing.assert_close(unchanged.log_probs, before.log_probs)
    for wrong in (joint * own, joint * OF_FOUR):
        assert not np.allclose(predictive.mean, wrong / wrong.sum(-1, keepdims=True), atol=1e-3)


def test_a_posterior_predicts_at_other_shares(tiny_images: FitData) -> None:
    posterior = LastLayerPosterior.from_state(fit("g_vbll_bnn", "student", tiny_images, {}, rng=Seed(5)))
    inputs, _ = tiny_images.tensors("validation")
    before = posterior.predict(inputs, rng=Seed(1))
    after = posterior.predict(inputs, rng=Seed(1), class_shares=SHARES)
    assert isinstance(before, Categorical) and isinstance(after, Categorical)
    layer = posterior.learner.layer
    assert isinstance(layer, Generative)
    shifted = before.draw_log_probs + torch.tensor(SHARES).log() - layer.class_log_probs.detach()
    torch.testing.assert_close(after.draw_log_probs.exp(), shifted.softmax(-1), rtol=1e-3, atol=1e-5)
    assert (after.mean - before.mean).abs().max() > 0.1 and (after.mean[:, 1] == 0).all()
    assert torch.equal(posterior.predict(inputs, rng=Seed(1)).mean, before.mean)  # the posterior is not changed


@pytest.mark.parametrize(
    "shares", [[0.5, 0.5], [0.5, 0.6, 0.0, -0.1], [0.5, 0.5, 0.5, 0.0], [0.5, 0.5, 0.0, float("nan")]]
)
def test_shares_that_are_no_distribution_are_refused(shares: list[float], layer: Generative, features: Tensor) -> None:
    message = refusal(layer.predict, features, class_shares=shares)
    assert message == f"DataError: class_shares must be 4 numbers >= 0 with the sum 1, got {shares}"


def test_other_layers_refuse_class_shares(tiny_images: FitData) -> None:
    posterior = LastLayerPosterior.from_state(fit("d_vbll", "student", tiny_images, {}, rng=Seed(5)))
    inputs, _ = tiny_images.tensors("validation")
    message = refusal(posterior.predict, inputs, rng=Seed(0), class_shares=SHARES)
    assert message == "UserError: class_shares are for a generative last layer: other layers have no class prior"
