"""The note about short chains: absent where the chains mix, present where they hardly move."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import bayesianise


class Logistic(nn.Module):
    """A model whose posterior has one mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Identity(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def notes(lr: float) -> tuple[str, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
    torch.manual_seed(0)
    return bayesianise(Logistic(), "sgmcmc", DataLoader(TensorDataset(x, y), 60), epochs=300, lr=lr).notes


@pytest.mark.slow
def test_chains_that_mix_have_no_note_and_chains_that_hardly_move_have_one() -> None:
    pytest.importorskip("arviz")
    assert notes(0.1) == ()
    (note,) = notes(1e-4)
    assert note.startswith("chains ") and note.endswith("run them longer")
