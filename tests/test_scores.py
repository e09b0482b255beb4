"""Stored scores: they read back, and their means and standard errors agree with the standard library."""

import math
import statistics
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bdl_pipe import scores
from bdl_pipe.errors import ArtifactError
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score

NLL, CORRUPTED = Quantity("nll"), Quantity("nll", "corrupted")


def run_scores(figures: list[Score]) -> RunScores:
    return RunScores(scores.table("d", "m", "s", figures))


@pytest.mark.parametrize(
    ("figures", "of", "values"),
    [
        ([(0, seed, NLL, v) for seed, v in enumerate((0.91, 0.93, 0.95, 0.88))], NLL, [0.91, 0.93, 0.95, 0.88]),
        # two splits of three seeds are two independent values, and not six
        ([(s, i, NLL, v) for s, row in enumerate([(1, 2, 3), (5, 6, 10)]) for i, v in enumerate(row)], NLL, [2.0, 7.0]),
        # which values are independent is a fact of the run, also for a score that only some of its splits have
        ([(0, 0, NLL, 0.5), (1, 0, NLL, 0.5), *((1, i, CORRUPTED, 0.5 + i) for i in (0, 1))], CORRUPTED, [1.0]),
        # a mean over corruptions and severities is within a seed first
        (
            [(0, s, Quantity("nll", "corrupted", c, 1), v) for s, c, v in
             ((0, "fog", 0.2), (0, "snow", 0.6), (1, "fog", 0.4), (1, "snow", 0.8))], CORRUPTED, [0.4, 0.6],
        ),
        (
            [(0, s, Quantity("nll", "corrupted", c, level), v) for s, c, level, v in
             ((0, "fog", 1, 9.0), (0, "fog", 2, 0.2), (0, "snow", 2, 0.6), (1, "fog", 2, 0.4))],
            Quantity("nll", "corrupted", severity=2), [0.4, 0.4],
        ),
        ([(0, 0, NLL, 0.5)], CORRUPTED, []),
    ],
)  # fmt: skip
def test_means_and_standard_errors_are_over_independent_values(
    figures: list[tuple[int, int, Quantity, float]], of: Quantity, values: list
) -> None:
    stored = run_scores([Score(*figure, n=9) for figure in figures])
    assert stored.values(of) == pytest.approx(values)
    assert stored.values(of, scale=100) == pytest.approx([100 * value for value in values])
    estimate = stored.estimate(of)
    if estimate is None:
        assert not values
        return
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    assert (estimate.mean, estimate.n) == (pytest.approx(statistics.mean(values), abs=1e-15), len(values))
    assert estimate.error == (error and pytest.approx(error, rel=1e-12))


def test_independent_values_are_splits_or_the_seeds_of_one_split() -> None:
    for splits, seeds, count in ((2, 3, 2), (1, 3, 3)):
        run = run_scores([Score(split, seed, NLL, 0.5, 9) for split in range(splits) for seed in range(seeds)])
        assert (run.splits, run.count) == (splits, count)


def test_scores_of_a_diverged_fit_have_a_mean_and_no_finite_error() -> None:
    inf, nan = math.inf, math.nan
    of = {(0.5, nan): nan, (0.5, inf): inf, (inf, -inf): nan, (1e200, 0.0): 5e199, (1.7e308, 1.7e308): inf}
    for values, mean in of.items():
        estimate = scores.estimate(list(values))
        assert estimate is not None and estimate.error is not None
        assert (
            estimate.mean == pytest.approx(mean, nan_ok=True) and not math.isfinite(estimate.error) and estimate.n == 2
        )


def test_stored_scores_have_fixed_columns_and_types_and_read_back(tmp_path: Path) -> None:
    of = [Quantity("accuracy"), Quantity("nll", "corrupted", "fog", 5), Quantity("ece", "transfer", "stl10")]
    of[2:2] = [Quantity("auroc", "ood", "svhn", score="mutual_information")]
    of += [Quantity("bytes", "cost")]
    place = tmp_path / "scores.parquet"
    table = scores.table("d", "m", "s", [Score(1, 2, quantity, 0.1 + i, 10 + i) for i, quantity in enumerate(of)])
    pq.write_table(table, place)
    stored = scores.read(place)
    types = {field.name: str(field.type) for field in stored.schema}
    texts = ("dataset", "method", "setting", "set", "name", "score", "metric")
    numbers = {"split": "int32", "seed": "int32", "severity": "int8", "value": "double", "n": "int64"}
    assert types == dict.fromkeys(texts, "string") | numbers
    first, second, third, *_ = stored.select(["set", "name", "severity", "score", "metric"]).to_pylist()
    assert [*first.values()] == ["test", None, None, None, "accuracy"]
    assert [*second.values()] == ["corrupted", "fog", 5, None, "nll"]
    assert [*third.values()] == ["ood", "svhn", None, "mutual_information", "auroc"]
    run = RunScores(stored)
    assert run.quantities == tuple(of)
    assert [run.estimate(quantity) for quantity in of] == [Estimate(0.1 + i, None, 1) for i in range(len(of))]
    assert run.estimate(Quantity("auroc", "ood", "svhn")) is None, "by no score, and not by all"
    assert run.estimate(Quantity("auroc", "ood", "svhn", score="max_prob")) is None


def test_scores_of_another_version_or_without_a_column_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "scores.parquet"
    table = scores.table("d", "m", "s", [Score(0, 0, NLL, 0.5, 9)])
    old = pa.Table.from_pylist([{"dataset": "d", "seed": 1001, "split": "corrupted:fog:1", "metric": "nll"}])
    for other in (old, table.drop_columns(["n"]), table.replace_schema_metadata({"version": "1"})):
        pq.write_table(other, place)
        with pytest.raises(ArtifactError, match=r"must have version 2 of the columns .*, n, each of its type, got .*;"):
            scores.read(place)
    place.write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"scores.parquet: is missing or not a Parquet table"):
        scores.read(place)


def test_calibration_bins_merge_by_count(tmp_path: Path) -> None:
    bins = pd.DataFrame(
        [(0, 0, 0, 0, 0.5, 10, 0.3, 0.2), (0, 1, 0, 0, 0.5, 30, 0.4, 0.6), (1, 0, 1, 0.5, 1, 0, math.nan, math.nan),
         (1, 1, 1, 0.5, 1, 5, 0.9, 0.8)], columns=list(scores.CALIBRATION)
    )  # fmt: skip
    bins.to_parquet(tmp_path / "c.parquet")
    merged = scores.merged_bins(tmp_path / "c.parquet")
    assert merged["count"].tolist() == [40, 5]
    assert merged.accuracy.tolist() == pytest.approx([0.5, 0.8])
    assert merged.confidence.tolist() == pytest.approx([0.375, 0.9])
    bins.drop(columns="split").to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ArtifactError, match=r"c.parquet: must be .* columns split, .*make it again"):
        scores.merged_bins(tmp_path / "c.parquet")


def test_the_same_class_line_of_a_run_is_the_mean_over_splits_and_seeds(tmp_path: Path) -> None:
    rows = [(split, seed, share, 0.4 + 0.1 * split + 0.2 * seed - 0.4 * share, share)
            for split in (0, 1) for seed in (0, 1) for share in (0.0, 1.0)]  # fmt: skip
    line = pd.DataFrame(rows, columns=list(scores.SAME_CLASS))
    line.to_parquet(tmp_path / "l.parquet")
    mean = scores.mean_same_class(tmp_path / "l.parquet")
    assert mean.index.tolist() == [0, 1] and mean["product"].tolist() == [0, 1]
    assert mean["joint"].tolist() == pytest.approx([0.55, 0.15])
    line.drop(columns="joint").to_parquet(tmp_path / "l.parquet")
    with pytest.raises(ArtifactError, match=r"l.parquet: must be .* columns split, .*make it again"):
        scores.mean_same_class(tmp_path / "l.parquet")
