"""The log joint of a network's weights and its data, over one flat vector.

    log p(θ, D) = −(λ/2) ‖θ‖² + Σ_i log p(y_i | x_i, θ) + const
    log p(y | x, θ) = log softmax(f_θ(x))_y            for classes
                    = −(λ_n/2) ‖y − f_θ(x)‖² + const   for regression

(Korattikara et al. 2015, eqs. 1, 6 and 9.) With a temperature T other than 1 the gradient is that of log p(θ, D)/T, a
posterior colder (T < 1) or warmer than Bayes' (Wenzel et al. 2020). The network's parameters are views of the vector
and their gradients views of another, so that a step costs one vector operation per term, not one per layer.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..data.rows import Rows
from ..networks.convnet import BatchStatistics
from ..posterior import NetworkSpec
from ..seeds import Seed
from .sgld import Position


class NetworkJoint:
    """The joint density log p(θ, D) of a network, its gradient, and the way from names to the vector and back.

    Attributes:
        vector: θ [weight], the network's parameters one after another.
        start: the freshly initialised θ, a copy.
        batch_log_likelihood: mean log p(y | x, θ) of the last gradient's batch, for progress.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        rows: Rows,
        prior_precision: float,
        rng: Seed,
        temperature: float = 1.0,
    ) -> None:
        """Take transformed inputs [row, ...] and labels [row] or standardised targets [row, output] as ``rows``."""
        assert spec.likelihood != "gaussian_head", "a teacher's noise is λ_n"
        self.spec, self.prior_precision, self.temperature = spec, prior_precision, temperature
        self._rows = rows
        self._network = spec.build(rng).to(rows.device)
        self._shapes = {name: p.shape for name, p in self._network.named_parameters()}
        self.vector = torch.cat([p.detach().reshape(-1) for p in self._network.parameters()])
        self._gradient = torch.zeros_like(self.vector)
        self.start = self.vector.clone()
        self._last = torch.zeros(())
        for (name, parameter), value in zip(self._network.named_parameters(), self._views(self.vector), strict=True):
            assert parameter.shape == self._shapes[name]
            parameter.data = value
        for parameter, value in zip(self._network.parameters(), self._views(self._gradient), strict=True):
            parameter.grad = value

    def gradient(self, position: Position, index: Tensor) -> Position:
        """Return [∇ log p(θ) + (N/M) Σ_{i in index} ∇ log p(y_i | x_i, θ)] / T, as {"flat": [weight]}."""
        self.vector.copy_(position["flat"])
        self._gradient.zero_()
        inputs, targets = self._rows.take(index)
        mean = log_likelihood(self.spec, self._network(inputs), targets).mean()
        (mean * len(self._rows)).backward()  # (N/M) Σ = N · mean
        self._last = mean.detach()
        return {"flat": (self._gradient - self.prior_precision * position["flat"]).div_(self.temperature)}

    @property
    def batch_log_likelihood(self) -> float:
        return float(self._last)

    def named(self, flat: Float[Tensor, "draw weight"]) -> dict[str, Tensor]:
        """Turn vectors into the network's ``state_dict``, each entry [draw, ...]."""
        parts = flat.split([shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: part.reshape(-1, *shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    @torch.no_grad()
    def outputs(self, flat: Float[Tensor, " weight"], inputs: Tensor) -> Float[Tensor, "batch output"]:
        """Return f_θ of a batch, with the weights ``flat``."""
        self.vector.copy_(flat)
        return self._network(inputs)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes.values()])
        return [part.view(shape) for part, shape in zip(parts, self._shapes.values(), strict=True)]


def log_likelihood(
    spec: NetworkSpec, outputs: Float[Tensor, "batch output"], targets: Shaped[Tensor, "batch ..."]
) -> Float[Tensor, " batch"]:
    """Return log p(y | x, θ) of each row, without the constant of the Gaussian."""
    if spec.likelihood == "categorical":
        return -F.cross_entropy(outputs, targets, reduction="none")
    return -(targets - outputs).square().sum(-1) / (2 * spec.noise_variance)


def factorises(network: nn.Module) -> bool:
    """Say whether p(y | x, θ) of a row does not depend on the other rows of its batch.

    It does not where no layer normalises over them.
    """
    norms = (nn.modules.batchnorm._BatchNorm, BatchStatistics)
    return not any(isinstance(module, norms) for module in network.modules())
