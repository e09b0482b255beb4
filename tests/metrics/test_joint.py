"""The joint of pairs against a sum over draws by hand."""

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


def test_terms_of_batches_put_together_give_the_predictives_own_joint() -> None:
    random = torch.Generator().manual_seed(0)
    predictive = Categorical(torch.randn(4, 30, 3, generator=random, dtype=torch.float64).log_softmax(-1))
    targets = torch.randint(3, (30,), generator=random)
    parts = [Categorical(predictive.draw_log_probs[:, rows]) for rows in (slice(0, 11), slice(11, 30))]
    terms = torch.cat([metrics.target_terms(p, t) for p, t in zip(parts, targets.split([11, 19]), strict=True)], 1)
    first, second = torch.arange(15), torch.arange(15, 30)
    nll, _ = metrics.joint_scores(terms, first, second)
    assert nll.value == pytest.approx(-float(predictive.joint_log_prob(first, second, targets).mean()), rel=1e-12)


def test_one_draw_has_no_gap_at_all() -> None:
    terms = torch.randn(1, 50)
    assert metrics.joint_scores(terms, torch.arange(25), torch.arange(25, 50))[1].value == 0.0
