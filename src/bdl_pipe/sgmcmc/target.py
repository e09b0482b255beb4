"""The log joint of networks' weights and their data, for several chains at once.

    log p(θ, D) = −(λ/2) ‖θ‖² + Σ_i log p(y_i | x_i, θ) + const
    log p(y | x, θ) = log softmax(f_θ(x))_y            for classes
                    = −(λ_n/2) ‖y − f_θ(x)‖² + const   for regression with one noise
                   = log N(y; f_θ(x), exp(g_θ(x))/λ_n) for regression with a noise of each input, an output g (ours)

(Korattikara et al. 2015, eqs. 1, 6 and 9.) The sum over a minibatch is multiplied by N/M.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..config import LATER
from ..data import units
from ..data.fitdata import FitData, Rows
from ..errors import ConfigError, require, require_positive
from ..networks import NetworkConfig
from ..networks.convnet import BatchStatistics
from ..networks.flat import FlatNetwork
from ..networks.normalisation import BatchNorm, has_batch_norm
from ..posterior import Likelihood, NetworkSpec
from ..seeds import Seed
from ..training.likelihood import NoiseOf
from .kernel import Density, Positions

_LINEAR_ROWS: Final = 1_000_000  # the most rows for the linear model
_TREE_ROWS: Final = 20_000  # the most rows for the trees: some seconds
_MOST_PRECISE: Final = 100.0  # the largest λ_n, for targets that are a linear function of the inputs
_Batch = tuple[Tensor, Tensor] | Sequence[tuple[Tensor, Tensor]]  # stacked [chain, row, ...], or one for each chain


@dataclass(frozen=True)
class TargetConfig:
    """The settings of a posterior over a network's weights.

    Attributes:
        network: the teacher's architecture; its norm must not make rows of a batch depend on each other.
        batch_norm: ``refused``, or ``frozen``: each batch norm has the running statistics of the trajectory's last
            weights, in the chain and in its draws. Its scales and shifts are sampled. The likelihood is then a product
            over rows, of a network whose normalisation does not follow its weights.
        prior_precision: λ of the prior N(0, I/λ) over all weights and biases.
        noise_precision: λ_n of regression targets in standardised units; not used for classes. null: the inverse of the
            residual variance of the training targets, at most 100. The residuals come from a linear model
            (scikit-learn's ``BayesianRidge``) or, if these are smaller, from boosted trees on rows left out of their
            fit (``HistGradientBoostingRegressor``, three folds of at most 20,000 rows).
        noise: of regression: ``one`` variance 1/λ_n, or exp(g(x))/λ_n for ``each input``, where g is an output of the
            network.
    """

    network: NetworkConfig
    prior_precision: float
    noise_precision: float | None
    noise: NoiseOf = field(default="one", metadata=LATER)
    batch_norm: Literal["refused", "frozen"] = field(default="refused", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "prior_precision", or_null=("noise_precision",))

    def spec(self, data: FitData) -> NetworkSpec:
        """Return the network whose weights are sampled.

        Raises:
            ConfigError: the network's norm makes a row's likelihood depend on its batch, the network has dropout, or
                each input has its own noise and the rows are of classes.
        """
        classes, each_input = data.task == "classification", self.noise == "each input"
        require(not (classes and each_input), "target.noise", "must be one: classes have no noise", self.noise)
        likelihood: Likelihood = "categorical" if classes else "gaussian_head" if each_input else "gaussian"
        spec = NetworkSpec(self.network, data.input_shape, data.outputs, likelihood, 1 / self.precision(data))
        network = spec.build(Seed(0))
        dropout = max((module.p for module in network.modules() if isinstance(module, nn.Dropout)), default=0.0)
        require(dropout == 0, "target.network.dropout", "must be 0: the likelihood has no masks", dropout)
        frozen = self.batch_norm == "frozen"
        rule = "must be refused: the network has no batch norm with running statistics"
        require(not frozen or has_batch_norm(network), "target.batch_norm", rule, self.batch_norm)
        if not factorises(network, frozen=frozen):
            key = "norm" if hasattr(self.network, "norm") else "name"
            rule = "must be instance, group or none" if key == "norm" else "must be of a network without batch norm"
            rule += ", or target.batch_norm must be frozen" if has_batch_norm(network) else ""
            raise ConfigError(f"target.network.{key}", f"{rule}: the likelihood of a row must not depend on its batch")
        return spec

    def precision(self, data: FitData) -> float:
        """Return λ_n; 1 for classes. If it is null, it is estimated from the training rows, averaged over outputs.

        A linear model and boosted trees are tried for each output, and the smaller variance counts. The first rows are
        enough, because the rows are in random order.
        """
        if data.task == "classification":
            return 1.0
        if self.noise_precision is not None:
            return self.noise_precision
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.linear_model import BayesianRidge
        from sklearn.model_selection import cross_val_predict

        rows, targets = (tensor.cpu().double().numpy() for tensor in data.rows("train").slice(0, _LINEAR_ROWS))
        variances = list[float]()
        for column in targets.T:
            some = slice(min(len(rows), _TREE_ROWS))
            trees = HistGradientBoostingRegressor(early_stopping=False, random_state=0)
            if data.train.units is None:
                missed = column[some] - cross_val_predict(trees, rows[some], column[some], cv=3)
            else:
                parts = units.folds(data.train.units[some], 3, ordered=data.ordered, rng=Seed(0).fold("noise"))
                pairs = units.left_out(parts, ordered=data.ordered)
                fits = ((trees.fit(rows[rest], column[rest]).predict(rows[out]), column[out]) for rest, out in pairs)
                missed = np.concatenate([targets - predicted for predicted, targets in fits])
            variances.append(min(float(1 / BayesianRidge().fit(rows, column).alpha_), float((missed**2).mean())))
        return min(len(variances) / sum(variances), _MOST_PRECISE)


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
        self.network = FlatNetwork(spec.build(Seed(0)).to(self.device).eval())
        self.log_likelihood = torch.zeros(len(rows))

    def freeze(self, weights: Mapping[str, Tensor]) -> None:
        """Give each batch norm the running statistics of a network's ``state_dict``."""
        for name, value in self.network.network.named_buffers():
            value.copy_(weights[name])

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
        batch: _Batch = [rows.take(some) for rows, some in zip(self._rows, index, strict=True)]
        if self.network.at_once(len(batch), len(batch[0][0])):  # the chains are computed together
            inputs, targets = (torch.stack(part) for part in zip(*batch, strict=True))
            batch = inputs, targets

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


def factorises(network: nn.Module, *, frozen: bool = False) -> bool:
    """Return whether p(y | x, θ) of a row is independent of the other rows of its batch.

    This holds if no layer normalises over rows. With ``frozen``, a layer with running statistics normalises by them.
    """
    norms = (BatchNorm, BatchStatistics)
    tied = [module for module in network.modules() if isinstance(module, norms)]
    return all(frozen and getattr(module, "track_running_stats", False) for module in tied)
