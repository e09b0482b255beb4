"""Pruning: a share of the entries of a network with random weights is set to 0 permanently and not stored.

Source: Ritter, Kukla, Zhang and Li 2021, appendix K. "We … set a fixed percentage of the weights to be
deterministically 0": for inducing weights the entries of all Z_r and Z_c of least magnitude, for weights the weights of
least |mean|/sd. The percentage applies to the network and not to each layer: their table 10 rounds once for all layers
together. As in the paper, D, λ, q(U), point estimates such as normalisation's, and the biases of layers in weight space
are not pruned (with inducing weights a bias is an ordinary column of Z_c), and the KL in weight space is over the
remaining weights. Ours: ⌊f·n⌋ of n entries are kept (f is one minus the share), a mean and a deviation each; among
equal entries the network's first are kept.
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
from .sparse import Kept

_POOLS: Final = (("out", "in"), ("weight",))  # groups of matrices that are ranked together: Z; weights


def prune(net: Bayesian, share: float) -> Bayesian:
    """Return a copy of ``net`` without the ``share``, in (0, 1), of the least important entries of Z and of weights.

    Raises:
        ConfigError: ``share`` is not in (0, 1).
        UserError: ``net`` is already pruned, or none of its layers can be pruned.
    """
    require(0 < share < 1, "prune", "must be > 0 and < 1", share)
    if kept_counts(net):
        raise UserError("the network is already pruned: prune the unpruned network by the whole share")
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
    pruned = copy.deepcopy(net)
    for name, layer, bias in _layers(pruned):
        kept = {matrix: mask for (of, matrix), mask in masks.items() if of == name}
        if bias and "weight" in kept:  # the last column is kept
            kept["weight"] = torch.cat([kept["weight"], torch.ones_like(kept["weight"][:, :1])], 1)
        layer.keep(kept)
    return pruned


def kept_counts(net: Bayesian) -> dict[str, int]:
    """Return the number of kept entries of each pruned matrix, by its mask's name in ``net``, for :func:`shrink`."""
    return {name: module.count for name, module in net.named_modules() if isinstance(module, Kept)}


def shrink(net: Bayesian, counts: Mapping[str, int]) -> Bayesian:
    """Return ``net`` in the shape of a pruned network, to load its ``state_dict``; its own values are not defined."""
    for name, layer, _ in _layers(net):
        masks = {}
        for matrix, values in layer.importance().items():
            at = f"{name}.kept" if matrix == "weight" else f"{name}.kept_{matrix}"
            if at in counts:  # a placeholder with the right number of entries
                masks[matrix] = (torch.arange(values.numel(), device=values.device) < counts[at]).view(values.shape)
        layer.keep(masks)
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
    """Return masks that keep all but the ``share`` of the entries of all matrices together."""
    if not scores:
        return {}
    flat = torch.cat([values.flatten() for values in scores.values()])
    count = math.floor((1 - Fraction(repr(float(share)))) * len(flat))  # 1 − 0.9 in floating point is below 0.1
    threshold = flat.kthvalue(len(flat) - count).values  # the largest removed score; at least one entry is removed
    mask = flat > threshold
    ties = (flat == threshold).nonzero()[:, 0]
    mask[ties[: count - int(mask.sum())]] = True
    parts = mask.split([values.numel() for values in scores.values()])
    return {at: part.view(values.shape) for part, (at, values) in zip(parts, scores.items(), strict=True)}
