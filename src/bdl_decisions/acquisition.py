"""Acquisition functions: the value of a label or an evaluation, from class probabilities or functions' values.

Functions of classes take log p(class | row, draw) as [draw, row, class], each draw being one function at all rows, and
return nats [row]. Expectations over draws are exact for the given draws.
"""

import math
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bdl_pipe.errors import require
from bdl_pipe.predictive import mixture

MOST_OUTCOMES: Final = 10_000  # outcomes of a batch without its last row; BatchBALD sums over all outcomes
_AT_ONCE: Final = 20_000_000  # the largest number of joint probabilities in memory


def entropy(log_probs: Float[Tensor, "row class"]) -> Float[Tensor, " row"]:
    """Return H[y | x] of the mean over draws."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def margin(log_probs: Float[Tensor, "row class"]) -> Float[Tensor, " row"]:
    """Return minus the difference of the two largest probabilities (Scheffer et al. 2001)."""
    first, second = log_probs.topk(2, dim=-1).values.exp().unbind(-1)
    return second - first


def bald(draws: Float[Tensor, "draw row class"]) -> Float[Tensor, " row"]:
    """Return I[y; f | x] = H[y | x] − E_f H[y | x, f] (Houlsby et al. 2011)."""
    return entropy(mixture(draws)) - torch.special.entr(draws.exp()).sum(-1).mean(0)


def epig(draws: Float[Tensor, "draw row class"], targets: Float[Tensor, "draw target class"]) -> Float[Tensor, " row"]:
    """Return E_{x*} I[y; y* | x, x*], the expected predictive information gain (Bickford Smith et al. 2023, eq. 8).

    Args:
        targets: log-probabilities of the same draws at the inputs x* of future predictions.
    """
    own, theirs = draws.exp(), targets.exp()
    own_entropy, their_entropy = entropy(mixture(draws)), entropy(mixture(targets)).mean()
    count, classes, total = len(draws), own.shape[-1], list[Tensor]()
    for part in own.split(max(1, _AT_ONCE // (classes * theirs[0].numel())), dim=1):
        joint = torch.einsum("src,stk->rctk", part, theirs) / count
        total.append(torch.special.entr(joint).sum((1, 3)).mean(-1))
    return own_entropy + their_entropy - torch.cat(total)


def batch_bald(draws: Float[Tensor, "draw row class"], count: int) -> list[int]:
    """Choose ``count`` rows one after the other, each with the largest I[y_1 … y_n; f] (Kirsch et al. 2019, alg. 1).

    The entropy of the joint of a batch is a sum over all outcomes, without sampling of outcomes.

    Raises:
        ConfigError: the rows before the last have too many joint outcomes.
    """
    classes = draws.shape[-1]
    most = 1 + int(math.log(MOST_OUTCOMES) / math.log(classes) + 1e-9)
    require(count <= most, "batch", f"must be <= {most} for batch_bald with {classes} classes", count)
    probs = draws.exp()
    inner = torch.special.entr(probs).sum(-1).mean(0)  # [row]
    joint = probs.new_ones(len(draws), 1)  # p(y_1 … y_{n−1} | draw) [draw, outcome]
    chosen, left = list[int](), probs.new_zeros(probs.shape[1])
    for _ in range(min(count, probs.shape[1])):
        gain = joint_entropy(joint, probs) - inner - sum(inner[row] for row in chosen)
        left[chosen] = -torch.inf
        chosen.append(int((gain + left).argmax()))
        joint = (joint[:, :, None] * probs[:, None, chosen[-1]]).flatten(1)
    return chosen


def joint_entropy(joint: Float[Tensor, "draw outcome"], probs: Float[Tensor, "draw row class"]) -> Tensor:
    """Return H[y_1 … y_{n−1}, y] for each row's y [row], given the probabilities of the outcomes of n − 1 rows."""
    sizes = max(1, _AT_ONCE // (joint.shape[1] * probs.shape[2]))
    found = []
    for part in probs.split(sizes, dim=1):
        every = torch.einsum("so,src->orc", joint, part) / len(joint)
        found.append(torch.special.entr(every).sum((0, 2)))
    return torch.cat(found)


def expected_improvement(
    mean: Float[Tensor, "part group row"], deviation: Float[Tensor, "part group row"], best: float
) -> Float[Tensor, "group row"]:
    """Return E[max(f − best, 0)] of an equal mixture of N(mean, deviation²) (Jones et al. 1998, eq. 15).

    A part without deviation is a point, such as a draw of a network.
    """
    gain = mean.double() - best
    scale = deviation.double().clamp_min(1e-300)
    z = gain / scale
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return torch.where(deviation > 0, gain * torch.special.ndtr(z) + scale * density, gain.clamp_min(0)).mean(0)


def batch_improvement(values: Float[Tensor, "draw row"], best: float, count: int) -> list[int]:
    """Choose ``count`` rows one after the other, each with the largest E[max(f_1, …, f_n, best)] over the draws.

    It is the greedy form of Ginsbourger et al. 2010, "Kriging is well-suited to parallelize optimization"; draws of
    functions at all rows together give the expectation.
    """
    chosen, reached = list[int](), values.new_full((len(values), 1), best)
    taken = values.new_zeros(values.shape[1])
    for _ in range(min(count, values.shape[1])):
        gain = (values - reached).clamp_min(0).mean(0)
        taken[chosen] = -torch.inf
        chosen.append(int((gain + taken).argmax()))
        reached = torch.maximum(reached, values[:, chosen[-1:]])
    return chosen


def different(scores: Float[Tensor, "draw row"]) -> Int[Tensor, " draw"]:
    """Return each draw's best row that no earlier draw has taken."""
    taken, chosen = scores.new_zeros(scores.shape[1]), list[int]()
    for own in scores:
        chosen.append(int((own + taken).argmax()))
        taken[chosen[-1]] = -torch.inf
    return torch.tensor(chosen)
