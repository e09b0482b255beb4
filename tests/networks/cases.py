"""Images, numbers of parameters, and residual networks as lists of sizes, for tests of networks and conversions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bdl_pipe.seeds import Seed


def images(count: int, side: int = 8, channels: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(count, channels, side, side, generator=Seed(seed).generator())


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@dataclass(frozen=True)
class Plain:
    """A residual network as sizes: (d_out, d_in) of each convolution and of the head, and the channels of each norm."""

    convolutions: list[tuple[int, int]]
    norms: list[int]
    head: tuple[int, int]

    @property
    def weights(self) -> int:
        """The number of weights of the convolutions and the head, without biases."""
        return sum(rows * columns for rows, columns in [*self.convolutions, self.head])

    @property
    def kept(self) -> int:
        """The number of scales and shifts of the batch norms."""
        return 2 * sum(self.norms)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(d_out, d_in) of each converted layer, the head's bias counted as one more input."""
        return [*self.convolutions, (self.head[0], self.head[1] + 1)]


def plain(depth: int, classes: int = 10, channels: int = 3) -> Plain:
    """He et al. 2016, table 1, with a 3×3 stem: every block written out."""
    convolutions, norms, width = [(64, channels * 9)], [64], 64
    for group, blocks in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
        inner = 64 * 2**group
        for block in range(blocks):
            sizes = [(inner, 9), (inner, 9)] if depth == 18 else [(inner, 1), (inner, 9), (4 * inner, 1)]
            before = width
            for after, area in sizes:
                convolutions.append((after, width * area))
                norms.append(after)
                width = after
            if before != width or (group > 0 and block == 0):
                convolutions.append((width, before))
                norms.append(width)
    return Plain(convolutions, norms, (classes, width))
