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
from ..networks.flat import FlatNetwork
from ..posterior import NetworkSpec
from ..seeds import Seed
from .sgld import Position


class NetworkJoint:
    """The joint density log p(θ, D) of a network, and its gradient.

    Attributes:
        network: the network, whose parameters are views of ``vector``.
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
        self.network = FlatNetwork(spec.build(rng).to(rows.device))
        self.vector = self.network.flat(self.network.network.state_dict())
        self._gradient = torch.zeros_like(self.vector)
        self.start = self.vector.clone()
        self._last = torch.zeros(())
        self.network.tie(self.vector, self._gradient)

    def gradient(self, position: Position, index: Tensor) -> Position:
        """Return [∇ log p(θ) + (N/M) Σ_{i in index} ∇ log p(y_i | x_i, θ)] / T, as {"flat": [weight]}."""
        self.vector.copy_(position["flat"])
        self._gradient.zero_()
        inputs, targets = self._rows.take(index)
        mean = log_likelihood(self.spec, self.network.network(inputs), targets).mean()
        (mean * len(self._rows)).backward()  # (N/M) Σ = N · mean
        self._last = mean.detach()
        return {"flat": (self._gradient - self.prior_precision * position["flat"]).div_(self.temperature)}

    @property
    def batch_log_likelihood(self) -> float:
        return float(self._last)

    @torch.no_grad()
    def outputs(self, flat: Float[Tensor, " weight"], inputs: Tensor) -> Float[Tensor, "batch output"]:
        """Return f_θ of a batch, with the weights ``flat``: one copy and a plain forward pass."""
        self.vector.copy_(flat)
        return self.network.network(inputs)


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
