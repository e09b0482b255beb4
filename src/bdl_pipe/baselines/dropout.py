"""Monte Carlo dropout: networks with randomly dropped units, in training and in prediction (Gal & Ghahramani 2016).

After every activation of the trunk each unit is multiplied by b/(1 − p), b ~ Bernoulli(1 − p): elementwise for an MLP
[batch, width], a whole channel for a ConvNet [batch, channel] (as Tompson et al. 2015). Inputs are never dropped,
unlike in the paper. The loss is the mean negative log-likelihood with one mask for each row and step; the paper's L2
term is the optimiser's weight decay.

Regression: N(y | f(x), σ²) with one σ² = 1/τ learned as a point estimate, in the units of the transformed targets; the
paper searches for the precision τ. Classes: softmax.

The predictive is the mixture of S masks. Mask s is the same for all rows of all batches, so that a draw is one network
and the joint predictive of several rows exists; the predictive of a single row is the paper's.

State: the learner's ``state_dict``; config ``spec`` (a :class:`DropoutSpec`), ``epochs`` and ``loss``.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from .. import distributed
from ..config import LATER
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..method import Default, Method
from ..networks import NetworkConfig
from ..networks.last_layer import LastLayer, linear
from ..networks.normalisation import evaluation
from ..posterior import Tails
from ..seeds import Seed
from ..training.learner import NoisyLearner, TrainingConfig, Weights
from ..training.likelihood import MixtureLearner, NoiseOf, with_likelihood
from ..training.posterior import LearnerPosterior, LearnerSpec

_ACTIVATIONS = nn.ReLU.__module__  # the torch module that defines the activations


@dataclass(frozen=True)
class DropoutConfig:
    """The section ``methods.dropout`` of params.yaml.

    Attributes:
        network: the architecture.
        training: the settings of training.
        rate: p, the probability that a unit is dropped.
        draws: the number of masks of the predictive.
        validation_draws: the number of masks of a validation score.
        noise_variance: the initial σ², in the units of the transformed targets (regression).
        noise: ``one`` variance σ² of regression, or one for ``each input``, which the network has as an output.
        tails: the distribution of a noise of each input, see ``methods.sgd``.
    """

    network: NetworkConfig
    training: TrainingConfig
    rate: float
    draws: int
    validation_draws: int
    noise_variance: float = 1.0
    noise: NoiseOf = field(default="one", metadata=LATER)
    tails: Tails = field(default="gaussian", metadata=LATER)

    def __post_init__(self) -> None:
        require(0 < self.rate < 1, "rate", "must be in (0, 1)", self.rate)
        require_positive(self, "draws", "validation_draws", "noise_variance")


@dataclass(frozen=True)
class DropoutSpec(LearnerSpec[DropoutConfig]):
    """The description of a learner, from which it is built."""

    config: DropoutConfig


@final
class Dropout(MixtureLearner, NoisyLearner):
    """A network that multiplies its activations by given masks."""

    def __init__(self, spec: DropoutSpec, rng: Seed, start: Weights | None = None) -> None:
        """Build the network, with new weights or with the weights ``start``.

        Raises:
            ConfigError: the network's activations cannot all be masked.
        """
        super().__init__()
        self.spec = spec
        self.network, self.likelihood = with_likelihood(spec, rng, start)
        self._units = _units(self.network.trunk, spec.input_shape)

    def outputs(self, inputs: Tensor, masks: dict[str, Tensor]) -> Tensor:
        """Return the outputs [batch, output] under the given masks.

        Args:
            masks: place in the trunk -> bool [batch or 1, unit], False for dropped units.
        """
        kept = 1 - self.spec.config.rate
        for place, layer in self.network.trunk.named_children():
            inputs = layer(inputs)
            if place in masks:
                mask = masks[place].to(inputs.dtype) / kept
                inputs = inputs * mask.reshape(*mask.shape, *[1] * (inputs.ndim - 2))
        return self.network.head(inputs)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        return -self.log_likelihood(self.outputs(inputs, noise), targets)

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw a mask for every row of every step: place -> bool [steps, batch, unit]."""
        rate = self.spec.config.rate
        return {k: torch.rand(steps, batch, n, generator=generator) >= rate for k, n in self._units.items()}

    def share(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the masks of this rank's rows; a row's mask does not depend on the number of ranks."""
        return {place: distributed.shard(masks) for place, masks in noise.items()}

    def drawn_outputs(self, inputs: Tensor, draws: int, rng: Seed) -> Tensor:
        masks = [self.draw(rng.fold("draw", s), inputs.device) for s in range(draws)]
        return torch.stack([self.outputs(inputs, mask) for mask in masks])


def _units(trunk: nn.Module, input_shape: tuple[int, ...]) -> dict[str, int]:
    """Return the number of units or channels of each activation in the trunk, by its place.

    Raises:
        ConfigError: the trunk has no activation, or has blocks: their inner activations cannot be masked.
    """
    rule = "must be a network with layers in sequence (nn.Sequential): dropout masks the output of each activation"
    require(isinstance(trunk, nn.Sequential), "network.name", rule, type(trunk).__name__)
    blocks = [place for place, layer in trunk.named_children() if next(layer.children(), None) is not None]
    rule = "must be a network with its activations in the trunk itself (mlp, convnet, alexnet, vgg): dropout masks each"
    require(not blocks, "network.name", f"{rule}; got the blocks {', '.join(blocks[:2])}, …")
    units, rows = {}, torch.zeros(1, *input_shape)
    with torch.no_grad(), evaluation(trunk):  # evaluation mode keeps running statistics unchanged
        for place, layer in trunk.named_children():
            rows = layer(rows)
            if type(layer).__module__ == _ACTIVATIONS:
                units[place] = rows.shape[1]
    require(bool(units), "network.name", "must be a network with activations")
    return units


@final
class DropoutPosterior(LearnerPosterior[Dropout]):
    """A fitted :class:`Dropout`."""

    key, spec_class, learner_class = "dropout", DropoutSpec, Dropout

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer:
        """Return the last layer at transformed inputs, without masks."""
        with self.lent() as learner:
            return linear(learner.network.trunk(inputs), **dict(learner.network.head.named_parameters()))


def default(size: Size) -> Section:
    """Return the hyperparameters of a network with a dropout rate of a tenth."""
    return {"network": size.network, "rate": 0.1, "draws": 30, "training": size.training(), **size.noise}


DROPOUT = Method(
    name="dropout",
    bayesian=True,
    config=DropoutConfig,
    tasks=("classification", "regression"),
    stages={"student": DropoutPosterior.stage()},
    search={
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "training.optimiser.weight_decay": (1e-6, 1e-1, "log"),
        "rate": (5e-3, 5e-1, "log"),
    },
    settings={"noise_variance": 0.1, "validation_draws": 10},
    default=Default(1.5, override=default),
)
