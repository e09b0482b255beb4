"""A posterior of networks against the networks themselves."""

import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import from_bytes, stack, to_bytes
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed

IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2), (2, 8, 8), 3, "categorical")
INPUTS = torch.randn(7, 3, generator=Seed(9).generator())


def spec_of(likelihood: str, noise_variance: float = 1.0) -> NetworkSpec:
    return NetworkSpec(MlpConfig("mlp", (4,)), (3,), 2, likelihood, noise_variance)  # type: ignore[arg-type]


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "gaussian_head"])
def test_each_draw_gives_the_predictions_of_its_network(likelihood: str) -> None:
    spec = spec_of(likelihood, 0.3)
    networks = [spec.build(Seed(s)) for s in range(3)]
    draws = NetworkDraws.of(spec, [n.state_dict() for n in networks])
    predictive = draws.predict(INPUTS)
    with torch.no_grad():
        outputs = torch.stack([n(INPUTS) for n in networks])
    if likelihood == "categorical":
        assert isinstance(predictive, Categorical)
        torch.testing.assert_close(predictive.draw_log_probs.exp(), torch.softmax(outputs, -1))
        return
    assert isinstance(predictive, Gaussian)
    torch.testing.assert_close(predictive.draw_mean, outputs[..., :2])
    expected = 0.3 * outputs[..., 2:].exp() if likelihood == "gaussian_head" else torch.full((3, 7, 2), 0.3)
    torch.testing.assert_close(predictive.draw_variance, expected)


def test_batch_norm_predicts_with_its_running_statistics() -> None:
    spec = NetworkSpec(ConvNetConfig("convnet", 4, 1), (1, 4, 4), 3, "categorical")
    network = spec.build(Seed(0)).train()
    images = torch.randn(8, 1, 4, 4, generator=Seed(1).generator()) * 3 + 1
    network(images)  # moves the running statistics
    draws = NetworkDraws.of(spec, [network.state_dict()])
    whole = draws.predict(images).mean
    single = torch.cat([draws.predict(image[None]).mean for image in images])
    torch.testing.assert_close(whole, single)  # the batch has no influence
    with torch.no_grad():
        torch.testing.assert_close(whole, torch.softmax(network.eval()(images), -1))
        assert not torch.allclose(whole, torch.softmax(network.train()(images), -1), atol=1e-2)


def convnets(count: int) -> list[dict[str, Tensor]]:
    return [IMAGES.build(Seed(s)).state_dict() for s in range(count)]


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_filters_are_reordered_in_memory_and_stored_as_given(norm: str) -> None:
    """Channels last except with instance norm; equal bytes whether the posterior was just made or read."""
    spec = NetworkSpec(ConvNetConfig("convnet", 4, 2, norm=norm), (2, 8, 8), 3, "categorical")  # type: ignore[arg-type]
    weights = stack([spec.build(Seed(s)).state_dict() for s in range(3)])
    draws = NetworkDraws(spec, weights)
    filters = [name for name, value in weights.items() if value.ndim == 5]
    assert len(filters) == 2
    for name in filters:
        assert all((draw.stride(1) == 1) == (norm == "batch") for draw in draws.weights[name])
    state = draws.state()
    assert all(torch.equal(value, weights[name]) and value.is_contiguous() for name, value in state.tensors.items())
    again = NetworkDraws.from_state(from_bytes(to_bytes(state)))
    assert to_bytes(again.state()) == to_bytes(state)
    images = torch.randn(5, 2, 8, 8, generator=Seed(1).generator())
    assert torch.equal(again.predict(images).mean, draws.predict(images).mean)


@pytest.mark.parametrize("other", [None, "trunk.1.running_mean", "trunk.0.weight"])
def test_a_common_trunk_is_computed_once(other: str | None) -> None:
    """A trunk that differs only in its statistics is not common; either way the outputs equal the networks' outputs."""
    heads = [{name: v for name, v in state.items() if name.startswith("head.")} for state in convnets(3)]
    draws = [convnets(1)[0] | head for head in heads]
    if other is not None:
        draws[1][other] = draws[1][other] + 0.5
    posterior, calls = NetworkDraws.of(IMAGES, draws), []
    images = torch.randn(5, 2, 8, 8, generator=Seed(1).generator())
    posterior._networks.module.trunk.register_forward_hook(lambda *_: calls.append(1))
    predictive, network = posterior.predict(images), IMAGES.build(Seed(0)).eval()
    assert len(calls) == (1 if other is None else 3)
    assert isinstance(predictive, Categorical)
    for number, draw in enumerate(draws):
        network.load_state_dict(draw)
        torch.testing.assert_close(predictive.draw_log_probs[number].exp(), torch.softmax(network(images), -1))
    assert not torch.allclose(predictive.draw_log_probs[0], predictive.draw_log_probs[1], atol=1e-2)
