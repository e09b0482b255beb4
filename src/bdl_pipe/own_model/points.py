"""The layers of a user's model that keep point weights when a method converts layers to random weights."""

import copy
import re
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..networks.base import WEIGHTED
from .trunk import ModuleTrunk


def points(trunk: ModuleTrunk, kind: str, probe: Float[Tensor, "row 1 1 width"]) -> list[str]:
    """Name the layers with matrices that the method ``kind`` cannot make random; the model itself has the name "".

    These are layers of unsupported types and, for ``ffg_w``, layers with a weight or bias that the model reads, since a
    converted layer has no such attribute: a torch encoder layer reads the weight for its fast path, a patch embedding
    for its type.
    """
    seen = _looked_at(trunk, probe) if kind == "ffg_w" else set()
    return [
        name
        for name, layer in trunk.module.named_modules()
        if any(weight.ndim > 1 for weight in layer.parameters(recurse=False))
        and (type(layer) not in WEIGHTED or name in seen)
    ]


def pattern(name: str) -> str:
    """Return a pattern that matches a layer's name in the network, and no other name."""
    return re.sub(r"([*?[])", r"[\1]", ".".join(filter(None, ("trunk.module", name))))


@final
class _Watched(nn.Module):
    """A layer that records whether code outside of it reads its tensors."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.looked_at = layer, False

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found

    def __getattr__(self, name: str) -> Any:
        if name not in ("weight", "bias"):
            return super().__getattr__(name)
        self.looked_at = True
        return getattr(self.layer, name)


@torch.no_grad()
def _looked_at(trunk: ModuleTrunk, probe: Tensor) -> set[str]:
    """Name the linear and convolutional layers with a weight or bias that the model reads in a pass of evaluation."""
    trunk = copy.deepcopy(trunk).eval()
    watched = {name: _Watched(m) for name, m in trunk.module.named_modules() if name and type(m) in WEIGHTED}
    for name, layer in watched.items():
        trunk.module.set_submodule(name, layer)
    trunk(probe.cpu())
    return {name for name, layer in watched.items() if layer.looked_at}
