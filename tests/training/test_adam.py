"""Adam against torch's own classes, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe.training.adam import Adam

RULES = {False: torch.optim.Adam, True: torch.optim.AdamW}


def weights() -> list[Tensor]:
    """Return a matrix, a channels-last tensor, a scalar, and a tensor that never has a gradient."""
    rng = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 2, 2, generator=rng).contiguous(memory_format=torch.channels_last)
    return [t.requires_grad_() for t in (torch.randn(5, 4, generator=rng), image, torch.zeros(()), torch.ones(3))]


def groups(parameters: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0, "lr": 0.02}]


def moved(optimiser: Any, parameters: list[Tensor], steps: int = 25) -> list[Tensor]:
    """Take steps with a rate that changes; the second tensor has a gradient from the third step on."""
    rng = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimiser.zero_grad()
        factor = torch.randn(5, 4, generator=rng)
        loss = (parameters[0] * factor).square().sum() + (parameters[2] - 1).square()
        if step >= 2:
            loss = loss + (parameters[1] - factor[0, 0]).abs().sum()
        loss.backward()
        optimiser.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimiser.step()
    return parameters


@pytest.mark.parametrize("fused", [True, False, None])
@pytest.mark.parametrize("decoupled", [False, True])
def test_weights_and_optimiser_state_match_torch_bit_for_bit(decoupled: bool, fused: bool | None) -> None:
    ours, theirs, others = weights(), weights(), weights()
    mine = Adam(groups(ours), lr=0.1, weight_decay=0.1, decoupled=decoupled, fused=fused)
    torchs = RULES[decoupled](groups(theirs), lr=0.1, weight_decay=0.1, fused=fused)
    wrong = Adam(groups(others), lr=0.1, weight_decay=0.1, decoupled=not decoupled, fused=fused)
    for optimiser, parameters in ((mine, ours), (torchs, theirs), (wrong, others)):
        moved(optimiser, parameters)
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our, their)
        assert mine.state.get(our, {}).keys() == torchs.state.get(their, {}).keys()
        for name, value in torchs.state.get(their, {}).items():
            kept = mine.state[our][name]
            assert torch.equal(kept, value) and kept.stride() == value.stride() and kept.dtype == value.dtype
    assert not torch.equal(ours[0], others[0])
