"""What the report concludes: which differences it shows, and its sentences."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from bdl_pipe import artifacts, scores
from bdl_pipe.scores import Quantity, Score
from pipeline.report import RunInfo, columns, page, tables, which


def stored(folder: Path, key: str, nll: list[float], rows: np.ndarray | None = None, cost: float = 1.0) -> RunInfo:
    """A run with an NLL a split or, of one split, with a log-likelihood a row."""
    dataset, method = key.split("-", 1)
    figures = [Score(s, 0, Quantity("nll"), value, 50) for s, value in enumerate(nll)]
    figures += [Score(s, 0, Quantity("seconds_per_1000", "cost"), cost, 1) for s in range(len(nll))]
    place = folder / "evaluate" / key
    with artifacts.publish(place, "evaluate", about={}) as made:
        pq.write_table(scores.table(dataset, method, "", figures), made / "scores.parquet")
        if rows is not None:
            frame = pd.DataFrame({"split": 0, "seed": 0, "row": np.arange(len(rows)), "log_prob": rows})
            frame.to_parquet(made / "predictions.parquet")
    network = "mlp 8" if method != "sgld" else "mlp 64"
    return RunInfo(key, dataset, method, "", place, network=network)


def test_sentences_over_splits(tmp_path: Path) -> None:
    g = np.random.default_rng(1)
    base = 2 + g.normal(size=5)
    near, far = base + 0.001 * g.normal(size=5), base + 1 + 0.001 * g.normal(size=5)
    runs = [
        stored(tmp_path, "d-deterministic", far.tolist(), cost=0.1),
        stored(tmp_path, "d-vbll", base.tolist(), cost=0.5),
        stored(tmp_path, "d-sgld", near.tolist(), cost=2.0),
    ]
    table = tables.gather(runs)
    standings = which.standings(table)
    best, second, third = standings
    assert {best.run.method, second.run.method} == {"vbll", "sgld"}
    assert third.run.method == "deterministic"
    assert second.to_best is not None and not second.to_best.apart
    assert third.to_best is not None and third.to_best.apart and third.to_best.mean == pytest.approx(1, abs=0.01)
    text = " ".join(which.sentences(table, standings))
    assert "Over 5 splits it cannot be told apart from" in text
    assert "1 of 2 are worse" in text
    assert "There are 2 networks" in text
    assert "1 of 1 are better than the deterministic network of their own architecture" in text
    efficient = {row.run.method for row in standings if row.efficient}
    assert {"deterministic", "vbll"} <= efficient
    assert columns.headline(table).verdict == which.sentences(table, standings)
    html = page.render(table, {}, 100)["index.html"]
    assert "Which one?" in html and text in html and "mlp 64" in html


def test_one_split_is_compared_over_its_rows_and_says_what_that_leaves_open(tmp_path: Path) -> None:
    g = np.random.default_rng(2)
    rows = g.normal(size=400)
    better = rows + 0.5 + 0.1 * g.normal(size=400)
    runs = [
        stored(tmp_path, "d-deterministic", [-rows.mean()], rows),
        stored(tmp_path, "d-vbll", [-better.mean()], better),
    ]
    table = tables.gather(runs)
    standings = which.standings(table)
    second, text = standings[1].to_best, " ".join(which.sentences(table, standings))
    assert second is not None
    low, high = stats.ttest_rel(better, rows).confidence_interval(0.95)
    assert (second.mean - second.half, second.mean + second.half) == pytest.approx((low, high), rel=1e-2)
    assert "over the test rows of one split every 95 % interval" in text
    assert "Another draw of training rows could order them otherwise" in text


def test_ranks_over_data_sets(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path, f"{d}-{m}", [level + 0.1 * i, level])
        for i, d in enumerate("abcdefgh")
        for m, level in (("vbll", 1.0), ("sgld", 2.0), ("gp", 3.0))
    ]
    runs.append(stored(tmp_path, "a-svgp", [0.1, 0.2]))
    found = which.ranks(tables.gather(runs))
    assert found is not None
    assert found.means == {"vbll": 1.0, "sgld": 2.0, "gp": 3.0}
    assert found.datasets == 8
    html = page.render(tables.gather(runs), {}, 100)["index.html"]
    assert "vbll ranks first; not told apart from it: sgld." in html
    assert which.ranks(tables.gather(runs[:3])) is None
