"""What the mean-field module leaves a point, and many of it at once; test_bnn holds its KL and draws to formulas."""

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from bdl_pipe import networks
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.variational import MeanField
from bdl_pipe.seeds import Seed


def shaken(module: MeanField, seed: int) -> MeanField:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


def mlp(seed: int = 0) -> MeanField:
    network = networks.build(MlpConfig("mlp", (7, 5)), (3,), 2, rng=Seed(seed))
    return shaken(MeanField(network, 0.05), seed)


def test_weights_of_normalisation_stay_points() -> None:
    network = networks.build(ConvNetConfig("convnet", 4, 1), (1, 8, 8), 0, rng=Seed(0))
    module = MeanField(network, 0.1)
    norm = next(name for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d))
    assert sorted(module.log_sd) == ["trunk/0/bias", "trunk/0/weight"]
    assert f"module.{norm}.weight" in dict(module.named_parameters())


def test_many_stacked_are_each_as_alone() -> None:
    modules = [mlp(s) for s in range(3)]
    inputs = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(2))
    noise = modules[0].draw(3, torch.Generator().manual_seed(1))
    parameters, buffers = stack_module_state(modules)
    stacked = vmap(lambda p, x, z: functional_call(modules[0], p, (x, z)))(parameters | buffers, inputs, noise)
    for m, module in enumerate(modules):
        alone = module(inputs[m], {k: v[m] for k, v in noise.items()})
        torch.testing.assert_close(stacked[m], alone, atol=1e-6, rtol=1e-5)
