"""The conclusions from stored scores: differences, sentences, ranks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bdl_pipe import scores
from bdl_pipe.metrics import comparison
from bdl_pipe.metrics.standings import Candidate, difference, losses, ranks, sentences, standings
from bdl_pipe.scores import Quantity, RunScores, Score


def stored(folder: Path, name: str, nll: list[float], rows: np.ndarray | None = None, cost: float = 1.0) -> Candidate:
    """A method with an NLL for each split and, with ``rows``, a log-likelihood for each row of its one split."""
    figures = [Score(s, 0, Quantity("nll"), value, 50) for s, value in enumerate(nll)]
    figures += [Score(s, 0, Quantity("seconds_per_1000", "cost"), cost, 1) for s in range(len(nll))]
    place = folder / name
    place.mkdir()
    if rows is not None:
        frame = pd.DataFrame({"split": 0, "seed": 0, "row": np.arange(len(rows)), "log_prob": rows})
        frame.to_parquet(place / "predictions.parquet")
    of = RunScores(scores.table("d", name, "", figures))
    network, optimal = "mlp 64" if name == "sgld" else "mlp 8", name in ("linear", "constant")
    return Candidate(name, name, of, place, network, name, optimal=optimal)


def test_sentences_over_several_splits_state_ties_and_differences(tmp_path: Path) -> None:
    g = np.random.default_rng(1)
    base = 2 + g.normal(size=5)
    near, far = base + 0.001 * g.normal(size=5), base + 1 + 0.001 * g.normal(size=5)
    costs = {"deterministic": (far.tolist(), 0.1), "vbll": (base.tolist(), 0.5), "sgld": (near.tolist(), 2.0)}
    runs = [stored(tmp_path, name, nll, cost=cost) for name, (nll, cost) in costs.items()]
    table = standings([*runs, stored(tmp_path, "diverged", [np.nan] * 5)])
    best, second, third = table
    assert {best.candidate.key, second.candidate.key} == {"vbll", "sgld"}
    assert third.candidate.key == "deterministic" and third.to_baseline is None and best.to_best is None
    assert not second.to_best.apart
    assert third.to_best.apart and third.to_best.mean == pytest.approx(1, abs=0.01)
    text = " ".join(sentences(table))
    assert "Over 5 splits it is statistically tied with" in text
    assert "1 of 2 others are significantly worse" in text
    assert "The runs use 2 networks" in text
    assert "1 of 1 runs are better than the deterministic network of the same architecture" in text
    assert {"deterministic", "vbll"} <= {one.candidate.key for one in table if one.efficient}


def test_one_split_is_compared_over_its_rows_and_a_sentence_states_the_limit(tmp_path: Path) -> None:
    g = np.random.default_rng(2)
    rows = g.normal(size=400)
    better = rows + 0.5 + 0.1 * g.normal(size=400)
    constant = stored(tmp_path, "constant", [-rows.mean()], rows)  # fits of both methods do not depend on their seeds
    table = standings([constant, stored(tmp_path, "linear", [-better.mean()], better)])
    second, text = table[1].to_best, " ".join(sentences(table))
    low, high = stats.ttest_rel(better, rows).confidence_interval(0.95)
    assert (second.mean - second.half, second.mean + second.half) == pytest.approx((low, high), rel=1e-2)
    assert "over the test rows of one split, the 95 % interval of every difference" in text
    assert "With a single train/test split, another split could give another ranking." in text


def test_a_run_of_one_seed_on_one_split_is_apart_from_no_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=400)
    some = [stored(tmp_path, "linear", [-rows.mean()], rows), stored(tmp_path, "vbll", [5 - rows.mean()], rows - 5)]
    gap = difference(*some)
    assert gap.mean == pytest.approx(-5) and gap.error < 1e-9 and not gap.apart
    text = " ".join(sentences(standings(some)))
    assert "tied" not in text and "better than all others" not in text
    assert "1 of 2 runs have fewer than 3 seeds, so that no difference from them is established." in text
    assert [one.few_seeds for one in some] == [False, True]
    assert not stored(tmp_path, "gp", [1.0, 2.0]).few_seeds


@pytest.mark.slow
def test_the_interval_over_rows_and_seeds_covers_the_spread_of_fits() -> None:
    """Two methods of equal means and three seeds each, 2,000 times; fits and rows differ by about as much.

    At most 5 % of the differences may be apart: the bound is 5 standard errors above it, a false alarm of the test in
    3 million. Intervals over test rows alone, the control, are above the bound.
    """
    g, alarms, alone = np.random.default_rng(0), 0, 0
    for _ in range(2_000):
        fits = 0.1 * g.normal(size=(2, 3))
        rows = fits[..., None] + g.normal(size=(2, 1, 200)) / np.sqrt(2) + 0.1 * g.normal(size=(2, 3, 200))
        gaps = rows[0].mean(0) - rows[1].mean(0)
        alarms += comparison.over_rows(gaps, rows.mean(2).tolist()).apart
        alone += comparison.over_rows(gaps).apart
    limit = 0.05 + 5 * np.sqrt(0.05 * 0.95 / 2_000)
    assert alarms / 2_000 < limit < alone / 2_000


def test_equal_seeds_add_no_error_and_equal_errors_add_their_degrees_of_freedom() -> None:
    """Welch's test of two samples of equal size and variance has 2 (n - 1) degrees of freedom."""
    gaps = np.array([1.0, 2.0, 4.0, 5.0])
    same = comparison.over_rows(gaps, [[3.0, 3.0], [2.0, 2.0]])
    assert same == comparison.over_rows(gaps)
    none = comparison.Difference(1.0, 0.0, 0.0)
    a, b = [0.0, 1.0, 2.0], [5.0, 6.0, 7.0]
    estimate = comparison.over_seeds(none, [a, b])
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert estimate.half == pytest.approx((high - low) / 2) and estimate.error == pytest.approx(np.sqrt(2 / 3))
    assert comparison.over_seeds(none, [a, [1.0]]) == comparison.Difference(1.0, np.inf, 0.0)


def test_runs_without_pairs_have_no_interval_and_one_run_has_no_standing(tmp_path: Path) -> None:
    some = [stored(tmp_path, "a", [1.0]), stored(tmp_path, "b", [2.0]), stored(tmp_path, "c", [3.0, 3.5])]
    _, without_rows, other_splits = standings(some)
    assert not without_rows.to_best.apart and without_rows.to_best.mean == 1
    assert other_splits.to_best is None
    assert standings(some[:1]) == [] == sentences([])


def test_rows_of_one_split_give_differences_of_rmse_and_of_accuracy(tmp_path: Path) -> None:
    """Against the scores themselves, SciPy's paired test, and for the RMSE the delta method by hand."""
    g, some = np.random.default_rng(3), {}
    y = g.normal(size=300)
    labels = g.integers(0, 3, 300)
    for name, noise in (("a", 0.3), ("b", 0.5)):
        means, p = y + noise * g.normal(size=(2, 300)), g.dirichlet(np.ones(3), (2, 300)) + noise * np.eye(3)[labels]
        rmse = [float(np.sqrt(((y - m) ** 2).mean())) for m in means]
        accuracy = [float((each.argmax(1) == labels).mean()) for each in p]
        for metric, values in (("rmse", rmse), ("accuracy", accuracy)):
            figures = [Score(0, seed, Quantity(metric), value, 300) for seed, value in enumerate(values)]
            place = tmp_path / f"{name}-{metric}"
            place.mkdir()
            ids = {"split": 0, "row": range(300), "target": y if metric == "rmse" else labels}
            of_mean, of_class = [{"mean": m} for m in means], [{f"p_{c}": q[:, c] for c in range(3)} for q in p]
            columns = of_mean if metric == "rmse" else of_class
            frames = [pd.DataFrame({"seed": k, **ids, **columns[k], "entropy": 0.5, "log_prob": -1.0}) for k in (0, 1)]
            pd.concat(frames).to_parquet(place / "predictions.parquet")
            of = RunScores(scores.table("d", name, "", figures))
            some[name, metric] = Candidate(name, name, of, place)
        some[name] = (means, p)
    hits = [-(some[n][1].argmax(2) == labels).mean(0) for n in ("a", "b")]
    estimate = difference(some["a", "accuracy"], some["b", "accuracy"], metric="accuracy")
    assert estimate is not None and estimate.mean == pytest.approx(float(np.mean(hits[0] - hits[1])))
    over_seeds = sum((some[n][1].argmax(2) == labels).mean(1).var(ddof=1) / 2 for n in ("a", "b"))
    over_rows = estimate.mean / stats.ttest_rel(*hits).statistic
    assert estimate.error**2 == pytest.approx(over_rows**2 + over_seeds)
    assert losses(some["a", "accuracy"].folder / "predictions.parquet", "accuracy").tolist() == hits[0].tolist()
    squares = [((y - some[n][0]) ** 2).mean(0) for n in ("a", "b")]
    estimate = difference(some["a", "rmse"], some["b", "rmse"], metric="rmse")
    rmse_a, rmse_b = (np.sqrt(s.mean()) for s in squares)
    assert estimate is not None and estimate.mean == pytest.approx(rmse_a - rmse_b)
    by_hand = squares[0] / (rmse_a + rmse_b) - squares[1] / (rmse_a + rmse_b)
    of_seeds = sum(np.sqrt(((y - some[n][0]) ** 2).mean(1)).var(ddof=1) / 2 for n in ("a", "b"))
    assert estimate.error**2 == pytest.approx(by_hand.var(ddof=1) / 300 + of_seeds)
    assert losses(tmp_path / "absent.parquet", "rmse") is None


def test_mean_ranks_compare_the_methods_that_all_data_sets_have() -> None:
    levels = (("vbll", 1.0), ("sgld", 2.0), ("gp", 3.0))
    datasets = [[(method, level + 0.1 * i) for method, level in levels] for i in range(8)]
    datasets[0] += [("svgp", 0.1), ("gp", 4.0)]
    ranked = ranks(datasets)
    assert ranked is not None and ranked.datasets == 8
    assert ranked.means == {"vbll": 1.0, "sgld": 2.0, "gp": 3.0}
    assert ranks(datasets[:1]) is None and ranks([]) is None
    assert ranks([[("gp", 1.0)], [("gp", 2.0)]]) is None
