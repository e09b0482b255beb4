"""A trajectory's parameters as vectors, and the training rows for the running statistics of batch normalisation."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.fitdata import FitData
from ..networks.normalisation import has_batch_norm
from ..seeds import Seed


def parameter_names(network: nn.Module) -> list[str]:
    """In the order of the vectors."""
    return [name for name, _ in network.named_parameters()]


def flat(past: Mapping[str, Tensor], names: Sequence[str]) -> Float[Tensor, "epoch weight"]:
    """Stacked parameters [epoch, ...] as one vector for each epoch."""
    return torch.cat([past[name].flatten(1) for name in names], dim=1)


def named(vector: Float[Tensor, " weight"], names: Sequence[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector as named tensors of the shapes and types in ``like``."""
    parts = vector.split([like[name].numel() for name in names])
    return {name: part.reshape(like[name].shape).to(like[name]) for name, part in zip(names, parts, strict=True)}


def statistics_rows(network: nn.Module, data: FitData, count: int | None, rng: Seed) -> Tensor:
    """``count`` training rows (None: all) in a random order; none where the network has no running statistics."""
    inputs, _ = data.tensors("train", data.device)
    if not has_batch_norm(network):
        return inputs[:0]
    order = torch.randperm(len(inputs), generator=rng.fold("rows").generator())
    return inputs[order[:count].to(data.device)]
