"""Risk–coverage curves against scikit-learn, closed forms, and the mean over all orders of equal rows."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bdl_pipe.metrics.selective import by_chance, gain, oracle, risk_coverage
from bdl_pipe.seeds import Seed


def random_rows(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(0).numpy()
    uncertainty = random.random(rows)
    return (random.random(rows) < 0.5 * uncertainty).astype(float), uncertainty


def test_curves_of_four_rows_of_one_and_of_a_hundred_match_a_hand_calculation() -> None:
    curve = risk_coverage(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.9, 0.1, 0.2, 0.3]))
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(curve.risk, [0, 0, 1 / 3, 1 / 2])
    assert curve.aurc == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert curve.augrc == pytest.approx((0.25 / 2 + (0.25 + 0.5) / 2) / 4)
    assert (curve.risk_at(0.75), curve.risk_at(0.6), curve.risk_at(0.5)) == (1 / 3, 1 / 3, 0)
    assert (curve.coverage_at(0.0), curve.coverage_at(0.4), curve.coverage_at(0.5)) == (0.5, 0.75, 1)
    one = risk_coverage(np.array([0.5]), np.array([3.0]))
    assert (one.aurc, one.augrc, one.risk_at(0.8)) == (0.5, 0.25, 0.5)
    assert (one.coverage_at(0.05), one.coverage_at(0.5)) == (0, 1)
    hundred = risk_coverage(np.repeat([0.0, 1.0], [99, 1]), np.arange(100))
    assert (hundred.coverage_at(0.01), hundred.coverage_at(0.0099)) == (1, 0.99)  # 1/100 is at most 1 %


@pytest.mark.parametrize("digits", [1, 9])
def test_the_augrc_of_wrong_answers_follows_from_the_auroc(digits: int) -> None:
    """Traub et al. 2024; scikit-learn counts a pair of equal uncertainties as half, as the expectation does."""
    losses, uncertainty = random_rows()
    uncertainty = uncertainty.round(digits)
    wrong = losses.mean()
    area = (1 - roc_auc_score(losses, uncertainty)) * wrong * (1 - wrong) + wrong**2 / 2
    assert risk_coverage(losses, uncertainty).augrc == pytest.approx(area, rel=1e-12)


def test_rows_of_equal_uncertainty_count_as_the_mean_over_their_orders() -> None:
    """Two groups of three equal rows: 36 orders; the order in which the rows are given, a wrong variant, differs."""
    losses, uncertainty = np.array([3.0, 0, 1, 2, 5, 0]), np.array([0.5, 0.5, 0.5, 0.1, 0.1, 0.1])
    curve, risks, areas = risk_coverage(losses, uncertainty), [], []
    for order in itertools.permutations(range(6)):
        sorted_ = np.array(order)
        if (np.diff(uncertainty[sorted_]) >= 0).all():
            one = risk_coverage(losses[sorted_], np.arange(6))
            risks.append(one.risk)
            areas.append((one.aurc, one.augrc))
    assert len(risks) == 36
    np.testing.assert_allclose(curve.risk, np.mean(risks, axis=0), rtol=1e-12)
    np.testing.assert_allclose((curve.aurc, curve.augrc), np.mean(areas, axis=0), rtol=1e-12)
    assert abs(risk_coverage(losses, uncertainty + 1e-9 * np.arange(6)).aurc - curve.aurc) > 0.05


def test_the_oracle_is_the_best_of_all_orders_and_chance_their_mean() -> None:
    losses = np.array([0.0, 2, 0.5, 2, 1])
    curves = [risk_coverage(losses[list(order)], np.arange(5)) for order in itertools.permutations(range(5))]
    assert oracle(losses).aurc == pytest.approx(min(one.aurc for one in curves))
    assert oracle(losses).augrc == pytest.approx(min(one.augrc for one in curves))
    assert by_chance(losses).aurc == pytest.approx(np.mean([one.aurc for one in curves])) == losses.mean()
    assert by_chance(losses).augrc == pytest.approx(np.mean([one.augrc for one in curves])) == losses.mean() / 2


def test_the_gain_is_one_for_the_oracle_and_zero_by_chance() -> None:
    losses, uncertainty = random_rows()
    assert gain(losses, losses) == pytest.approx(1)
    assert gain(losses, np.zeros(300)) == pytest.approx(0)
    assert gain(losses, -losses) == pytest.approx(-1)
    gained = gain(losses, uncertainty)
    assert gained == pytest.approx(2 * roc_auc_score(losses, uncertainty) - 1)  # both are linear in the AUROC
    assert gain(np.full(4, 0.3), np.arange(4)) is None
    assert gain(np.zeros(4), np.arange(4)) is None
