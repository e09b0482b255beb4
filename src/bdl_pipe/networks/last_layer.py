"""The inputs and outputs of the last layer of a posterior's networks, features and logits, for unfamiliarity scores.

Features are the trunk's output. A mixture of draws has one row of features for each input: the shared trunk's features
if all draws share a trunk, else the mean over the draws' trunks. The features of separately trained networks do not
correspond to each other, so that their mean means little. A mixture's logits are the mean over draws, and so are the
weights that determine the origin.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..artifacts import under, unstack
from .base import Network, Replicas


@dataclass(frozen=True, eq=False)
class LastLayer:
    """The inputs and outputs of a last layer at some rows.

    Attributes:
        features: the layer's inputs.
        logits: the layer's outputs for classes; None if the layer is not linear.
        origin: −W⁺b, the shortest features at which the logits are nearest to 0; None if the layer is not linear.
        weight, bias: W and b, if the layer is linear and its draws share their features; a layer without a bias has
            none.
    """

    features: Float[Tensor, "row width"]
    logits: Float[Tensor, "row class"] | None = None
    origin: Float[Tensor, " width"] | None = None
    weight: Float[Tensor, "class width"] | None = None
    bias: Float[Tensor, " class"] | None = None


def linear(
    features: Tensor, weight: Float[Tensor, "class width"], bias: Float[Tensor, " class"] | None = None
) -> LastLayer:
    """Return the linear last layer of one trunk."""
    return LastLayer(features, nn.functional.linear(features, weight, bias), _origin(weight, bias), weight, bias)


def of_draws(features: Callable[[dict[str, Tensor]], Tensor], weights: dict[str, Tensor]) -> LastLayer:
    """Return the mean over stacked ``weights`` [draw, ...] of networks whose heads are one linear layer each.

    Args:
        features: the weights of one draw -> the features of the rows.
    """
    trunks = under("trunk.", weights).values()
    weight, bias = weights["head.weight"], weights.get("head.bias")
    mean = None if bias is None else bias.mean(0)
    if all(bool((stacked == stacked[:1]).all()) for stacked in trunks):
        (first,) = unstack({name: value[:1] for name, value in weights.items()})
        return linear(features(first), weight.mean(0), mean)
    of_draw = [features(draw) for draw in unstack(weights)]
    biases = [None] * len(weight) if bias is None else bias
    logits = [nn.functional.linear(*layer) for layer in zip(of_draw, weight, biases, strict=True)]
    return LastLayer(torch.stack(of_draw).mean(0), torch.stack(logits).mean(0), _origin(weight.mean(0), mean))


@torch.no_grad()
def of_networks(networks: Replicas[Network], weights: dict[str, Tensor], inputs: Tensor) -> LastLayer | None:
    """Return :func:`of_draws` of a network's stacked weights [draw, ...]; None if its head is not one linear layer."""
    if not isinstance(networks.module.head, nn.Linear):
        return None
    with networks.one() as network:
        return of_draws(lambda draw: functional_call(network.trunk, under("trunk.", draw), (inputs,)), weights)


def _origin(weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return weight.new_zeros(weight.shape[1])
    return -(torch.linalg.pinv(weight.double()) @ bias.double()).to(weight)
