"""Acquisition functions against enumeration, numeric integration and definitions."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bdl_decisions import rules as acquisition
from bdl_pipe.errors import ConfigError
from bdl_pipe.predictive import mixture
from bdl_pipe.seeds import Seed


def drawn(draws: int, rows: int, classes: int, address: str = "a") -> Tensor:
    logits = 2 * torch.randn(draws, rows, classes, dtype=torch.float64, generator=Seed(0).fold(address).generator())
    return logits.log_softmax(-1)


def information(joint: np.ndarray) -> float:
    """I[a; b] of a table of probabilities, by its definition."""
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    return float((joint * np.log(joint / independent)).sum())


def test_entropy_and_margin_equal_scipy_and_numpy() -> None:
    log_probs = mixture(drawn(4, 6, 3))
    probs = log_probs.exp().numpy()
    assert acquisition.entropy(log_probs).numpy() == pytest.approx([stats.entropy(row) for row in probs])
    ordered = np.sort(probs, 1)
    assert acquisition.margin(log_probs).numpy() == pytest.approx(ordered[:, -2] - ordered[:, -1])


def test_bald_equals_the_mutual_information_of_label_and_draw() -> None:
    draws = drawn(5, 7, 4)
    by_hand = [information(draws[:, row].exp().numpy() / 5) for row in range(7)]
    assert acquisition.bald(draws).numpy() == pytest.approx(by_hand, rel=1e-10)
    draws = torch.tensor([[[0.0, -torch.inf]], [[0.0, -torch.inf]]], dtype=torch.float64)
    assert acquisition.bald(draws).tolist() == [0.0]


def test_epig_equals_the_mean_mutual_information_of_two_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, theirs = drawn(5, 4, 3), drawn(5, 6, 3, "b")
    p, q = candidates.exp().numpy(), theirs.exp().numpy()
    tables = [[np.einsum("sc,sk->ck", p[:, row], q[:, target]) / 5 for target in range(6)] for row in range(4)]
    by_hand = [np.mean([information(table) for table in of_row]) for of_row in tables]
    whole = acquisition.epig(candidates, theirs)
    assert whole.numpy() == pytest.approx(by_hand, rel=1e-9)
    monkeypatch.setattr(acquisition, "_AT_ONCE", 110)  # in parts
    assert torch.allclose(acquisition.epig(candidates, theirs), whole, atol=1e-12)


def test_batch_bald_maximises_the_information_of_the_whole_batch_greedily() -> None:
    draws = drawn(6, 5, 3)
    probs = draws.exp().numpy()

    def of_batch(rows: tuple[int, ...]) -> float:
        """I[y_1 … y_n; draw] over all outcomes."""
        outcomes = itertools.product(range(3), repeat=len(rows))
        table = [np.prod([probs[:, row, y] for row, y in zip(rows, ys, strict=True)], axis=0) / 6 for ys in outcomes]
        return information(np.array(table))

    chosen = acquisition.batch_bald(draws, 3)
    for size in (1, 2, 3):
        before = tuple(chosen[: size - 1])
        others = [row for row in range(5) if row not in before]
        assert chosen[size - 1] == max(others, key=lambda row: of_batch((*before, row)))
    joint = torch.ones(6, 1, dtype=torch.float64)
    for row in chosen[:2]:
        joint = (joint[:, :, None] * draws.exp()[:, None, row]).flatten(1)
    inner = -(draws.exp() * draws).sum(-1).mean(0)
    gain = acquisition.joint_entropy(joint, draws.exp())[chosen[2]] - inner[chosen].sum()
    assert float(gain) == pytest.approx(of_batch(tuple(chosen)), rel=1e-9)


def test_batch_bald_avoids_copies_that_bald_takes_and_refuses_too_large_a_batch() -> None:
    """Rows 0 to 2 tell the first two of four draws from the last two; row 3 splits both pairs, with less certainty."""
    first = torch.tensor([0.99, 0.99, 0.01, 0.01]).double()
    second = torch.tensor([0.9, 0.1, 0.9, 0.1]).double()
    probs = torch.stack([first, first, first, second], 1)
    draws = torch.stack([probs, 1 - probs], -1).log()
    assert 3 not in acquisition.bald(draws).topk(2).indices.tolist()
    assert acquisition.batch_bald(draws, 2) == [0, 3]
    with pytest.raises(ConfigError, match=r"^batch must be <= 5 for batch_bald with 10 classes, got 6$"):
        acquisition.batch_bald(drawn(2, 8, 10), 6)


@pytest.mark.parametrize(("mean", "deviation", "best"), [(0.3, 1.2, 0.5), (-2.0, 0.4, 0.0), (3.0, 0.1, 1.0)])
def test_expected_improvement_equals_its_integral(mean: float, deviation: float, best: float) -> None:
    density = stats.norm(mean, deviation).pdf
    edges = (max(best, mean - 12 * deviation), max(best, mean) + 12 * deviation)
    by_hand = integrate.quad(lambda f: (f - best) * density(f), *edges, epsabs=1e-14)[0]
    improvement = acquisition.expected_improvement(torch.tensor([[[mean]]]), torch.tensor([[[deviation]]]), best)
    assert float(improvement) == pytest.approx(by_hand, rel=1e-6, abs=1e-12)


def test_expected_improvement_of_a_mixture_is_the_mean_over_its_parts() -> None:
    mean, deviation = torch.tensor([[[0.2]], [[1.5]]]), torch.tensor([[[0.7]], [[0.0]]])
    first, both = (acquisition.expected_improvement(mean[:n], deviation[:n], 0.4) for n in (1, 2))
    assert float(both) == pytest.approx((float(first) + 1.1) / 2, rel=1e-6)


def test_batch_improvement_adds_the_best_row_at_each_step() -> None:
    values = torch.randn(20, 6, dtype=torch.float64, generator=Seed(1).generator())

    def of_batch(rows: list[int]) -> float:
        return float(np.mean([max(max(float(v[row]) for row in rows) - 0.2, 0.0) for v in values]))

    chosen = acquisition.batch_improvement(values, 0.2, 3)
    for size in (1, 2, 3):
        others = [row for row in range(6) if row not in chosen[: size - 1]]
        assert chosen[size - 1] == max(others, key=lambda row: of_batch([*chosen[: size - 1], row]))


def test_each_draw_takes_its_best_row_that_is_still_free() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    assert acquisition.different(scores).tolist() == [1, 2, 0]
