"""The best shares of a mixture's parts against dense grids of two and of three shares."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.derived_predictive import best_shares
from bdl_pipe.seeds import Seed


def shares_of(parts: Tensor, counts: np.ndarray | None = None) -> np.ndarray:
    return best_shares(parts.numpy(), 5_000, counts)


def score(parts: Tensor, shares: object) -> float:
    return float((torch.as_tensor(shares)[:, None] * parts.exp()).sum(0).log().sum())


@pytest.mark.parametrize(("lead", "inside"), [(0.3, True), (6.0, False), (-6.0, False)])
def test_two_shares_have_the_best_log_score_of_a_dense_grid(lead: float, inside: bool) -> None:
    parts = torch.randn(2, 60, generator=Seed(1).generator()).double()
    parts[0] += lead
    share, rest = shares_of(parts)
    grid = np.linspace(0, 1, 10_001)
    best = grid[np.argmax([score(parts, [w, 1 - w]) for w in grid])]
    assert share == pytest.approx(best, abs=1e-4) and share + rest == pytest.approx(1)
    assert (0.01 < share < 0.99) == inside
    # wrong: the share of rows on which the first part is better, and a half
    for wrong in [float((parts[0] > parts[1]).double().mean()), 0.5] if inside else [0.5]:
        assert score(parts, [share, rest]) > score(parts, [wrong, 1 - wrong]) + 0.1


def test_three_shares_have_the_best_log_score_of_a_dense_grid() -> None:
    parts = torch.randn(3, 80, generator=Seed(4).generator()).double()
    parts[2] -= 0.2
    ours = shares_of(parts)
    grid = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 201) for b in np.linspace(0, 1, 201) if a + b <= 1]
    scores = [score(parts, torch.tensor(of)) for of in grid]
    np.testing.assert_allclose(ours, grid[int(np.argmax(scores))], atol=0.005)
    assert score(parts, ours) >= max(scores) and min(ours) > 0.05
    # wrong: each of two shares against the third part alone
    wrong = np.array([shares_of(parts[[0, 2]])[0], shares_of(parts[[1, 2]])[0]]) / 2
    assert score(parts, ours) > score(parts, [*wrong, 1 - wrong.sum()]) + 0.02


def test_rows_that_no_part_can_have_play_no_part() -> None:
    parts = torch.randn(2, 30, generator=Seed(2).generator()).double()
    never = torch.full((2, 3), -torch.inf).double()
    np.testing.assert_array_equal(shares_of(torch.cat([parts, never], 1)), shares_of(parts))
    assert shares_of(torch.stack([parts[0], torch.full_like(parts[0], -torch.inf)])).tolist() == [1, 0]
    assert shares_of(never).tolist() == [0.5, 0.5]


def test_a_row_with_a_count_weighs_as_so_many_rows() -> None:
    parts = torch.randn(3, 40, generator=Seed(6).generator()).double()
    counts = np.where(np.arange(40) % 2, 3.0, 1.0)
    repeated = parts[:, np.repeat(np.arange(40), counts.astype(int))]
    np.testing.assert_allclose(shares_of(parts, counts), shares_of(repeated), atol=1e-12)
    assert np.abs(shares_of(parts, counts) - shares_of(parts)).max() > 1e-2
