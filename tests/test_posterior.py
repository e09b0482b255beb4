"""A posterior of networks against the networks themselves."""

import pytest
import torch

from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed

INPUTS = torch.randn(7, 3, generator=Seed(9).generator())


def spec_of(likelihood: str, noise_variance: float = 1.0) -> NetworkSpec:
    return NetworkSpec(MlpConfig("mlp", (4,)), (3,), 2, likelihood, noise_variance)  # type: ignore[arg-type]


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "gaussian_head"])
def test_each_draw_is_its_own_network(likelihood: str) -> None:
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
    expected = outputs[..., 2:].exp() if likelihood == "gaussian_head" else torch.full((3, 7, 2), 0.3)
    torch.testing.assert_close(predictive.draw_variance, expected)


def test_batch_norm_answers_with_its_running_statistics() -> None:
    spec = NetworkSpec(ConvNetConfig("convnet", 4, 1), (1, 4, 4), 3, "categorical")
    network = spec.build(Seed(0)).train()
    images = torch.randn(8, 1, 4, 4, generator=Seed(1).generator()) * 3 + 1
    network(images)  # moves the running statistics
    draws = NetworkDraws.of(spec, [network.state_dict()])
    whole = draws.predict(images).mean
    single = torch.cat([draws.predict(image[None]).mean for image in images])
    torch.testing.assert_close(whole, single)  # the batch at hand has no say
    with torch.no_grad():
        torch.testing.assert_close(whole, torch.softmax(network.eval()(images), -1))
        assert not torch.allclose(whole, torch.softmax(network.train()(images), -1), atol=1e-2)
