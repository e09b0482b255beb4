"""Predictions from many draws of the weights.

Tensors that do not depend on the draw (the factors of Z and D, a covariance's factor) are computed once, for all draws
and later calls. Each draw's weights are used for all rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from ..errors import require
from ..networks import fastest_order
from ..networks.normalisation import evaluation
from ..seeds import Seed
from .network import Bayesian, is_local
from .posteriors import Noise

_AT_ONCE: Final = 1 << 24  # the most weights that are drawn together
_BATCHED: Final = 1 << 18  # larger networks are computed one draw at a time


@torch.no_grad()
def outputs(
    net: Bayesian,
    inputs: Float[Tensor, "batch ..."],
    num_draws: int,
    rng: Seed | torch.Generator,
    *,
    rows: int | None = None,
    together: int | None = None,
    local: bool = False,
) -> Float[Tensor, "draw batch ..."]:
    """Return the network's outputs, in evaluation mode, under each of ``num_draws`` draws of its weights.

    Draw k comes from ``rng.fold("draw", k)``: the same network for every batch and every ``num_draws``. With a
    generator, each call has other networks. Draws use the members (Ensemble-U) in turn, from the first on.

    Args:
        rows: the number of rows of a forward pass; it does not change the draws. None passes all rows at once.
        together: the number of draws of a forward pass. None gives one for a large network or for images on a CPU,
            otherwise many.
        local: whether layers with independent weights draw their outputs instead of their weights, independently for
            each row and each place of a convolution. A draw is then not a network, and rows have no joint distribution.

    Raises:
        ConfigError: ``num_draws`` is not a multiple of the number of members, so the members would have unequal
            weights.
    """
    require(num_draws > 0, "num_draws", "must be > 0", num_draws)
    members = net.members or 1
    require(num_draws % members == 0, "num_draws", f"must be a multiple of the {members} members", num_draws)
    factors = net.kept_factors()
    step = together
    if step is None:  # many for small networks, to save overhead, few for large ones' memory
        size = sum(place.size for place in net.places.values())
        alone = size > _BATCHED or _cpu_images(inputs)  # grouped convolutions are slower on a CPU
        step = 1 if alone else max(1, min(num_draws, _AT_ONCE // size))
    require(step > 0, "together", "must be > 0 or null", together)
    parts = _laid_out(inputs, net, step).split(rows or max(len(inputs), 1))
    drawn_outputs = []
    with evaluation(net):
        for first in range(0, num_draws, step):
            numbers = range(first, min(first + step, num_draws))
            noise = list[Noise]()
            for k in numbers:
                generator = rng.fold("draw", k).generator(inputs.device) if isinstance(rng, Seed) else rng
                normal = net.draw(1, generator, inputs if local else None)
                noise.append({name: v[0].to(inputs.device) for name, v in normal.items()})
                if net.members is not None:
                    noise[-1]["member"] = net.turns(k, 1)[0].to(inputs.device)
            if local and noise[0]:
                drawn_outputs.append(torch.cat(list(_by_part(net, factors, parts, noise)), 1))
            elif len(noise) == 1 or not noise[0]:  # points have no noise, so all draws are equal
                weights = net.weights(noise[0], factors)
                one = torch.cat([net.run(part, weights) for part in parts])
                drawn_outputs.append(one.expand(len(noise), *one.shape))
            else:
                stacked = {k: torch.stack([n[k] for n in noise]) for k in noise[0]}
                drawn = vmap(lambda n: net.weights(n, factors))(stacked)  # name -> [draw, ...]
                drawn_outputs.append(torch.cat([vmap(net.run, (None, 0))(part, drawn) for part in parts], 1))
    return torch.cat(drawn_outputs)


def _by_part(net: Bayesian, factors: Any, parts: Sequence[Tensor], noise: Sequence[Noise]) -> Iterator[Tensor]:
    """Yield the outputs [draw, row, ...] of each part of a batch, with its rows of the outputs' noise."""
    rows, whole = 0, sum(len(part) for part in parts)
    for part in parts:
        drawn = []
        for one in noise:
            local = {name: values for name, values in one.items() if is_local(name)}
            local = {n: v[len(v) * rows // whole :][: len(v) * len(part) // whole] for n, v in local.items()}
            drawn.append(net.run(part, net.weights(one | local, factors)))
        rows += len(part)
        yield torch.stack(drawn)


def draws(
    net: Bayesian,
    inputs: Float[Tensor, "batch ..."],
    num_draws: int,
    rng: Seed | torch.Generator,
    *,
    rows: int | None = None,
    together: int | None = None,
) -> Float[Tensor, "draw batch class"]:
    """Return log-probabilities of classes under each draw; see :func:`outputs`."""
    return outputs(net, inputs, num_draws, rng, rows=rows, together=together).log_softmax(-1)


def _laid_out(inputs: Tensor, net: Bayesian, together: int) -> Tensor:
    """Return the inputs in the network's fastest memory order; outputs change only by rounding.

    For images on a CPU and one draw at a time it is the network's own order; for several draws it is the contiguous
    order, because vmap has no channels-last group norm.
    """
    if together == 1 and not _cpu_images(inputs):
        return inputs
    order = torch.contiguous_format if together > 1 else fastest_order(net)
    # a copy even with one channel, where both orders are equal in memory: operations choose by strides
    return inputs.clone(memory_format=order)


def _cpu_images(inputs: Tensor) -> bool:
    return inputs.ndim == 4 and inputs.device.type == "cpu"


def stored(net: nn.Module) -> int:
    """Return the number of stored parameters, including normalisation's but no buffers."""
    return sum(p.numel() for p in net.parameters())
