"""A network of random weights with a share of its numbers removed: they are 0 for good, and no longer stored.

Source: Ritter, Kukla, Zhang and Li 2021, appendix K. "We … set a fixed percentage of the weights to be
deterministically 0": in the space of inducing weights the entries of all Z_r and Z_c of least magnitude, in that of
the weights those of least |mean|/sd. The percentage is of the network and not of each layer: their table 10 rounds
once for all layers together. As there, D, λ, q(U), points such as those of normalisation, and the biases of layers in
the space of weights stay (a bias in the space of inducing weights is a column of Z_c like any other), and the KL of
weights in their own space is over those that are left.
Ours: of f·n entries ⌊f·n⌋ are kept, a mean and a deviation each; of equal ones the first of the network.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import UserError, require
from .layers import Weights
from .network import Bayesian
from .sparse import Kept, first

_POOLS: Final = (("out", "in"), ("weight",))  # matrices whose entries compete: Z; weights


def prune(net: Bayesian, share: float) -> Bayesian:
    """Return a copy of ``net`` without the least important entries.

    The ``share``, in (0, 1), of its entries of Z and of its weights is removed.

    Raises:
        ConfigError: ``share`` is not within its limits.
        UserError: ``net`` has been pruned before, or none of its layers can be.
    """
    require(0 < share < 1, "prune", "must be > 0 and < 1", share)
    if kept_counts(net):
        raise UserError("the network has been pruned before: prune the one that it was made from, by the whole share")
    scores = {
        (name, matrix): values[:, : values.shape[1] - (bias and matrix == "weight")]
        for name, layer, bias in _layers(net)
        for matrix, values in layer.importance().items()
    }
    if not scores:
        raise UserError("none of the network's layers can be pruned (a full covariance over weights cannot)")
    masks: dict[tuple[str, str], Tensor] = {}
    for names in _POOLS:
        masks |= _greatest({at: values for at, values in scores.items() if at[1] in names}, share)
    found = copy.deepcopy(net)
    for name, layer, bias in _layers(found):
        own = {matrix: mask for (of, matrix), mask in masks.items() if of == name}
        layer.keep({m: _with_bias(mask) if bias and m == "weight" else mask for m, mask in own.items()})
    return found


def kept_counts(net: Bayesian) -> dict[str, int]:
    """Return how many entries each pruned matrix has kept, by its mask's name in ``net``; what :func:`shrink` needs."""
    return {name: module.count for name, module in net.named_modules() if isinstance(module, Kept)}


def shrink(net: Bayesian, counts: Mapping[str, int]) -> Bayesian:
    """Return ``net`` in the shape of a pruned network, whose state it can then load.

    Its own numbers no longer matter.
    """
    for name, layer, _ in _layers(net):
        found = {}
        for matrix, values in layer.importance().items():
            at = f"{name}.kept" if matrix == "weight" else f"{name}.kept_{matrix}"
            if at in counts:
                found[matrix] = first(tuple(values.shape), counts[at]).to(values.device)
        layer.keep(found)
    assert kept_counts(net) == dict(counts), "counts of another network"
    return net


def _layers(net: Bayesian) -> Iterator[tuple[str, Weights, bool]]:
    """Yield each layer's name in ``net``, its distribution, and whether its last column is a bias."""
    for key, layer in net.layers.items():
        yield f"layers.{key}", cast(Weights, layer), net.places[key].bias
    if net.shared is not None:
        yield "shared.weights", net.shared.weights, False


def _greatest(
    scores: Mapping[tuple[str, str], Tensor], share: float
) -> dict[tuple[str, str], Bool[Tensor, "row column"]]:
    """Return masks of all but ``share`` of the entries of all matrices together."""
    if not scores:
        return {}
    flat = torch.cat([values.flatten() for values in scores.values()])
    left = math.floor((1 - Fraction(repr(float(share)))) * len(flat))  # 1 − 0.9 in floating point is below 0.1
    threshold = flat.kthvalue(len(flat) - left).values  # the greatest that may go; one goes at least
    mask = flat > threshold
    ties = (flat == threshold).nonzero()[:, 0]
    mask[ties[: left - int(mask.sum())]] = True
    parts = mask.split([values.numel() for values in scores.values()])
    return {at: part.view(values.shape) for part, (at, values) in zip(parts, scores.items(), strict=True)}


def _with_bias(mask: Bool[Tensor, "row column"]) -> Bool[Tensor, "row wider"]:
    return torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
