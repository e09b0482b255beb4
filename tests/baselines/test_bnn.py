"""Bayes by backprop against torch.distributions and explicit loops."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.func import functional_call

from bdl_pipe import networks
from bdl_pipe.baselines.bnn import Bnn, BnnConfig, BnnPosterior, BnnSpec
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.variational import MeanField
from bdl_pipe.seeds import Seed
from tests.baselines.cases import DECAYED, LEARN, STILL, fitted
from tests.last_layer.cases import draw, perturbed

CONFIG = BnnConfig(MlpConfig("mlp", (6, 5)), LEARN, "all", initial_sd=0.1, draws=4, validation_draws=2)


def learner(outputs: int = 2, task: str = "regression", **changes: object) -> Bnn:
    """A float64 learner of three features with noise added to every parameter."""
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    return perturbed(Bnn(BnnSpec(config, (3,), outputs, task), Seed(5)), 0.2, seed=1)  # type: ignore[arg-type]


def first(noise: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[0].double() for name, value in noise.items()}


def drawn(made: Bnn, noise: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights m + s·ε by their names in the random module."""
    means = dict(made.random.module.named_parameters())
    return {k.replace("/", "."): means[k.replace("/", ".")] + s.exp() * noise[k] for k, s in made.random.log_sd.items()}


def divergence(made: Bnn, variance: dict[str, float]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for name, prior in variance.items():
        q = Normal(dict(made.random.module.named_parameters())[name], made.random.log_sd[name.replace(".", "/")].exp())
        total += kl_divergence(q, Normal(torch.zeros_like(q.mean), math.sqrt(prior))).sum()
    return total


def test_the_regression_loss_is_the_mean_nll_plus_the_weighted_kl_per_row() -> None:
    model, inputs, targets = learner(kl_weight=0.7), draw(2, 7, 3), draw(3, 7, 2)
    noise = first(model.noise(1, 7, torch.Generator().manual_seed(4)))
    outputs = functional_call(model.random.module, drawn(model, noise), (inputs,))
    fan_in = {"trunk.1": 3, "trunk.3": 6, "head": 5}
    prior = {f"{k}.{p}": 4 / math.sqrt(n) for k, n in fan_in.items() for p in ("weight", "bias")}
    likely = Normal(outputs, (model.likelihood.log_variance / 2).exp()).log_prob(targets).sum(-1).mean()
    expected = -likely + 0.7 * divergence(model, prior) / 91
    torch.testing.assert_close(model(inputs, targets, 91, noise), expected, atol=1e-10, rtol=1e-12)


def test_the_class_loss_of_a_random_head_is_the_mean_nll_plus_the_kl_per_row() -> None:
    model, inputs = learner(3, "classification", stochastic="head"), draw(2, 7, 3)
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    noise = first(model.noise(1, 7, torch.Generator().manual_seed(4)))
    assert sorted(noise) == ["bias", "weight"]  # the trunk is a point
    weights = drawn(model, noise)
    logits = model.fixed(inputs) @ weights["weight"].T + weights["bias"]
    kl = divergence(model, {"weight": 0.01, "bias": 0.01})
    expected = -Categorical(logits=logits).log_prob(labels).mean() + kl / 91
    torch.testing.assert_close(model(inputs, labels, 91, noise), expected, atol=1e-10, rtol=1e-12)
    assert not any("likelihood" in name for name in model.state_dict())


def test_each_draw_predicts_as_a_plain_network_with_the_drawn_weights() -> None:
    model, inputs = learner(), draw(2, 7, 3)
    predictive = model.predict(inputs, rng=Seed(9))
    assert predictive.draw_mean.shape == (4, 7, 2)
    for k in range(4):
        noise = first(model.random.draw(1, Seed(9).fold("draw", k).generator()))
        plain = networks.build(CONFIG.network, (3,), 2, rng=Seed(0)).double()
        plain.load_state_dict(drawn(model, noise))
        torch.testing.assert_close(predictive.draw_mean[k], plain(inputs))
    expected = model.likelihood.log_variance.exp().expand(4, 7, 2)
    torch.testing.assert_close(predictive.draw_variance, expected)
    torch.testing.assert_close(model.validate(inputs, rng=Seed(9)).draw_mean, predictive.draw_mean[:2])
    assert not torch.equal(model.predict(inputs, rng=Seed(8)).draw_mean, predictive.draw_mean)


@pytest.mark.parametrize(("stochastic", "moved"), [("all", set()), ("head", {"fixed.1.weight", "fixed.3.weight"})])
def test_weight_decay_moves_only_the_weights_of_a_fixed_trunk(stochastic: str, moved: set[str]) -> None:
    config = dataclasses.replace(CONFIG, stochastic=stochastic)
    configs = [dataclasses.replace(config, training=training) for training in (DECAYED, STILL)]
    with_decay, without = (fitted(BnnPosterior.fit, each) for each in configs)
    far = {k for k, v in without.tensors.items() if (v - with_decay.tensors[k]).abs().max() > 1e-4}
    assert far == moved


def test_normalisation_weights_stay_point_estimates() -> None:
    network = networks.build(ConvNetConfig("convnet", 4, 1), (1, 8, 8), 0, rng=Seed(0))
    module = MeanField(network, 0.1)
    norm = next(name for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d))
    assert sorted(module.log_sd) == ["trunk/0/bias", "trunk/0/weight"]
    assert f"module.{norm}.weight" in dict(module.named_parameters())
