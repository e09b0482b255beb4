"""Networks drawn around the end of a trajectory, each with the running statistics of its own weights."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..artifacts import State, stack, unstack
from ..data.fitdata import FitData
from ..networks.normalisation import has_batch_norm, refresh_batch_norm
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed


def refreshing_rows(network: nn.Module, data: FitData, count: int | None, rng: Seed) -> Tensor:
    """``count`` training rows that refresh statistics (None: all), the same for all draws; none where nothing needs
    them. The inputs alone, transformed, [row, ...]."""
    inputs, _ = data.tensors("train", data.device)
    if not has_batch_norm(network):
        return inputs[:0]
    order = torch.randperm(len(inputs), generator=rng.fold("rows").generator())
    return inputs[order[:count].to(data.device)]


@torch.no_grad()
def draw_networks(
    spec: NetworkSpec,
    last: Mapping[str, Tensor],
    draw: Callable[[int], Mapping[str, Tensor]],
    count: int,
    rows: Tensor,
    batch: int,
    *,
    report: Report,
) -> NetworkDraws:
    """``count`` networks of the weights ``last | draw(number)``; may be resumed after any of them.

    Args:
        last: every entry of the ``state_dict``.
        draw: a draw's number -> its weights by name, of any floating type.
        rows: inputs that refresh running statistics, on the device to compute on; none: they stay those of ``last``.
        batch: rows in one batch of that pass.
    """
    network = spec.build(Seed(0)).to(rows.device)
    saved = report.load()
    drawn = unstack(saved.tensors) if saved is not None else []
    for number in range(len(drawn), count):
        network.load_state_dict(dict(last) | {name: value.to(last[name]) for name, value in draw(number).items()})
        if len(rows):
            refresh_batch_norm(network, rows, batch)
        drawn.append({name: value.detach().cpu().clone() for name, value in network.state_dict().items()})
        report(number + 1, count)
        if report.due():
            report.save(State(stack(drawn)))
    return NetworkDraws.of(spec, drawn)
