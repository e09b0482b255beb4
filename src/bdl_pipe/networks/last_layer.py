"""Features, logits and labels: the inputs and outputs of the last layer of a posterior's networks.

:class:`LastLayer` has both for unfamiliarity scores. Class densities of features are diagonal Gaussians.

Features are the trunk's output. A mixture of draws has one row of features for each input: the shared trunk's features
if all draws share a trunk, else the mean over the draws' trunks. The features of separately trained networks do not
correspond to each other, so that their mean means little. A mixture's logits are the mean over draws, and so are the
weights that determine the origin.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from ..artifacts import under, unstack
from ..errors import DataError
from .base import Network, Replicas

LOG_2PI: Final = math.log(2 * math.pi)
ClassShares = Tensor | Sequence[float]


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
    return LastLayer(features, F.linear(features, weight, bias), _origin(weight, bias), weight, bias)


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
    logits = [F.linear(*layer) for layer in zip(of_draw, weight, biases, strict=True)]
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


def log_densities(
    features: Float[Tensor, "batch feature"],
    mean: Float[Tensor, "class feature"],
    variance: Float[Tensor, "class feature"],
) -> Float[Tensor, "batch class"]:
    """Return log N(φ | mean[k], diag variance[k]) of every pair, without a tensor of size [batch, class, feature].

    (φ − μ)²/C = φ²/C − 2φμ/C + μ²/C, where the first two terms are matrix products. The rounding error is about machine
    epsilon times the squared Mahalanobis distance between classes. Values are therefore centred on the mean of the
    class means, and the products are in float64 if the device has it, which also avoids TF32 and autocast.
    """
    centre = mean.detach().mean(0)  # the result does not depend on it, so neither does its gradient
    z, offset, precision = widen(features - centre), widen(mean - centre), widen(variance.reciprocal())
    scaled = precision * offset
    constant = (scaled * offset).sum(-1) + variance.log().sum(-1) + mean.shape[-1] * LOG_2PI  # [class]
    exponent = z @ scaled.T - 0.5 * (z.square() @ precision.T + constant)
    return exponent.to(torch.promote_types(features.dtype, mean.dtype))


def prior_density(
    features: Float[Tensor, "batch feature"], variance: Float[Tensor, " feature"]
) -> Float[Tensor, " batch"]:
    """Return log N(φ | 0, diag variance)."""
    density = -0.5 * (widen(features).square() / variance + variance.log() + LOG_2PI).sum(-1)
    return density.to(torch.promote_types(features.dtype, variance.dtype))


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, or in float32 if the device does not have float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


class Buffers(nn.Module):
    """Named tensors without gradients: the state of a posterior that is computed after training."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def skeleton(cls, **sizes: tuple[int, ...]) -> Self:
        """Return tensors of zeros, to load a ``state_dict`` into."""
        return cls(**{name: torch.zeros(size) for name, size in sizes.items()})


def class_moments(
    batches: Iterable[tuple[Tensor, ...]], classes: int, like: Float[Tensor, " feature"]
) -> tuple[Float[Tensor, " class"], Float[Tensor, "class feature"], Float[Tensor, "class feature"]]:
    """Return the number of rows, mean and scatter Σ(φ − mean)² of each class, on the device of ``like``.

    Batches (features, labels), or (features, labels, weights), are merged without sums of raw squares: Chan, Golub &
    LeVeque 1983, "Algorithms for computing the sample variance".

    Raises:
        DataError: there are no rows, labels are out of range, or features are not finite.
    """
    mean = scatter = widen(like.new_zeros(classes, len(like)))
    count = mean[:, 0]
    for features, labels, *weights in batches:
        labels = class_numbers(labels, len(features))
        check_labels(labels, classes)
        features = widen(features)
        member = F.one_hot(labels, classes).to(features)  # [batch, class]
        member = member * weights[0][:, None].to(member) if weights else member
        new = member.sum(0)
        mean_of_new = member.T @ features / _or_one(new)[:, None]
        scatter_of_new = member.T @ (features - mean_of_new[labels]).square()
        total = count + new
        share, step = (new / _or_one(total))[:, None], mean_of_new - mean
        scatter = scatter + scatter_of_new + step.square() * share * count[:, None]
        mean, count = mean + share * step, total
    if not count.sum() > 0:
        raise DataError("batches must have at least one row, got none")
    if not torch.isfinite(scatter).all():
        raise DataError("features must be finite")
    return count, mean, scatter


def _or_one(counts: Float[Tensor, " class"]) -> Float[Tensor, " class"]:
    return counts.where(counts > 0, 1.0)


def class_numbers(targets: Tensor, rows: int) -> Int[Tensor, " batch"]:
    """Return labels as int64.

    Raises:
        DataError: the number of labels is not the number of rows, or a label is not a whole number.
    """
    if not isinstance(targets, Tensor):
        raise DataError(f"labels must be a tensor, got {type(targets).__name__}; pass torch.as_tensor(labels)")
    if tuple(targets.shape) != (rows,):
        cure = "" if targets.ndim != 2 else "; pass y[:, 0]" if targets.shape[1] == 1 else "; pass y.argmax(1)"
        raise DataError(f"targets must be {rows} class numbers, got shape {tuple(targets.shape)}{cure}")
    if targets.is_complex():
        raise DataError(f"labels must be whole numbers, got {targets.dtype}")
    labels = targets.long()
    if targets.is_floating_point():
        broken = targets[targets != labels]
        if len(broken):
            raise DataError(f"labels must be whole numbers, got {float(broken[0]):g}")
    return labels


@contextlib.contextmanager
def labels_as_index(labels: Int[Tensor, " batch"], classes: int) -> Iterator[None]:
    """Inside the block, report an index error as a label out of range.

    Valid labels then need no extra check, because a CPU checks indices. An accelerator fails asynchronously with its
    own index error.

    Raises:
        DataError: a label is not in 0 … ``classes`` − 1.
    """
    try:
        yield
    except (IndexError, RuntimeError):
        check_labels(labels, classes)
        raise


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise DataError if a label is not in 0 … ``classes`` − 1."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(f"labels must be in 0 … {classes - 1}, got {int(wrong[0])}")


def log_shares(class_shares: ClassShares, like: Float[Tensor, " class"]) -> Float[Tensor, " class"]:
    """Return the log of probabilities of classes, with the shape, device and precision of ``like``.

    Raises:
        DataError: they are not one number >= 0 for each class with the sum 1.
    """
    shares = torch.as_tensor(class_shares, dtype=torch.float64)
    if shares.shape != like.shape or not bool((shares >= 0).all()) or abs(float(shares.sum()) - 1) > 1e-4:
        raise DataError(f"class_shares must be {len(like)} numbers >= 0 with the sum 1, got {shares.tolist()}")
    return shares.log().to(like)
