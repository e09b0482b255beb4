"""What stored scores allow to conclude: which differences they show, the sentences, the ranks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bdl_pipe import scores
from bdl_pipe.metrics.standings import Candidate, ranks, sentences, standings
from bdl_pipe.scores import Quantity, RunScores, Score


def stored(folder: Path, name: str, nll: list[float], rows: np.ndarray | None = None, cost: float = 1.0) -> Candidate:
    """A method with an NLL a split or, of one split, with a log-likelihood a row."""
    figures = [Score(s, 0, Quantity("nll"), value, 50) for s, value in enumerate(nll)]
    figures += [Score(s, 0, Quantity("seconds_per_1000", "cost"), cost, 1) for s in range(len(nll))]
    place = folder / name
    place.mkdir()
    if rows is not None:
        frame = pd.DataFrame({"split": 0, "seed": 0, "row": np.arange(len(rows)), "log_prob": rows})
        frame.to_parquet(place / "predictions.parquet")
    of = RunScores(scores.table("d", name, "", figures))
    return Candidate(name, name, of, place, "mlp 64" if name == "sgld" else "mlp 8", name == "deterministic")


def test_sentences_over_splits(tmp_path: Path) -> None:
    g = np.random.default_rng(1)
    base = 2 + g.normal(size=5)
    near, far = base + 0.001 * g.normal(size=5), base + 1 + 0.001 * g.normal(size=5)
    found = standings(
        [
            stored(tmp_path, "deterministic", far.tolist(), cost=0.1),
            stored(tmp_path, "vbll", base.tolist(), cost=0.5),
            stored(tmp_path, "sgld", near.tolist(), cost=2.0),
            stored(tmp_path, "diverged", [np.nan] * 5),
        ]
    )
    best, second, third = found
    assert {best.candidate.key, second.candidate.key} == {"vbll", "sgld"}
    assert third.candidate.key == "deterministic" and third.to_baseline is None and best.to_best is None
    assert second.to_best is not None and not second.to_best.apart
    assert third.to_best is not None and third.to_best.apart and third.to_best.mean == pytest.approx(1, abs=0.01)
    text = " ".join(sentences(found))
    assert "Over 5 splits it cannot be told apart from" in text
    assert "1 of 2 are worse" in text
    assert "There are 2 networks" in text
    assert "1 of 1 are better than the deterministic network of their own architecture" in text
    assert {"deterministic", "vbll"} <= {one.candidate.key for one in found if one.efficient}


def test_one_split_is_compared_over_its_rows_and_says_what_that_leaves_open(tmp_path: Path) -> None:
    g = np.random.default_rng(2)
    rows = g.normal(size=400)
    better = rows + 0.5 + 0.1 * g.normal(size=400)
    found = standings(
        [
            stored(tmp_path, "deterministic", [-rows.mean()], rows),
            stored(tmp_path, "vbll", [-better.mean()], better),
        ]
    )
    second, text = found[1].to_best, " ".join(sentences(found))
    assert second is not None
    low, high = stats.ttest_rel(better, rows).confidence_interval(0.95)
    assert (second.mean - second.half, second.mean + second.half) == pytest.approx((low, high), rel=1e-2)
    assert "over the test rows of one split every 95 % interval" in text
    assert "Another draw of training rows could order them otherwise" in text


def test_what_cannot_be_paired_has_no_interval_and_one_alone_no_standing(tmp_path: Path) -> None:
    some = [stored(tmp_path, "a", [1.0]), stored(tmp_path, "b", [2.0]), stored(tmp_path, "c", [3.0, 3.5])]
    _, without_rows, other_splits = standings(some)
    assert without_rows.to_best is not None and not without_rows.to_best.apart and without_rows.to_best.mean == 1
    assert other_splits.to_best is None
    assert standings(some[:1]) == [] == sentences([])


def test_ranks_over_data_sets() -> None:
    levels = (("vbll", 1.0), ("sgld", 2.0), ("gp", 3.0))
    datasets = [[(method, level + 0.1 * i) for method, level in levels] for i in range(8)]
    datasets[0] += [("svgp", 0.1), ("gp", 4.0)]
    found = ranks(datasets)
    assert found is not None and found.datasets == 8
    assert found.means == {"vbll": 1.0, "sgld": 2.0, "gp": 3.0}
    assert ranks(datasets[:1]) is None and ranks([]) is None
    assert ranks([[("gp", 1.0)], [("gp", 2.0)]]) is None
