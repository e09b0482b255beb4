"""The parts of the Brier score: their sum, their means over all labels by enumeration, and bins by hand."""

import itertools

import numpy as np
import pytest

from bdl_pipe.metrics.brier_parts import _without_single, brier_parts
from bdl_pipe.seeds import Seed


def random_rows(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(0).numpy()
    return random.dirichlet(np.ones(classes), size=rows), random.integers(classes, size=rows)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(("rows", "classes"), [(2, 2), (17, 3), (200, 10)])
def test_the_parts_add_up_to_the_brier_score(rows: int, classes: int, corrected: bool) -> None:
    probs, labels = random_rows(rows, classes)
    found = brier_parts(probs, labels, corrected=corrected)
    assert found is not None
    score = ((probs - np.eye(classes)[labels]) ** 2).sum(1).mean()
    assert found.brier == pytest.approx(score, rel=1e-12)


def test_the_parts_of_two_stated_probabilities_match_a_hand_calculation() -> None:
    """At .2 one row in four is of the class, at .6 three in four; both classes have the same parts."""
    first = np.repeat([0.2, 0.6], 4)
    labels = np.array([0, 1, 1, 1, 0, 0, 0, 1])
    found = brier_parts(np.stack([first, 1 - first], 1), labels, bins=2, corrected=False)
    assert found is not None
    assert found.reliability == pytest.approx(2 * (0.05**2 + 0.15**2) / 2)
    assert found.resolution == pytest.approx(2 * 0.25**2)
    assert found.uncertainty == pytest.approx(2 * 0.25)
    assert found.within == pytest.approx(0, abs=1e-15)


def test_reliability_is_unbiased_over_all_labels() -> None:
    """Three rows of each of two probabilities, whose events happen with other probabilities; 64 columns of labels.

    Without the correction the mean reliability is far above the exact reliability.
    """
    stated, true = np.repeat([0.3, 0.8], 3), np.repeat([0.4, 0.7], 3)
    probs, parts, plain, weights = np.stack([1 - stated, stated], 1), [], [], []
    for labels in itertools.product([0, 1], repeat=6):
        happened = np.array(labels)
        weights.append(np.prod(np.where(happened == 1, true, 1 - true)))
        for into, corrected in ((parts, True), (plain, False)):
            found = brier_parts(probs, happened, bins=2, corrected=corrected)
            assert found is not None
            into.append(found.reliability)
    expected = 2 * ((0.3 - 0.4) ** 2 + (0.8 - 0.7) ** 2) / 2
    assert np.dot(weights, parts) == pytest.approx(expected, rel=1e-12)
    assert np.dot(weights, plain) > 5 * expected


def test_uncertainty_is_unbiased_over_drawn_rows_and_labels() -> None:
    """Every draw of four rows of two kinds, with every column of labels: 256 samples, weighted by their probability."""
    kinds, true, found, plain = (0.3, 0.8), (0.4, 0.7), 0.0, 0.0
    for picked in itertools.product([0, 1], repeat=4):
        stated = np.array([kinds[k] for k in picked])
        for labels in itertools.product([0, 1], repeat=4):
            weight = np.prod([0.5 * (true[k] if y else 1 - true[k]) for k, y in zip(picked, labels, strict=True)])
            arguments = np.stack([1 - stated, stated], 1), np.array(labels)
            parts, biased = (brier_parts(*arguments, bins=2, corrected=corrected) for corrected in (True, False))
            assert parts is not None and biased is not None
            found += weight * parts.uncertainty
            plain += weight * biased.uncertainty
    assert found == pytest.approx(2 * 0.55 * 0.45, rel=1e-12)  # summed over both classes
    assert plain == pytest.approx(0.75 * 2 * 0.55 * 0.45, rel=1e-12)


def test_a_bin_of_one_row_joins_its_neighbour() -> None:
    assert _without_single(np.array([0, 1, 1, 2])).tolist() == [1, 1, 1, 1]
    assert _without_single(np.array([0, 0, 1, 2, 2])).tolist() == [0, 0, 0, 2, 2]
    assert len(set(_without_single(np.array([0, 1, 2])).tolist())) == 1
    assert _without_single(np.array([3, 3, 7])).tolist() == [3, 3, 3]


def test_one_row_has_only_uncorrected_parts_and_one_class_scores_zero() -> None:
    assert brier_parts(np.array([[0.7, 0.3]]), np.array([0])) is None
    found = brier_parts(np.array([[0.7, 0.3]]), np.array([0]), corrected=False)
    assert found is not None
    assert (found.reliability, found.resolution, found.uncertainty) == (pytest.approx(2 * 0.09), 0, 0)
    certain = brier_parts(np.ones((5, 1)), np.zeros(5, int))
    assert certain is not None and certain.brier == 0
