"""The negative log-likelihood of a Bayesian average against the ones that published evaluations print."""

import pytest
import torch
from torch import Tensor

from bdl_pipe.metrics import nll
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed

ROWS, CLASSES = 24, 3


def case(draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities [draw, row, class] of a Dirichlet law, and classes."""
    generator = Seed(seed).numpy()
    drawn = generator.dirichlet([0.4] * CLASSES, (draws, ROWS))
    return torch.from_numpy(drawn).clamp(min=1e-12).log(), torch.from_numpy(generator.integers(0, CLASSES, ROWS))


def by_batches(log_probs: Tensor, classes: Tensor, batch: int) -> float:
    """As published: −log (1/M) Σ_s exp(−mean cross-entropy of the batch under draw s), averaged over batches."""
    terms = log_probs.gather(2, classes.expand(len(log_probs), -1)[..., None])[..., 0]
    return float(-torch.stack([part.mean(1).exp().mean().log() for part in terms.split(batch, dim=1)]).mean())


def of_single_draws(log_probs: Tensor, classes: Tensor) -> float:
    return float(-log_probs.gather(2, classes.expand(len(log_probs), -1)[..., None]).mean())


@pytest.mark.parametrize("seed", range(10))
def test_the_published_likelihood_lies_between_ours_and_that_of_single_draws(seed: int) -> None:
    """By Hölder and Jensen; it falls to ours with batches of one row, and all three are one with one draw."""
    log_probs, classes = case(5, seed)
    ours, single = nll(Categorical(log_probs), classes).value, of_single_draws(log_probs, classes)
    printed = [by_batches(log_probs, classes, batch) for batch in (1, 4, ROWS)]
    assert printed[0] == pytest.approx(ours, rel=1e-12)
    for batches in printed[1:]:
        assert ours * 1.01 < batches < single
    alone, classes = case(1, seed)
    first = nll(Categorical(alone), classes).value
    assert first == pytest.approx(by_batches(alone, classes, 4), rel=1e-12)
    assert first == pytest.approx(of_single_draws(alone, classes), rel=1e-12)
