"""The softmax over one weight, against logarithms in 400 digits and torch's softmax."""

import math
from collections.abc import Callable

import pytest
import torch
from mpmath import mp, mpf

from bdl_pipe.collapsed.integrals.few_uniforms import softmax_one
from bdl_pipe.errors import DataError

from .cases import numbers

HALVES: dict[str, Callable[..., float]] = {
    "tiny": lambda random: 10 ** random.uniform(-12, -1),
    "middle": lambda random: random.uniform(0.1, 20),
    "large": lambda random: 10 ** random.uniform(1, 4),
}


def exact(logits: list[float], index: int, low: float, high: float, feature: float) -> list[mpf]:
    """[softplus − softplus]/range, in 400 digits; the other classes share the rest."""
    with mp.workdps(400):
        rest = mp.fsum(mp.exp(v) for j, v in enumerate(logits) if j != index)
        ends = [mpf(logits[index]) + mpf(feature) * mpf(w) - mp.log(rest) for w in (low, high)]
        own = (mp.log1p(mp.exp(ends[1])) - mp.log1p(mp.exp(ends[0]))) / (ends[1] - ends[0])
        others = (mp.log1p(mp.exp(-ends[0])) - mp.log1p(mp.exp(-ends[1]))) / (ends[1] - ends[0])
        return [own if j == index else others * mp.exp(v) / rest for j, v in enumerate(logits)]


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("far", [1.0, 100.0])
def test_every_class_keeps_twelve_digits(halves: str, far: float) -> None:
    random = numbers("softmax", halves, int(far))
    for case in range(40):
        logits = [float(v) for v in far * random.normal(size=4)]
        middle, half = random.normal(), HALVES[halves](random)
        low, high, feature = float(middle - half), float(middle + half), float(random.choice([-1.5, 1.5]))
        where = [torch.tensor(v, dtype=torch.float64) for v in (low, high, feature)]
        got = softmax_one(torch.tensor(logits, dtype=torch.float64), case % 4, *where).tolist()
        wanted = exact(logits, case % 4, low, high, feature)
        # only the rounding of a logit of 100, and of the ends, remains
        assert all(abs(g - w) <= 1e-12 * w for g, w in zip(got, wanted, strict=True) if w > 1e-300)


def test_without_a_range_or_a_feature_the_result_is_the_softmax() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    feature = torch.tensor([2.0, 0.0], dtype=torch.float64)
    low = torch.tensor([0.4, -1.0], dtype=torch.float64)
    got = softmax_one(logits, 1, low, torch.tensor([0.4, 5.0], dtype=torch.float64), feature)
    expected = torch.stack([(logits + torch.tensor([0, 0.8, 0])).softmax(-1), logits.softmax(-1)])
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(got[1], logits.softmax(-1), rtol=1e-14, atol=0)


def test_indices_broadcast_and_probabilities_add_up_to_one() -> None:
    random = numbers("softmax shapes")
    logits, feature = torch.tensor(random.normal(size=(6, 1, 5))), torch.tensor(random.normal(size=(6, 1)))
    got = softmax_one(logits, torch.arange(5), -1.0, 2.0, feature)
    assert got.shape == (6, 5, 5)
    torch.testing.assert_close(got.sum(-1), torch.ones(6, 5).double(), rtol=1e-14, atol=0)
    torch.testing.assert_close(got[2, 3], softmax_one(logits[2, 0], 3, -1.0, 2.0, feature[2, 0]), rtol=1e-14, atol=0)
    small = softmax_one(logits.float(), torch.arange(5), -1.0, 2.0, feature.float())
    assert small.dtype == torch.float32
    torch.testing.assert_close(small.double(), got, rtol=2e-6, atol=0)


@pytest.mark.parametrize("reach", [1e-3, 0.4, 3.0, 40.0])
def test_gradients_equal_finite_differences(reach: float) -> None:
    leaves = [
        torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for value in ([[0.3, -1.0, 2.0]], [0.2 - reach], [0.2 + reach], [0.9])
    ]
    assert torch.autograd.gradcheck(lambda x, low, high, z: softmax_one(x, 2, low, high, z), leaves)


def test_gradients_are_right_where_both_classes_are_equally_likely() -> None:
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    where = torch.tensor(1.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: softmax_one(x, 0, -1.0, 1.0, where), logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 3}, r"index must be in 0 … 2, got 3"),
        ({"index": torch.tensor([0, -1])}, r"index must be in 0 … 2, got -1"),
        ({"low": 2.0}, r"low must be ≤ high, got high − low = -1.0"),
        ({"logits": torch.tensor([0.0])}, "logits must be of at least 2 classes, got 1"),
        ({"logits": torch.tensor([0.0, math.nan])}, "logits must be finite, got nan"),
        ({"feature": torch.tensor(math.inf)}, "feature must be finite, got inf"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    good = {"logits": torch.zeros(3), "index": 0, "low": 0.0, "high": 1.0, "feature": torch.tensor(1.0)}
    with pytest.raises(DataError, match=message):
        softmax_one(**{**good, **change})
