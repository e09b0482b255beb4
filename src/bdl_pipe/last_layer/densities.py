"""Log densities of features under diagonal Gaussians, one for each class."""

import contextlib
import math
from collections.abc import Iterator
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import DataError

LOG_2PI: Final = math.log(2 * math.pi)


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


def feature_log_prior(
    features: Float[Tensor, "batch feature"], variance: Float[Tensor, " feature"]
) -> Float[Tensor, " batch"]:
    """Return log N(φ | 0, diag variance)."""
    density = -0.5 * (widen(features).square() / variance + variance.log() + LOG_2PI).sum(-1)
    return density.to(torch.promote_types(features.dtype, variance.dtype))


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, or in float32 if the device does not have float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def check_features(features: Tensor, width: int) -> None:
    """Raise DataError if the features are not ``width`` wide."""
    if not isinstance(features, Tensor):
        raise DataError(f"features must be a tensor, got {type(features).__name__}; pass torch.as_tensor(features)")
    if features.is_complex() or features.dtype == torch.bool or features.layout is not torch.strided:
        got = features.dtype if features.layout is torch.strided else features.layout
        raise DataError(f"features must be a dense tensor of real numbers, got {got}")
    if features.shape[-1] != width:
        raise DataError(f"features must have {width} columns, got {features.shape[-1]}")


def check_rows(features: Tensor) -> None:
    """Raise DataError unless features are [row, feature], with a row: the mean of no rows would be NaN."""
    shape = tuple(features.shape)
    if len(shape) != 2:
        raise DataError(f"features must have shape [row, feature], got {list(shape)}; flatten other dimensions")
    if not len(features):
        raise DataError("features must have at least one row, got none")


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
