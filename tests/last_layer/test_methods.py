"""The fitted last-layer models: losses, priors, starts, predictions, refits and refused sections."""

from typing import Any

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer.generative import Generative
from bdl_pipe.last_layer.learner import LastLayerLearner, LastLayerSpec
from bdl_pipe.last_layer.methods import G_VBLL, G_VBLL_BNN, VBLL_BNN, LastLayerPosterior
from bdl_pipe.method import Method
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import FitResult
from tests.cases import CONFIGS, FEATURES, GAUSSIAN, MLP, fit

RNG = Seed(5).fold("member", 0)


def fitted(method: Method, data: FitData, inputs: Any = None, **changes: Any) -> State:
    return fit(method.name, "student", data, inputs or {}, rng=RNG, **changes)


def learner(features: dict[str, Any] | None, outputs: int = 1, task: str = "regression") -> LastLayerLearner:
    section = {"network": MLP, "input_shape": [4], "outputs": outputs, "task": task}
    section |= {"layer": GAUSSIAN | {"name": "gaussian"}, "features": features}
    return read(LastLayerSpec, section, "spec").build(Seed(1))


def divergence(drawn: Any, sd_of_prior: float) -> torch.Tensor:
    """The KL of the weights of a mean-field module from N(0, sd²), by torch.distributions."""
    pairs = [(mean, drawn.log_sd[name.replace(".", "/")].exp()) for name, mean in drawn.module.named_parameters()]
    return sum(kl_divergence(Normal(m, sd), Normal(torch.zeros_like(m), sd_of_prior)).sum() for m, sd in pairs)


def test_the_loss_of_variational_features_adds_their_kl() -> None:
    model, generator = learner(FEATURES), torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator)
    noise = {k: v[0] for k, v in model.noise(1, 6, generator).items()}
    fan_in = 4  # one hidden layer on four features
    kl = divergence(model.trunk, (4 / fan_in**0.5) ** 0.5)
    layer = model.layer.loss(model.trunk(inputs, noise), targets, num_train=50)
    torch.testing.assert_close(model(inputs, targets, 50, noise), layer + kl / 50, atol=1e-5, rtol=1e-5)


LINEAR = FEATURES | {"stochastic": "linear", "prior_variance": 0.01, "kl_weight": 0.5}


def test_a_gaussian_linear_layer_after_a_point_trunk_equals_torch_distributions() -> None:
    """Loss, prior, decay and prediction of the image models (Harrison et al. 2023, G.3), by torch.distributions."""
    model, generator = learner(LINEAR, 3, "classification"), torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(6, 4, generator=generator), torch.arange(6) % 3
    noise = {k: v[0] for k, v in model.noise(1, 6, generator).items()}
    assert {name: tuple(v.shape) for name, v in noise.items()} == {"weight": (8, 8), "bias": (8,)}
    assert model.linear is not None
    drawn = {k: m + model.linear.log_sd[k].exp() * noise[k] for k, m in model.linear.module.named_parameters()}
    features = model.trunk(inputs) @ drawn["weight"].T + drawn["bias"]
    expected = model.layer.loss(features, labels, num_train=50) + 0.5 * divergence(model.linear, 0.1) / 50
    torch.testing.assert_close(model(inputs, labels, 50, noise), expected, atol=1e-5, rtol=1e-5)
    decayed = {n for n, _ in model.named_parameters()} - model.undecayed()
    assert decayed == {"trunk.trunk.1.weight", "trunk.trunk.1.bias"}
    parts = [model.layer.predict(model.features(inputs, draw, Seed(2))).log_probs for draw in range(3)]
    predictive = model.eval().predict(inputs, rng=Seed(2))
    assert isinstance(predictive, Categorical) and (parts[0] - parts[1]).abs().max() > 1e-3
    torch.testing.assert_close(predictive.draw_log_probs, torch.stack(parts))


def test_weight_decay_applies_to_a_point_trunk_alone() -> None:
    names = {n for n, _ in learner(None).named_parameters()}
    assert names - learner(None).undecayed() == {"trunk.trunk.1.weight", "trunk.trunk.1.bias"}
    assert learner(FEATURES).undecayed() == {n for n, _ in learner(FEATURES).named_parameters()}


def test_the_prediction_is_the_mixture_over_drawn_trunks(tiny_table: FitData) -> None:
    posterior = LastLayerPosterior.from_state(fitted(VBLL_BNN, tiny_table, layer=GAUSSIAN))
    inputs, targets = tiny_table.tensors("validation")
    predictive, model = posterior.predict(inputs, rng=Seed(2)), posterior.learner
    with torch.no_grad():
        drawn = [model.layer.predict(model.features(inputs, draw, Seed(2))) for draw in range(3)]
        parts = [each.log_prob(targets).exp() for each in drawn]
    assert isinstance(predictive, Gaussian)
    assert (predictive.draw_mean[0] - predictive.draw_mean[1]).abs().max() > 1e-4
    expected = torch.stack(parts).mean(0).log()
    torch.testing.assert_close(predictive.log_prob(targets), expected, atol=1e-5, rtol=1e-5)


def test_a_refit_adds_a_density_and_keeps_the_class_probabilities(tiny_images: FitData) -> None:
    layer = CONFIGS["g_vbll", "classification"]["layer"]
    plain = LastLayerPosterior.from_state(fitted(G_VBLL, tiny_images, layer={**layer, "refit": False}))
    refitted = LastLayerPosterior.from_state(fitted(G_VBLL, tiny_images, layer={**layer, "refit": True}))
    inputs, labels = tiny_images.tensors("train")
    before, after = plain.predict(inputs, rng=Seed(0)), refitted.predict(inputs, rng=Seed(0))
    assert isinstance(before, Categorical) and isinstance(after, Categorical)
    assert torch.equal(before.log_probs, after.log_probs)
    assert {*before.scores} == {"feature_density"} and {*after.scores} == {"feature_density", "refit_density"}
    assert torch.equal(before.scores["feature_density"], after.scores["feature_density"])
    with torch.no_grad():
        features = plain.learner.features(inputs, 0, Seed(0))
        assert isinstance(plain.learner.layer, Generative)
        expected = plain.learner.layer.refit_noise([(features, labels)]).log_density(features)
    torch.testing.assert_close(after.scores["refit_density"], expected, atol=1e-2, rtol=1e-4)
    assert (before.scores["feature_density"] - after.scores["refit_density"]).abs().max() > 1.0


def test_the_feature_draws_of_a_refit_follow_the_seed_of_the_member(tiny_images: FitData) -> None:
    """With equal weights and variational features: another seed draws other features, an equal seed the same."""
    section = CONFIGS["g_vbll_bnn", "classification"]
    state = fitted(G_VBLL_BNN, tiny_images, layer={**section["layer"], "refit": True})
    spec = read(LastLayerSpec, state.config["spec"], "spec")
    weights = {k: v for k, v in state.tensors.items() if not k.startswith("refit.")}
    result = FitResult([weights], 1, 0.0)
    refits = [LastLayerPosterior.finish(spec, result, tiny_images, rng) for rng in (RNG, Seed(9), Seed(9))]
    assert torch.equal(refits[0]["refit.mean"], state.tensors["refit.mean"])
    assert not torch.equal(refits[1]["refit.mean"], refits[0]["refit.mean"])
    assert torch.equal(refits[2]["refit.mean"], refits[1]["refit.mean"])


@pytest.mark.parametrize("name", ["d_vbll", "g_vbll", "d_vbll_bnn"])
def test_a_fit_may_start_from_the_trunk_of_a_trajectory(name: str, tiny_images: FitData) -> None:
    trajectory = fit("sgd", "trajectory", tiny_images, rng=RNG)
    still = {"epochs": 1, "batch": 16, "optimiser": {"name": "sgd", "lr": 1e-12}}
    state = fitted(METHODS[name], tiny_images, {"trajectory": [trajectory]}, training=still)
    prefix = "trunk.module." if name.endswith("_bnn") else "trunk."
    for key, snapshots in trajectory.tensors.items():
        if key.endswith(("weight", "bias")) and key.startswith("trunk."):
            torch.testing.assert_close(state.tensors[prefix + key], snapshots[-1], atol=1e-6, rtol=1e-6)
    if name != "g_vbll":
        head = trajectory.tensors["head.weight"][-1]
        torch.testing.assert_close(state.tensors["layer.mean"], head, atol=1e-6, rtol=1e-6)
