"""Networks that are trained on a coreset alone: features φ(x), and one Adam step on it.

The step descends the Gaussian likelihood of the coreset, ½·mean_i ‖ŷ_i − Wᵀφ(x̂_i)‖²; its precision
γ only scales the loss, to which Adam is indifferent, so it is left out.

φ is the trunk's output times ``feature_scale``. The prior variance of a logit is ‖φ‖²/ρ: with φ as
it leaves a ConvNet that is in the hundreds (Lee et al. 2025 leave it so: scale 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import networks
from ...data.augment import AugmentConfig, augment
from ...seeds import Seed


@dataclass
class OptimisedNetwork:
    """A network, its Adam, and how many steps it has taken."""

    network: networks.Network
    optimiser: torch.optim.Optimizer
    steps: int = 0


def fresh(
    config: networks.NetworkConfig,
    input_shape: tuple[int, ...],
    outputs: int,
    lr: float,
    *,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> OptimisedNetwork:
    """Make a new network on ``device`` and its Adam with a constant learning rate.

    The head has no bias in the paper: ours is 0 and not trained.
    """
    network = networks.build(config, input_shape, outputs, rng=rng).to(device)
    trained = [p for name, p in network.named_parameters() if name != "head.bias"]
    return OptimisedNetwork(network, torch.optim.Adam(trained, lr=lr))


def features(network: networks.Network, images: Tensor, feature_scale: float) -> Tensor:
    """Compute φ(x) [b, h]; batch normalisation, where there is one, is in evaluation mode."""
    return feature_scale * network.eval().features(images)


def step_on_coreset(
    trained: OptimisedNetwork, images: Tensor, labels: Tensor, config: AugmentConfig, rng: Seed
) -> Tensor:
    """Take one Adam step on the augmented coreset, and return its loss []. ``rng`` is the step's own address."""
    network = trained.network.train()
    trained.optimiser.zero_grad(set_to_none=True)
    with networks.dropout_masks(network, rng.fold("dropout")):
        error = network(augment(images, config, rng)) - labels
    loss = 0.5 * error.square().sum(1).mean()
    loss.backward()
    trained.optimiser.step()
    trained.steps += 1
    return loss.detach()
