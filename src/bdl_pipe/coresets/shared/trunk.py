"""Networks that are trained on a coreset alone: features φ(x), the loss and its Adam steps.

A fit of one network runs through the training loop (:class:`TrunkObjective`). The networks of a pool take one step each
between two steps of the coreset itself, so that no loop of their own exists (:class:`OptimisedNetwork`).

The step descends the Gaussian likelihood of the coreset, ½·mean_i ‖ŷ_i − Wᵀφ(x̂_i)‖²; its precision
γ only scales the loss, to which Adam is indifferent, so it is left out.

φ is the trunk's output times ``feature_scale``. The prior variance of a logit is ‖φ‖²/ρ: with φ as
it leaves a ConvNet that is in the hundreds (Lee et al. 2025 leave it so: scale 1).
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
    """A network of a pool, its Adam, and how many steps it has taken."""

    network: networks.Network
    optimiser: Adam
    steps: int = 0

    def step(self, images: Tensor, labels: Tensor, augmentation: AugmentConfig, rng: Seed) -> Tensor:
        """Take one Adam step on the augmented coreset, and return its loss []. ``rng`` is the step's own seed."""
        self.optimiser.zero_grad()
        loss = coreset_loss(self.network, images, labels, augmentation, rng)
        loss.backward()
        self.optimiser.step()
        self.steps += 1
        return loss.detach()


@final
class TrunkObjective(loop.Objective):
    """A network that is trained on one coreset alone."""

    def __init__(self, network: networks.Network, coreset: Coreset, augmentation: AugmentConfig, rng: Seed) -> None:
        """Take the network, on the device of the coreset; every step draws from ``rng`` and its number."""
        self._network, self._coreset, self._augmentation, self._rng = network, coreset, augmentation, rng

    def parameters(self) -> list[Tensor]:
        return trained(self._network)

    def optimiser(self, config: loop.OptimiserConfig) -> Adam:
        return adam(self._network, config.lr)

    def loss(self, step: int) -> Tensor:
        rng = self._rng.fold("step", step)
        return coreset_loss(self._network, self._coreset.images, self._coreset.labels, self._augmentation, rng)

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        return {"loss": float(loss)}

    def state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._network.state_dict().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._network.load_state_dict(state)


def trained(network: networks.Network) -> list[Tensor]:
    """Return all parameters but the head's bias, which the paper does not have: ours stays 0."""
    return [parameter for name, parameter in network.named_parameters() if name != "head.bias"]


def adam(network: networks.Network, lr: float) -> Adam:
    """Return Adam with a constant learning rate, in torch's unfused form: the fused form rounds differently."""
    return Adam([{"params": trained(network)}], lr=lr)


def features(network: networks.Network, images: Tensor, feature_scale: float) -> Tensor:
    """Compute φ(x) [b, h]; batch normalisation, where there is one, is in evaluation mode."""
    return feature_scale * network.eval().features(images)


def coreset_loss(
    network: networks.Network, images: Tensor, labels: Tensor, augmentation: AugmentConfig, rng: Seed
) -> Tensor:
    """Return ½·mean_i ‖ŷ_i − Wᵀφ(x̂_i)‖² [] of the augmented coreset, in training mode.

    ``rng`` is the step's own seed.
    """
    network.train()
    with networks.dropout_masks(network, rng.fold("dropout")):
        error = network(augment(images, augmentation, rng)) - labels
    return 0.5 * error.square().sum(1).mean()
