"""The inputs and outputs of the last layer of a posterior's networks, features and logits, for unfamiliarity scores.

Features are the trunk's output. A mixture of draws has one row of features for each input: the shared trunk's features
if all draws share a trunk, else the mean over the draws' trunks. The features of separately trained networks do not
correspond to each other, so that their mean means little. A mixture's logits are the mean over draws, and so are the
weights that determine the origin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..artifacts import under, unstack
from ..errors import DataError
from ..plugins import Registered
from ..posterior import NetworkSpec, Posterior
from ..seeds import Seed


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


Reader = Callable[[Any, Tensor, Seed], LastLayer | None]


def _linear(features: Tensor, weight: Float[Tensor, "class width"], bias: Float[Tensor, " class"] | None) -> LastLayer:
    """Return the last layer of one trunk."""
    logits = nn.functional.linear(features, weight, bias)
    return LastLayer(features, logits, _origin(weight, bias), weight, bias)


def _origin(weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return weight.new_zeros(weight.shape[1])
    return -(torch.linalg.pinv(weight.double()) @ bias.double()).to(weight)


def _of_weights(spec: NetworkSpec, weights: dict[str, Tensor], inputs: Tensor) -> LastLayer | None:
    """Return the mean over stacked weights [draw, ...] of a network; None if its head is not one linear layer."""
    network = spec.build(Seed(0)).to(inputs.device).eval()
    if not isinstance(network.head, nn.Linear):
        return None
    trunks = under("trunk.", weights).values()
    shared = all(bool((stacked == stacked[:1]).all()) for stacked in trunks)
    draws = unstack({name: value[:1] for name, value in weights.items()}) if shared else unstack(weights)
    each = [functional_call(network.trunk, under("trunk.", draw), (inputs,)) for draw in draws]
    weight, bias = weights["head.weight"], weights.get("head.bias")
    mean = None if bias is None else bias.mean(0)
    if shared:
        return _linear(each[0], weight.mean(0), mean)
    logits = torch.stack(
        [
            nn.functional.linear(features, weight[k], None if bias is None else bias[k])
            for k, features in enumerate(each)
        ]
    )
    return LastLayer(torch.stack(each).mean(0), logits.mean(0), _origin(weight.mean(0), mean))


def _draws(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer | None:
    return _of_weights(posterior.spec, posterior.weights, inputs)


def _centre(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer | None:
    """Return the last layer of the first weights, at which the network is linearised."""
    return _of_weights(posterior.spec, {name: value[:1] for name, value in posterior.weights.items()}, inputs)


def _closed_form(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer:
    return _linear(posterior.features(inputs), posterior.head.mean.T, None)


def _trunks(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer:
    parts = [_closed_form(part, inputs, rng) for part in posterior.parts]
    features, logits = (torch.stack([getattr(part, name) for part in parts]).mean(0) for name in ("features", "logits"))
    origin = parts[0].origin
    return LastLayer(features, logits, origin)  # no part has a bias: the origin is 0 in each


def _variational(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer:
    """Return the features' mean over draws, and logits except for a layer of class densities, which has none."""
    with posterior.lent() as learner:
        draws = learner.spec.features.draws if learner.spec.features else 1
        features = torch.stack([learner.features(inputs, draw, rng) for draw in range(draws)]).mean(0)
        if learner.spec.layer.name != "gaussian":
            return LastLayer(features)
        found = _linear(features, learner.layer.mean, None)
        return found if draws == 1 else LastLayer(features, found.logits, found.origin)


def _fixed_trunk(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer | None:
    """Return the last layer of a fixed trunk, with a Gaussian head at its mean; None if all layers are Gaussian."""
    with posterior.lent() as learner:
        if learner.spec.config.stochastic != "head":
            return None
        head = learner.random.module
        return _linear(learner.fixed(inputs), head.weight, head.bias)


def _unmasked(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer:
    with posterior.lent() as learner:
        network = learner.network
        return _linear(network.trunk(inputs), network.head.weight, network.head.bias)


def _random_features(posterior: Any, inputs: Tensor, rng: Seed) -> LastLayer:
    with posterior.lent() as learner:
        return _linear(learner.features(inputs), learner.head.T, None)


LAST_LAYERS: Final[Registered[Reader]] = Registered(
    "last layer of the posterior",
    {
        "network_draws": _draws,
        "ciber": _draws,
        "linearised_draws": _centre,
        "linearised_laplace": lambda posterior, inputs, rng: _centre(posterior.draws, inputs, rng),
        "vbpc": _closed_form,
        "vbpc_bma": _trunks,
        "last_layer": _variational,
        "bnn": _fixed_trunk,
        "dropout": _unmasked,
        "sngp": _random_features,
    },
)


def register_last_layer(key: str, reader: Reader) -> None:
    """Add the reader of a posterior's last layer: (posterior, transformed inputs, address of draws) -> LastLayer.

    Args:
        key: the posterior's key in ``registry.POSTERIORS``.

    Raises:
        PluginError: the key is taken.
    """
    LAST_LAYERS.add(key, reader, reader.__module__)


@torch.no_grad()
def find_last_layer(posterior: Posterior, inputs: Tensor, *, rng: Seed) -> LastLayer | None:
    """Return the features and logits of transformed inputs; None if the posterior has no features."""
    key = _key(posterior)
    return LAST_LAYERS[key](posterior, inputs, rng) if key in LAST_LAYERS else None


def last_layer(posterior: Posterior, inputs: Tensor, *, rng: Seed) -> LastLayer:
    """Return the features and logits of transformed inputs.

    Raises:
        DataError: the posterior has no features.
    """
    found = find_last_layer(posterior, inputs, rng=rng)
    if found is None:
        raise DataError(f"a posterior {_key(posterior)} has no features: no last layer on a trunk that is known here")
    return found


def _key(posterior: Posterior) -> str:
    return getattr(posterior, "key", type(posterior).__name__)
