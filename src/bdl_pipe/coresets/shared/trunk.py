"""Networks trained on a coreset alone: features φ(x), the loss and its Adam steps.

A fit of one network uses the training loop (:class:`NetworkObjective`). The networks of a pool make one step each
between two steps of the coreset, without a training loop (:class:`OptimisedNetwork`).

The loss is the coreset's Gaussian negative log-likelihood ½·mean_i ‖ŷ_i − Wᵀφ(x̂_i)‖². Its precision γ is omitted,
because Adam's steps do not depend on the scale of the loss.

φ is the trunk's output times ``feature_scale``. The prior variance of a logit is ‖φ‖²/ρ, which is in the hundreds for
the output of a ConvNet (Lee et al. 2025 use scale 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from ... import networks
from ...data.augment import AugmentConfig, augment
from ...seeds import Seed
from ...training import loop
from ...training.adam import Adam
from .init import Coreset


@dataclass
class OptimisedNetwork:
    """A network of a pool with its Adam state and its number of steps."""

    network: networks.Network
    optimiser: Adam
    steps: int = 0

    def step(self, images: Tensor, labels: Tensor, augmentation: AugmentConfig, rng: Seed) -> Tensor:
        """Make one Adam step on the augmented coreset, and return its loss []; ``rng`` is the step's seed."""
        self.optimiser.zero_grad()
        loss = coreset_loss(self.network, images, labels, augmentation, rng)
        loss.backward()
        self.optimiser.step()
        self.steps += 1
        return loss.detach()


class NetworkObjective(loop.Objective):
    """A network that is trained on one coreset alone."""

    def __init__(self, network: networks.Network, coreset: Coreset, rng: Seed) -> None:
        """Create the objective of a network on the coreset's device; step t draws from ``rng`` and t."""
        self.network, self.coreset, self._rng = network, coreset, rng

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        return {"loss": float(loss)}

    def state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(state)


@final
class TrunkObjective(NetworkObjective):
    """The loss of the trunk's features and a head without bias, minimised by Adam."""

    def __init__(self, network: networks.Network, coreset: Coreset, augmentation: AugmentConfig, rng: Seed) -> None:
        super().__init__(network, coreset, rng)
        self._augmentation = augmentation

    def parameters(self) -> list[Tensor]:
        return trained(self.network)

    def optimiser(self, config: loop.OptimiserConfig) -> Adam:
        return adam(self.network, config.lr)

    def loss(self, step: int) -> Tensor:
        rng = self._rng.fold("step", step)
        return coreset_loss(self.network, self.coreset.images, self.coreset.labels, self._augmentation, rng)


def trained(network: networks.Network) -> list[Tensor]:
    """Return all parameters except the head's bias; the paper has no bias, so it stays 0."""
    return [parameter for name, parameter in network.named_parameters() if name != "head.bias"]


def adam(network: networks.Network, lr: float) -> Adam:
    """Return Adam with a constant learning rate, in torch's unfused form: the fused form rounds differently."""
    return Adam([{"params": trained(network)}], lr=lr)


def features(network: networks.Network, images: Tensor, feature_scale: float) -> Tensor:
    """Compute φ(x) [b, h]; batch normalisation, if any, is in evaluation mode."""
    return feature_scale * network.eval().features(images)


def augmented(inputs: Tensor, augmentation: AugmentConfig, rng: Seed) -> Tensor:
    """Augment images, or rows of a table, which are images of one pixel with a channel for each column.

    Only noise has a meaning for rows.
    """
    if inputs.ndim > 2:
        return augment(inputs, augmentation, rng)
    return augment(inputs[:, :, None, None], augmentation, rng)[:, :, 0, 0]


def coreset_loss(
    network: networks.Network, images: Tensor, labels: Tensor, augmentation: AugmentConfig, rng: Seed
) -> Tensor:
    """Return ½·mean_i ‖ŷ_i − Wᵀφ(x̂_i)‖² [] of the augmented coreset, in training mode.

    ``rng`` is the step's seed.
    """
    network.train()
    with networks.dropout_masks(network, rng.fold("dropout")):
        error = network(augmented(images, augmentation, rng)) - labels
    return 0.5 * error.square().sum(1).mean()
