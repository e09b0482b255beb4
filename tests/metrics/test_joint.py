"""The joint of pairs against a sum over draws by hand."""

import itertools

import numpy as np
import pytest
import torch

from bdl_pipe import metrics
from bdl_pipe.predictive import Categorical


def test_two_draws_that_disagree_by_hand() -> None:
    """Both rows say class 0 with .9 under one draw and .2 under the other: labels 0, 0 belong together."""
    probs = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.2, 0.8], [0.2, 0.8]]], dtype=torch.float64)
    terms = metrics.target_terms(Categorical(probs.log()), torch.tensor([0, 0]))
    nll, gap = metrics.joint_scores(terms, torch.tensor([0]), torch.tensor([1]))
    joint, marginal = (0.81 + 0.04) / 2, 0.55
    assert nll.value == pytest.approx(-np.log(joint), rel=1e-12)
    assert gap.value == pytest.approx(np.log(joint / marginal**2), rel=1e-12)
    assert gap.value > 0.3


@pytest.fixture
def predictive() -> Categorical:
    """Five draws of four rows in three classes."""
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Categorical(logits.log_softmax(-1))


def test_the_joint_of_pairs_by_brute_force(predictive: Categorical) -> None:
    targets, probs = [0, 2, 1, 1], predictive.draw_log_probs.exp().numpy()
    pairs = list(itertools.combinations(range(4), 2))
    expected = [
        np.log(np.mean([probs[s, i, targets[i]] * probs[s, j, targets[j]] for s in range(5)])) for i, j in pairs
    ]
    first, second = torch.tensor(pairs).T
    terms = metrics.target_terms(predictive, torch.tensor(targets))
    np.testing.assert_allclose(metrics.joint_log_prob(terms, first, second), expected, atol=1e-12)
    assert metrics.joint_scores(terms, first, second)[0].value == pytest.approx(-np.mean(expected), rel=1e-12)
    product = predictive.log_prob(torch.tensor(targets))  # the control: independence is another number
    assert not np.allclose(expected, product[first] + product[second], atol=1e-3)


def test_joint_probabilities_sum_to_one(predictive: Categorical) -> None:
    pair = torch.tensor([0]), torch.tensor([1])
    labels = [torch.tensor([a, b, 0, 0]) for a, b in itertools.product(range(3), repeat=2)]
    each = [metrics.joint_log_prob(metrics.target_terms(predictive, y), *pair).exp().item() for y in labels]
    assert sum(each) == pytest.approx(1, abs=1e-12)


def test_terms_of_batches_can_be_put_together(predictive: Categorical) -> None:
    targets = torch.tensor([0, 2, 1, 1])
    parts = [Categorical(predictive.draw_log_probs[:, rows]) for rows in (slice(0, 1), slice(1, 4))]
    terms = torch.cat([metrics.target_terms(p, t) for p, t in zip(parts, targets.split([1, 3]), strict=True)], 1)
    assert torch.equal(terms, metrics.target_terms(predictive, targets))


def test_one_draw_has_no_gap_at_all() -> None:
    terms = torch.randn(1, 50)
    assert metrics.joint_scores(terms, torch.arange(25), torch.arange(25, 50))[1].value == 0.0
