"""A residual perceptron, as a network of the user's own (``docs/your-own-model.md``)."""

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """x₀ = Wx + b; x_{k+1} = x_k + a(W_k x_k + b_k), a the leaky ReLU of slope 0.01; then the head.

    Harrison, Willes & Snoek 2023, appendix G.1: "each hidden layer is added to the layer input". Initial weights are
    torch's.

    Args:
        input_shape: (feature,).
        width: the width of every hidden layer.
        hidden: the number of hidden layers.
    """

    def __init__(self, input_shape: tuple[int, ...], width: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_shape[0], width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(hidden))
        self.head = nn.Linear(width, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.first(inputs)
        for layer in self.hidden:
            x = x + torch.nn.functional.leaky_relu(layer(x))
        return self.head(x)
