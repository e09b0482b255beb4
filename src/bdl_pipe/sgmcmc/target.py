"""The log joint of networks' weights and their data, for several chains at once.

    log p(θ, D) = −(λ/2) ‖θ‖² + Σ_i log p(y_i | x_i, θ) + const
    log p(y | x, θ) = log softmax(f_θ(x))_y            for classes
                    = −(λ_n/2) ‖y − f_θ(x)‖² + const   for regression with one noise
                   = log N(y; f_θ(x), exp(g_θ(x))/λ_n) for regression with a noise of each input, an output g (ours)

(Korattikara et al. 2015, eqs. 1, 6 and 9.) The sum over a minibatch is multiplied by N/M. With control variates (Baker
et al. 2019, eq. 3) the minibatch estimates only the difference from the gradient of all rows at an anchor θ̂, which is
computed once: ∇(θ) ≈ ∇(θ̂) + (N/M) Σ [∇_i(θ) − ∇_i(θ̂)].
"""

from collections.abc import Sequence
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..data.rows import Rows
from ..networks.convnet import BatchStatistics
from ..networks.flat import FlatNetwork
from ..posterior import NetworkSpec
from ..seeds import Seed
from .kernel import Density, Positions

_BATCH: Final = 1000  # rows at a time, in a pass over all rows
_Batch = tuple[Tensor, Tensor] | Sequence[tuple[Tensor, Tensor]]  # stacked [chain, row, ...], or one for each chain


@final
class NetworkTarget:
    """The log joint density of chains over one architecture's weights; each chain has its own rows.

    Attributes:
        network: the architecture, as a function of a vector of weights.
        rows: N, the number of rows of each chain.
        device: the device of the rows.
        log_likelihood: the mean log p(y | x, θ) over the rows of the last computed density, [chain].
    """

    def __init__(self, spec: NetworkSpec, rows: Sequence[Rows], prior_precision: float) -> None:
        """Create the target from each chain's transformed inputs [row, ...] and its labels or standardised targets.

        Labels are [row] and targets [row, output]. All chains must have equally many rows.
        """
        self.spec, self.prior_precision, self._rows = spec, prior_precision, list(rows)
        self.rows, self.device = len(rows[0]), rows[0].device
        self.network = FlatNetwork(spec.build(Seed(0)).to(self.device))
        self.log_likelihood = torch.zeros(len(rows))

    def start(self, rngs: Sequence[Seed]) -> Positions:
        """Return newly initialised weights, one chain for each address."""
        fresh = [self.network.flat(self.spec.build(rng).state_dict()) for rng in rngs]
        return torch.stack(fresh).to(self.device)

    def from_prior(self, rngs: Sequence[Seed]) -> Positions:
        """Return weights drawn from N(0, I/λ)."""
        device, size = self.device, self.network.size
        each = [torch.randn(size, generator=rng.generator(device), device=device) for rng in rngs]
        return torch.stack(each) / self.prior_precision**0.5

    def density(self, index: Sequence[Tensor]) -> Density:
        """Return the density that is estimated from the rows ``index`` [batch] of each chain."""
        batch = self._batch([rows.take(some) for rows, some in zip(self._rows, index, strict=True)])

        def of(positions: Positions) -> tuple[Tensor, Tensor]:
            mean, gradient = self._likelihood(positions, batch)
            self.log_likelihood = mean
            value = self.rows * mean - self.prior_precision / 2 * positions.square().sum(1)
            return value, gradient.mul_(self.rows).sub_(positions, alpha=self.prior_precision)

        return of

    def whole(self) -> Density:
        """Return the density of all rows, which must fit in memory."""
        everything = torch.arange(self.rows, device=self.device)
        return self.density([everything] * len(self._rows))

    def controlled(self, index: Sequence[Tensor], anchor: Positions, at_anchor: Positions) -> Density:
        """Return the density of a minibatch; control variates correct its gradient, not its value.

        Args:
            anchor: θ̂ [chain, weight].
            at_anchor: :meth:`likelihood_gradient` at the anchor.
        """
        batch = self._batch([rows.take(some) for rows, some in zip(self._rows, index, strict=True)])

        def of(positions: Positions) -> tuple[Tensor, Tensor]:
            _, known = self._likelihood(anchor, batch)
            mean, gradient = self._likelihood(positions, batch)
            self.log_likelihood = mean
            value = self.rows * mean - self.prior_precision / 2 * positions.square().sum(1)
            slope = gradient.sub_(known).mul_(self.rows).add_(at_anchor)
            return value, slope.sub_(positions, alpha=self.prior_precision)

        return of

    def likelihood_gradient(self, positions: Positions) -> Positions:
        """Return ∇ Σ_i log p(y_i | x_i, θ) over all rows, computed in batches of rows."""
        total = torch.zeros_like(positions)
        for begin in range(0, self.rows, _BATCH):
            parts = [rows.slice(begin, begin + _BATCH) for rows in self._rows]
            _, gradient = self._likelihood(positions, self._batch(parts))
            total += len(parts[0][0]) * gradient
        return total

    def _batch(self, taken: Sequence[tuple[Tensor, Tensor]]) -> _Batch:
        """Stack the rows of all chains if the chains are computed together."""
        if self.network.at_once(len(taken), len(taken[0][0])):
            inputs, targets = (torch.stack(part) for part in zip(*taken, strict=True))
            return inputs, targets
        return taken

    def _likelihood(self, positions: Positions, batch: _Batch) -> tuple[Tensor, Tensor]:
        """Return the mean log p(y | x, θ) of each chain's rows, [chain], and its gradient."""
        if isinstance(batch, tuple):
            inputs, targets = batch
            with torch.enable_grad():
                leaf = positions.detach().requires_grad_()
                outputs = self.network.each(leaf, inputs).flatten(0, 1)
                of_rows = row_log_likelihood(self.spec, outputs, targets.flatten(0, 1))
                mean = of_rows.unflatten(0, (len(inputs), -1)).mean(1)
                (gradient,) = torch.autograd.grad(mean.sum(), leaf)
            return mean.detach(), gradient
        means, gradients = [], torch.empty_like(positions)
        for weights, place, (inputs, targets) in zip(positions, gradients, batch, strict=True):
            with torch.enable_grad():
                one = row_log_likelihood(self.spec, self.network.tied(weights)(inputs), targets).mean()
                self.network.gradient(one, place)
            means.append(one.detach())
        return torch.stack(means), gradients

    @torch.no_grad()
    def outputs(self, weights: Float[Tensor, " weight"], inputs: Tensor) -> Float[Tensor, "batch output"]:
        """Return f_θ of a batch."""
        outputs: Tensor = self.network.tied(weights)(inputs)
        return outputs


def row_log_likelihood(
    spec: NetworkSpec, outputs: Float[Tensor, "batch output"], targets: Shaped[Tensor, "batch ..."]
) -> Float[Tensor, " batch"]:
    """Return log p(y | x, θ) of each row, without the constant of the Gaussian."""
    if spec.likelihood == "gaussian_head":
        means, free = outputs.chunk(2, dim=-1)
        assert spec.variance_floor is None, "chains have variances without a floor"
        return -0.5 * ((targets - means).square() * (-free).exp() / spec.one_noise + free).sum(-1)
    if spec.likelihood == "categorical":
        return -F.cross_entropy(outputs, targets, reduction="none")
    return -(targets - outputs).square().sum(-1) / (2 * spec.one_noise)


def factorises(network: nn.Module) -> bool:
    """Return whether p(y | x, θ) of a row is independent of the other rows of its batch.

    This holds if no layer normalises over rows.
    """
    norms = (nn.modules.batchnorm._BatchNorm, BatchStatistics)
    return not any(isinstance(module, norms) for module in network.modules())
