"""Layers and data that the tests of the last layers share, in float64."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)
FORMS: list[tuple[str, int | None]] = [("dense", None), ("diagonal", None), ("lowrank", 2)]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def perturbed(layer: Layer, scale: float = 0.3, seed: int = 5) -> Layer:
    """The layer in float64 with every parameter moved at random, so that none is at a special value."""
    layer = layer.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return layer


class Loss(nn.Module):
    """A module whose forward is the loss, as ``torch.func.functional_call`` wants it."""

    def __init__(self, layer: nn.Module, num_train: int) -> None:
        super().__init__()
        self.layer, self.num_train = layer, num_train

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        return self.layer.loss(features, targets, num_train=self.num_train)
