"""Conformal scores by loops, their exact distribution, and coverage within binomial bands."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from bdl_pipe.metrics import conformal
from bdl_pipe.metrics.conformal import aps, cqr, held_by_group, lac, raps, threshold, widening
from bdl_pipe.seeds import Seed

ALARM = 1e-6  # the rate of false alarms of each statistical test below; seeds are fixed


def drawn(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of six classes, and labels drawn from them."""
    random = Seed(seed).fold("conformal").numpy()
    probs = random.dirichlet(np.full(6, 0.5), size=rows)
    return probs, (probs.cumsum(1)[:, :-1] <= random.random((rows, 1))).sum(1)


def test_the_threshold_is_the_score_with_the_conformal_rank() -> None:
    scores = np.array([5.0, 1, 4, 2, 3, 9, 8, 7, 6])
    assert [threshold(scores, level) for level in (0.05, 0.1, 0.11, 0.55, 0.9)] == [1, 1, 2, 6, 9]
    assert threshold(scores, 0.91) == math.inf == threshold(np.zeros(0), 0.5)
    assert threshold(np.arange(1, 100.0), 0.55) == 55  # 100·0.55 is above 55 in floating point


@pytest.mark.parametrize(("weight", "beyond"), [(0.0, 5), (0.01, 5), (0.2, 1), (0.5, 0)])
def test_raps_matches_a_loop_over_sorted_classes(weight: float, beyond: int) -> None:
    probs, _ = drawn(40)
    probs[0] = [0.3, 0.1, 0.3, 0.1, 0.1, 0.1]  # ties: the first class is the likelier one
    uniform = Seed(5).numpy().random(40)
    raps_scores = raps(probs, uniform, weight, beyond)
    for row, p in enumerate(probs):
        before = 0.0
        for rank, k in enumerate(sorted(range(6), key=lambda k: (-p[k], k)), start=1):
            expected = before + uniform[row] * p[k] + weight * max(0, rank - beyond)
            assert raps_scores[row, k] == pytest.approx(expected, abs=1e-12)
            before += p[k]
    if weight == 0:
        assert (raps_scores == aps(probs, uniform)).all()


def test_cqr_and_widening_match_a_hand_calculation() -> None:
    """Nine rows of [−1, 1]: the target 3 has the largest score, and 0 the smallest."""
    low, centre, high = -np.ones(9), np.zeros(9), np.ones(9)
    targets = np.array([0, 0.1, 0.2, 0.3, -0.4, 0.5, -0.6, 0.8, 3.0])
    assert cqr(low, high, targets, 0.9) == 2
    assert cqr(low, high, targets, 0.8) == pytest.approx(-0.2)  # intervals that were too wide become narrower
    assert widening(low, centre, high, targets, 0.9) == 3
    assert widening(low, centre, 3 * high, targets, 0.9) == 1


def test_groups_are_listed_with_their_shares_and_the_worst_first() -> None:
    held = np.array([True, True, False, False, True, False])
    first, second, third = held_by_group(held, np.array(["a", "a", "b", "b", "c", "c"]), confidence=0.97)
    listed = [(one.group, one.count, one.share) for one in (first, second, third)]
    assert listed == [("b", 2, 0), ("c", 2, 0.5), ("a", 2, 1)]
    assert first.low == 0 and third.high == 1  # Clopper & Pearson's closed forms for none and for all
    assert (first.high, third.low) == pytest.approx((1 - 0.005**0.5, 0.005**0.5), rel=1e-9)
    assert (second.low, second.high) == pytest.approx((1 - 0.995**0.5, 0.995**0.5), rel=1e-9)  # and for one of two
    assert held_by_group(np.zeros(0, bool), np.zeros(0)) == []


def test_a_group_that_lac_covers_too_rarely_is_found_and_aps_has_no_such_group() -> None:
    """Although the probabilities are right, LAC covers hard rows less often; APS covers every group equally often."""
    kinds = np.array([[0.97, 0.006, 0.006, 0.006, 0.006, 0.006], [0.5, 0.3, 0.08, 0.05, 0.04, 0.03]])
    random = Seed(4).numpy()
    hard = (random.random(4000) < 0.3).astype(int)
    probs = kinds[hard]
    labels = (probs.cumsum(1)[:, :-1] <= random.random((4000, 1))).sum(1)
    coverage = {}
    for name, score in (("lac", lambda p, _: lac(p)), ("aps", aps)):
        members = conformal.sets_by_halves(score, probs, labels, 0.9, Seed(0))
        held = members[np.arange(4000), labels]
        assert held.sum() >= binom.ppf(ALARM, 4000, 0.89)  # the thresholds vary by the rows of the halves, too
        coverage[name] = held_by_group(held, hard, confidence=1 - ALARM)
    assert coverage["lac"][0].group == 1 and coverage["lac"][0].differs(0.9)
    assert coverage["lac"][0].low <= 0.8 <= coverage["lac"][0].high  # the two likeliest classes
    assert not any(one.differs(0.9) for one in coverage["aps"])


def test_halves_partition_the_rows_and_calibrate_each_other() -> None:
    first, second = conformal.halves(7, Seed(0))
    assert sorted([*first[0], *first[1]]) == list(range(7))
    assert (first[0] == second[1]).all() and (first[1] == second[0]).all()


def test_widths_at_equal_coverage_do_not_depend_on_the_stated_scale() -> None:
    """Intervals that were stated three times as wide come out the same; with too few rows they are infinite."""
    random = Seed(6).numpy()
    centre, sd, noise = random.normal(size=200), random.uniform(0.5, 1, 200), random.normal(size=200)
    targets = centre + sd * noise
    stated = ((centre - k * sd, centre, centre + k * sd) for k in (1.0, 3.0))
    narrow, wide = (conformal.widened_by_halves(*ends, targets, 0.9, Seed(0)) for ends in stated)
    np.testing.assert_allclose(narrow[1], wide[1], rtol=1e-9)
    fitted_half, others = next(conformal.halves(200, Seed(0)))
    factor = np.sort(np.abs(noise[fitted_half]))[90]  # ⌈101·.9⌉ = 91st
    np.testing.assert_allclose((narrow[1] - narrow[0])[others], 2 * factor * sd[others], rtol=1e-9)
    low, high = conformal.widened_by_halves(centre - sd, centre, centre + 3 * sd, targets, 0.9, Seed(0))
    np.testing.assert_allclose(high - centre, 3 * (centre - low), rtol=1e-9)  # arms keep their ratio
    low, high = conformal.moved_by_halves(centre - sd, centre + sd, targets, 0.9, Seed(0))
    assert binom.ppf(ALARM, 200, 0.85) <= ((low <= targets) & (targets <= high)).sum()
    few = conformal.widened_by_halves(centre[:6] - 1, centre[:6], centre[:6] + 1, targets[:6], 0.9, Seed(0))
    assert (few[0] == -math.inf).all() and (few[1] == math.inf).all()
