"""The NLL of batches: by hand, between its bounds, and equal to them for one draw."""

import math

import numpy as np
import pytest
import torch

from bdl_pipe import metrics
from bdl_pipe.predictive import Categorical


def test_two_draws_by_hand() -> None:
    """Geometric means over the rows: √(.9·.4) = .6 of the first draw, √(.2·.8) = .4 of the second."""
    terms = torch.tensor([[0.9, 0.4], [0.2, 0.8]], dtype=torch.float64).log()
    found = metrics.batch_nll(terms)
    assert (found.value, found.count) == (pytest.approx(-math.log(0.5), rel=1e-12), 2)
    per_row = -(math.log(0.55) + math.log(0.6)) / 2  # the control: the mixture at each row is another number
    assert found.value > per_row + 0.1


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_dirichlet_draws_lie_between_the_nll_and_the_mean_over_draws(concentration: float) -> None:
    random = np.random.default_rng(0)
    targets = torch.tensor(random.integers(10, size=60))
    for _ in range(20):
        probs = torch.tensor(random.dirichlet(np.full(10, concentration), size=(5, 60)))
        predictive = Categorical(probs.clamp_min(1e-300).log())
        terms = metrics.target_terms(predictive, targets)
        batches = [metrics.batch_nll(part) for part in terms.split([7, 30, 23], dim=1)]
        found = sum(batches, metrics.Mean()).value
        low, high = metrics.nll(predictive, targets).value, -float(terms.mean())
        assert low < found < high
        assert low < found < metrics.batch_nll(terms).value + 1e-12 < high


def test_one_row_is_the_nll_and_one_draw_is_all_three() -> None:
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(4, 1, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    one_row, target = Categorical(logs), torch.tensor([2])
    found = metrics.batch_nll(metrics.target_terms(one_row, target)).value
    assert found == pytest.approx(metrics.nll(one_row, target).value, rel=1e-12)
    terms = torch.randn(1, 50, generator=generator, dtype=torch.float64)
    assert metrics.batch_nll(terms).value == pytest.approx(-float(terms.mean()), rel=1e-12)
