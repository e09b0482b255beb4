"""Dropout against masks written out by hand, and the exact average over all masks."""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from bdl_pipe import networks
from bdl_pipe.baselines.dropout import Dropout, DropoutConfig, DropoutPosterior, DropoutSpec
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import (
    ConvNetConfig,
    MlpConfig,
    NetworkConfig,
    PreResNetConfig,
    ResNetConfig,
    WideResNetConfig,
)
from bdl_pipe.seeds import Seed
from tests.baselines.cases import DECAYED, LEARN, fitted

CONFIG = DropoutConfig(MlpConfig("mlp", (6, 5)), LEARN, rate=0.3, draws=4, validation_draws=2)
CONVNET = dataclasses.replace(CONFIG, network=ConvNetConfig("convnet", 4, 2))


def learner(config: DropoutConfig = CONFIG) -> Dropout:
    """A regression of two outputs on three features."""
    return Dropout(DropoutSpec(config, (3,), 2, "regression"), Seed(5))


def of_images(config: DropoutConfig = CONVNET) -> Dropout:
    """Three classes of 8×8 images."""
    return Dropout(DropoutSpec(config, (1, 8, 8), 3, "classification"), Seed(5)).eval()


def rows(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def masks_of(made: Dropout, batch: int, seed: int = 4) -> dict[str, Tensor]:
    return {k: v[0] for k, v in made.noise(1, batch, torch.Generator().manual_seed(seed)).items()}


def by_hand(
    made: Dropout, inputs: Tensor, one: Tensor, two: Tensor, of: Callable[[Tensor], Tensor] = torch.relu
) -> Tensor:
    """The outputs of the MLP with masks [batch, unit] after its two activations."""
    state, kept = made.network.state_dict(), 1 - made.spec.config.rate
    for layer, mask in (("trunk.1", one), ("trunk.3", two)):
        inputs = of(inputs @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]) * mask / kept
    return inputs @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh"])
def test_a_mask_follows_every_activation(activation: str) -> None:
    model = learner(dataclasses.replace(CONFIG, network=MlpConfig("mlp", (6, 5), activation)))  # type: ignore[arg-type]
    inputs, masks = rows(7, 3), masks_of(model, 7)
    assert {k: tuple(v.shape) for k, v in masks.items()} == {"2": (7, 6), "4": (7, 5)}
    of = {"relu": torch.relu, "leaky_relu": torch.nn.LeakyReLU(), "tanh": torch.tanh}[activation]
    expected = by_hand(model, inputs, masks["2"], masks["4"], of)
    torch.testing.assert_close(model.outputs(inputs, masks), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "block"),
    [
        (ResNetConfig("resnet", 18), "stem"),
        (WideResNetConfig("wide_resnet", 10, 1), "group0_block0"),
        (PreResNetConfig("preresnet", 11), "group0_block0"),
    ],
    ids=["resnet", "wide_resnet", "preresnet"],
)
def test_a_network_whose_blocks_hide_activations_is_refused(network: NetworkConfig, block: str) -> None:
    with pytest.raises(ConfigError, match=rf"^network\.name must be a network with .* got the blocks {block}, "):
        of_images(dataclasses.replace(CONFIG, network=network))


def test_the_regression_loss_is_the_mean_nll_of_the_masked_outputs() -> None:
    model, inputs, targets = learner(), rows(7, 3), rows(7, 2, seed=3)
    with torch.no_grad():
        model.likelihood.log_variance.fill_(-0.4)
    masks = masks_of(model, 7)
    outputs = by_hand(model, inputs, masks["2"], masks["4"])
    deviation = torch.tensor(-0.4).exp().sqrt()
    expected = -Normal(outputs, deviation).log_prob(targets).sum(-1).mean()
    torch.testing.assert_close(model(inputs, targets, 91, masks), expected, atol=1e-6, rtol=1e-5)


def test_dropout_in_a_convnet_leaves_out_whole_channels() -> None:
    model, inputs, labels = of_images(), rows(7, 1, 8, 8), torch.arange(7) % 3
    masks = masks_of(model, 7)
    assert {k: tuple(v.shape) for k, v in masks.items()} == {"2": (7, 4), "6": (7, 8)}
    layers = list(model.network.trunk)
    first = torch.relu(layers[1](layers[0](inputs))) * masks["2"][:, :, None, None] / 0.7
    second = torch.relu(layers[5](layers[4](layers[3](first)))) * masks["6"][:, :, None, None] / 0.7
    logits = model.network.head(layers[7](second).flatten(1))
    expected = -Categorical(logits=logits).log_prob(labels).mean()
    torch.testing.assert_close(model(inputs, labels, 91, masks), expected, atol=1e-6, rtol=1e-5)


def test_each_row_step_and_activation_has_its_own_mask_and_the_rate_is_the_share_left_out() -> None:
    masks = learner().noise(20, 30, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for place, units in (("2", 6), ("4", 5)):
        assert torch.equal(masks[place], torch.rand(20, 30, units, generator=generator) >= 0.3)


@pytest.mark.parametrize(("rate", "right"), [(0.3, True), (0.4, False)], ids=["right", "control"])
def test_the_average_over_all_masks_equals_the_network_without_masks(rate: float, right: bool) -> None:
    """With one hidden layer the output is linear in its mask: outputs averaged over all 16 masks, weighted by their
    probabilities, equal the network without masks; weighted by the probabilities of another rate they do not."""
    model = learner(dataclasses.replace(CONFIG, network=MlpConfig("mlp", (4,))))
    inputs, total = rows(7, 3), torch.zeros(7, 2)
    for kept in itertools.product((False, True), repeat=4):
        probability = (1 - rate) ** sum(kept) * rate ** (4 - sum(kept))
        total += probability * model.outputs(inputs, {"2": torch.tensor([kept])})
    assert torch.allclose(total, model.network(inputs), atol=1e-5) == right


def test_a_draw_uses_one_mask_for_all_rows() -> None:
    model, inputs = learner(), rows(7, 3)
    predictive = model.predict(inputs, rng=Seed(9))
    assert predictive.draw_mean.shape == (4, 7, 2)
    for s in range(4):
        generator = Seed(9).fold("draw", s).generator()
        one, two = (torch.rand(1, 1, n, generator=generator)[0] >= 0.3 for n in (6, 5))
        torch.testing.assert_close(predictive.draw_mean[s], by_hand(model, inputs, one, two))
    torch.testing.assert_close(predictive.draw_variance, torch.ones(4, 7, 2))  # the initial noise variance
    torch.testing.assert_close(model.validate(inputs, rng=Seed(9)).draw_mean, predictive.draw_mean[:2])
    assert not torch.equal(model.predict(inputs, rng=Seed(8)).draw_mean, predictive.draw_mean)


def test_weight_decay_does_not_move_the_noise_variance() -> None:
    state = fitted(DropoutPosterior.fit, dataclasses.replace(CONFIG, noise_variance=0.1, training=DECAYED))
    fresh = networks.build(CONFIG.network, (4,), 1, rng=Seed(1).fold(0, "weights")).head.weight
    assert abs(state.tensors["likelihood.log_variance"].exp().item() - 0.1) < 1e-5
    assert (state.tensors["network.head.weight"] - fresh).abs().max() > 1e-4
