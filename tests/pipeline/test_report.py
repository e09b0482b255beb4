"""The report from stored tables: figures against hand computation, and a page that stands by itself."""

import csv
import errno
import json
import math
import os
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from report_cases import IMAGES, ROWS, everything, image_scores, row_scores, write_coreset, write_run

from bdl_pipe import artifacts, scores
from bdl_pipe.errors import ArtifactError
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score, read
from pipeline import report
from pipeline.report import COLUMNS, columns, cross, page, plots, tables

FILES = {"comparison.csv", "coresets.csv", "comparison.parquet", "comparison.md", "metrics.json", "index.html"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    runs, coresets = everything(root)
    report.build(runs, coresets, root / "report", provenance={"commit": "<abc>", "device": "cpu"}, dpi=110)
    return root, runs, coresets


def scored(root: Path, values: list[float], **record):
    """A run with one accuracy a seed."""
    scores = [Score(0, seed, Quantity("accuracy"), v, 10) for seed, v in enumerate(values)]
    return write_run(root, "d", "m", "s", scores, **record)


class Page(HTMLParser):
    """Balanced tags, and every URL that a browser would fetch."""

    VOID = frozenset({"meta", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.urls: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.urls += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.urls += [v for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_folder_holds_exactly_these_files_and_no_remains(built):
    root, *_ = built
    assert {f.name for f in (root / "report").iterdir()} == FILES
    assert not [f for f in root.iterdir() if f.name.startswith(".")]


def test_comparison_is_tidy_sorted_and_equal_in_csv_and_parquet(built):
    root, *_ = built
    with open(root / "report/comparison.csv", newline="") as file:
        rows = list(csv.reader(file))
    where = ("dataset", "method", "setting", "split", "seed", "set", "name", "severity", "score", "metric")
    assert tuple(rows[0]) == (*where, "value", "n")
    keys = [(*r[:3], int(r[3]), int(r[4]), *r[5:10]) for r in rows[1:]]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
    table = pyarrow.parquet.read_table(root / "report/comparison.parquet")
    assert tuple(table.column_names) == tuple(rows[0])
    assert table.column("value").to_pylist() == [float(r[10]) for r in rows[1:]]  # repr loses nothing
    shapes = r"(test|cost),,,|corrupted,\w+,[1-5],|ood,\w+,,(max_prob|mutual_information)"
    assert all(re.fullmatch(shapes, ",".join(r[5:9])) for r in rows[1:])
    assert [r[7] for r in rows[1:]] == ["" if s is None else str(s) for s in table.column("severity").to_pylist()]


NLL, CORRUPTED = Quantity("nll"), Quantity("nll", "corrupted")


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
        ([(0, 0, NLL, 0.5)], CORRUPTED, []),
    ],
)  # fmt: skip
def test_means_and_standard_errors_against_the_standard_library(tmp_path, figures, of, values):
    run = write_run(tmp_path, "d", "m", "s", [Score(*figure, n=9) for figure in figures])
    table = tables.gather([run])
    found = table.estimate(run.key, of)
    assert found == RunScores(read(run.evaluate / "scores.parquet")).estimate(of)
    assert table.groups(run.key, of) == pytest.approx(values)
    if not values:
        assert found is None
        return
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    assert (found.mean, found.n) == (pytest.approx(statistics.mean(values), abs=1e-15), len(values))
    assert found.error == (error and pytest.approx(error, rel=1e-12))


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([0.5, math.nan], math.nan),
        ([0.5, math.inf], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([1e200, 0.0], 5e199),
        ([1.7e308, 1.7e308], math.inf),
    ],
)
def test_scores_of_a_diverged_fit_have_a_mean_and_no_finite_error(values, mean):
    found = scores.estimate(values)
    assert found.mean == pytest.approx(mean, nan_ok=True) and not math.isfinite(found.error) and found.n == 2


def test_what_is_stored_has_its_columns_and_types_and_reads_back(tmp_path):
    of = [
        Quantity("accuracy"),
        Quantity("nll", "corrupted", "fog", 5),
        Quantity("auroc", "ood", "svhn", score="mutual_information"),
        Quantity("ece", "transfer", "stl10"),
        Quantity("bytes", "cost"),
    ]
    figures = [Score(1, 2, quantity, 0.1 + i, 10 + i) for i, quantity in enumerate(of)]
    run = write_run(tmp_path, "d", "m", "s", figures)
    stored = pyarrow.parquet.read_table(run.evaluate / "scores.parquet")
    types = {field.name: str(field.type) for field in stored.schema}
    texts = ("dataset", "method", "setting", "set", "name", "score", "metric")
    numbers = {"split": "int32", "seed": "int32", "severity": "int8", "value": "double", "n": "int64"}
    assert types == dict.fromkeys(texts, "string") | numbers
    first, second, third, *_ = stored.select(["set", "name", "severity", "score", "metric"]).to_pylist()
    assert [*first.values()] == ["test", None, None, None, "accuracy"]
    assert [*second.values()] == ["corrupted", "fog", 5, None, "nll"]
    assert [*third.values()] == ["ood", "svhn", None, "mutual_information", "auroc"]
    assert RunScores(read(run.evaluate / "scores.parquet")).quantities == tuple(of)
    table = tables.gather([run])
    assert all(table.estimate(run.key, quantity) == Estimate(0.1 + i, None, 1) for i, quantity in enumerate(of))
    assert table.estimate(run.key, Quantity("auroc", "ood", "svhn")) is None, "by no score, and not by all"
    assert table.estimate(run.key, Quantity("auroc", "ood", "svhn", score="max_prob")) is None


def test_scores_of_an_older_version_are_to_be_made_again(tmp_path):
    old = {"dataset": "d", "method": "m", "setting": "s", "seed": 1001, "split": "corrupted:fog:1"}
    old |= {"metric": "nll", "value": 0.5, "n": 9}
    run = scored(tmp_path, [0.5])
    with artifacts.publish(run.evaluate, "evaluate") as folder:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([old]), folder / "scores.parquet")
    with pytest.raises(ArtifactError, match=r"scores.parquet: must have version 2 of the columns .*; make it"):
        tables.gather([run])
    bins = pd.DataFrame([(0, 0, 0.0, 1.0, 9, 0.5, 0.5)], columns=list(tables.CALIBRATION[1:]))
    with pytest.raises(ArtifactError, match=r"calibration.parquet: must be .* columns split, .*make it again"):
        tables.gather([scored(tmp_path, [0.5], calibration=bins)])


def test_calibration_bins_merge_by_count(tmp_path):
    names = list(tables.CALIBRATION)
    bins = pd.DataFrame(
        [(0, 0, 0, 0, 0.5, 10, 0.3, 0.2), (0, 1, 0, 0, 0.5, 30, 0.4, 0.6), (1, 0, 1, 0.5, 1, 0, math.nan, math.nan),
         (1, 1, 1, 0.5, 1, 5, 0.9, 0.8)], columns=names
    )  # fmt: skip
    table = tables.gather([scored(tmp_path, [0.5, 0.5], calibration=bins)])
    merged = tables.merged_bins(table, "d-m-s")
    assert merged["count"].tolist() == [40, 5]
    assert merged.accuracy.tolist() == pytest.approx([0.5, 0.8])
    assert merged.confidence.tolist() == pytest.approx([0.375, 0.9])


def test_best_values_are_bold_by_the_metrics_own_direction(built):
    table = tables.gather(built[1])
    for column in columns.columns(table, "fashion_mnist"):
        cells = columns.cells(table, table.of("fashion_mnist"), column)
        values = [c.value for c in cells if c.value is not None]
        best = (min if column.of.metric in ("nll", "brier", "ece") or column.of.set == "cost" else max)(values)
        assert {c.value for c in cells if c.best} == ({best} if len(set(values)) > 1 else set())


def test_the_papers_figure_stands_beside_ours(built):
    text = (built[0] / "report/comparison.md").read_text()
    line = next(x for x in text.splitlines() if x.startswith("| vbpc | ipc10"))
    ours = tables.gather(built[1]).estimate("fashion_mnist-vbpc-ipc10", Quantity("accuracy"))
    assert f"{100 * ours.mean:.2f} ± {100 * ours.error:.2f} [paper 89.4 ± 0.2]" in line
    assert "[paper 0.30 ± 0.01]" in line and "VBPC, table 1" in text
    assert "paper" not in next(x for x in text.splitlines() if x.startswith("| ensemble"))


def test_metrics_json_has_each_run_and_nothing_volatile(built):
    metrics = json.loads((built[0] / "report/metrics.json").read_text())
    assert set(metrics) == {run.key for run in built[1]}
    assert set(metrics["fashion_mnist-sgld-small"]) == {"accuracy", "nll", "ece"}
    assert set(metrics["boston-sgld-small"]) == {"rmse", "nll"}


def test_the_page_is_well_formed_self_contained_and_shows_every_run(built):
    text = (built[0] / "report/index.html").read_text()
    parsed = Page(text)
    assert parsed.open == []
    assert all(url.startswith(("#", "data:")) for url in parsed.urls)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    assert "://" not in text and "@import" not in text and "url(//" not in text
    for run in built[1]:
        assert f'title="{run.key}"' in text
    assert "&lt;abc&gt;" in text and "<abc>" not in text
    assert "split R-hat" in parsed.text and "1 run carries a warning" in parsed.text
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(url[1:] in ids for url in parsed.urls if url.startswith("#"))
    assert all(a.get("alt") for tag, a in parsed.tags if tag == "img")
    assert all(a["scope"] for tag, a in parsed.tags if tag == "th" and a)
    figures = [a for tag, a in parsed.tags if tag == "svg" and a["aria-label"]]
    assert len(figures) == 8 + 2 + 1 + 1  # reliability, severity, cost, cost of boston
    assert sum(tag == "img" for tag, _ in parsed.tags) == 2  # one picture a coreset
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.search(r"#[0-9a-f]{6}\b", drawn), "a colour that does not follow light and dark"


def test_methods_keep_their_colour_and_settings_differ_in_shape(built):
    looks = plots.marks(built[1])
    assert looks["fashion_mnist-sgld-small"].colour == looks["boston-sgld-small"].colour
    ipc1, ipc10 = looks["fashion_mnist-vbpc-ipc1"], looks["fashion_mnist-vbpc-ipc10"]
    assert ipc1.colour == ipc10.colour and ipc1.marker != ipc10.marker


def test_a_figure_repeats_its_bytes_and_a_page_or_section_is_an_entry_of_a_table(built, monkeypatch):
    table = tables.gather(built[1][8:])
    part = plots.part(table, "boston", plots.marks(table.runs))
    drawing = plots.costs(part, [columns.Column("Size", Quantity("bytes", "cost"))])
    assert drawing.inline.startswith("<svg") and "var(--ink)" in drawing.inline
    assert drawing == plots.costs(part, [columns.Column("Size", Quantity("bytes", "cost"))])
    assert "deterministic 2.86" in drawing.inline and "Size: deterministic 6 kB, ensemble 6 kB" in drawing.inline
    more = page.Section("reliability", "Another <section>", lambda part: {"figures": [drawing]})
    monkeypatch.setattr(page, "SECTIONS", (more,))
    monkeypatch.setattr(page, "PAGES", (*page.PAGES, replace(page.PAGES[0], name="index", title="Another page")))
    text = page.render(table, {}, 80)["index.html"]
    assert "<h3>Another &lt;section&gt;</h3>" in text and "<title>Another page</title>" in text
    assert text.count('<a href="index.html">') == 2


def test_equal_inputs_give_equal_bytes_and_a_different_one_does_not(tmp_path, built):
    _, runs, coresets = built
    for name, commit in [("a", "1"), ("b", "1"), ("c", "2")]:
        report.build(runs[6:9], coresets[:1], tmp_path / name, provenance={"commit": commit}, dpi=110)
    a, b, c = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert {name for name in FILES if a[name] != c[name]} == {"index.html"}


def test_what_is_missing_is_a_dash_and_a_note(tmp_path):
    rng = np.random.default_rng(1)
    plain = write_run(tmp_path, "fashion_mnist", "sgld", "small", image_scores(IMAGES[6], rng, corrupted=False))
    gone = replace(
        plain, key="fashion_mnist-gone", method="gone", evaluate=tmp_path / "no", record=tmp_path / "no.json"
    )
    nothing = replace(gone, key="empty-gone", dataset="empty")
    absent = replace(write_coreset(tmp_path, "fashion_mnist-vbpc-ipc1", 1), path=tmp_path / "no")
    report.build([plain, gone, nothing], [absent], tmp_path / "out", provenance={}, dpi=80)
    text = (tmp_path / "out/index.html").read_text()
    assert Page(text).open == []
    assert "Score against severity" not in text and "Coreset images" not in text
    assert "2 of 3 runs have no result" in text and "<b>fashion_mnist-gone</b>: no result" in text
    row = next(x for x in (tmp_path / "out/comparison.md").read_text().splitlines() if x.startswith("| gone"))
    assert set(row.replace("| gone | small", "").split()) == {"|", "—"}
    assert "fashion_mnist-gone" in json.loads((tmp_path / "out/metrics.json").read_text())


def test_no_runs_and_figures_that_are_not_finite_do_not_crash(tmp_path):
    report.build([], [], tmp_path / "none", provenance={}, dpi=80)
    assert (tmp_path / "none/comparison.csv").read_text() == ",".join(COLUMNS) + "\n"
    case = ROWS[0]
    odd = {"nll": math.inf, "rmse": math.nan}
    rows = [s._replace(value=odd.get(s.of.metric, s.value)) for s in row_scores(case, np.random.default_rng(0))]
    report.build([write_run(tmp_path, "boston", "a", "small", rows)], [], tmp_path / "out", provenance={}, dpi=80)
    assert "∞" in (tmp_path / "out/comparison.md").read_text() and "NaN" in (tmp_path / "out/index.html").read_text()
    assert json.loads((tmp_path / "out/metrics.json").read_text()) == {"boston-a-small": {"nll": None, "rmse": None}}


@pytest.mark.parametrize("at", ["page", "rename"])
def test_a_report_is_replaced_wholly_or_not_at_all(tmp_path, monkeypatch, at):
    """A page that fails, or the second of two renames, when the older report has been moved aside."""
    runs, out, real, failed = [scored(tmp_path, [0.5])], tmp_path / "out", os.replace, []
    report.build(runs, [], out, provenance={"commit": "old"}, dpi=80)
    before = {f.name: f.read_bytes() for f in out.iterdir()}

    def fails(source, target="", *_):
        if at == "page" or (Path(target) == out and not failed):
            failed.append(source)
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(*{"page": (page, "render"), "rename": (os, "replace")}[at], fails)
    with pytest.raises(OSError, match="Input/output error"):
        report.build(runs, [], out, provenance={"commit": "new"}, dpi=80)
    assert failed and {f.name: f.read_bytes() for f in out.iterdir()} == before
    assert not list(tmp_path.glob(".*"))


def test_a_table_that_lacks_a_column_or_was_altered_is_refused_by_name(tmp_path):
    run = scored(tmp_path, [0.5])
    short = pyarrow.parquet.read_table(run.evaluate / "scores.parquet").drop_columns(["n"])
    with artifacts.publish(run.evaluate, "evaluate") as folder:
        pyarrow.parquet.write_table(short, folder / "scores.parquet")
    with pytest.raises(ArtifactError, match=r"must have version 2 of the columns .*, n, each of its type, got "):
        tables.gather([run])
    (run.evaluate / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"scores.parquet: is truncated"):
        tables.gather([run])


def test_upstream_warnings_are_shown(tmp_path):
    teacher = tmp_path / "d-sgld.run.json"
    teacher.write_text(json.dumps({"warnings": ["R-hat 1.3"]}))
    table = tables.gather([replace(scored(tmp_path, [0.5], warnings=["own"]), upstream=(teacher,))])
    assert table.warnings["d-m-s"] == ("own", "d-sgld: R-hat 1.3")


def test_images_are_written_as_they_are():
    from io import BytesIO

    from PIL import Image

    shown = np.asarray(Image.open(BytesIO(cross.png(np.array([[[0.0, 1.0], [0.5, 7.0]]])))))
    assert shown.tolist() == [[0, 255], [128, 255]]
    colour = np.zeros((3, 2, 2))
    colour[2] = 1
    assert np.asarray(Image.open(BytesIO(cross.png(colour))))[0, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (columns.size, 999, "999 B"),
        (columns.size, 33_000, "33 kB"),
        (columns.size, 6.1e8, "610 MB"),
        (columns.size, 2.5e9, "2.50 GB"),
        (columns.seconds, 0.012, "12 ms"),
        (columns.seconds, 0.0998, "100 ms"),
        (columns.seconds, 0.0062, "6.2 ms"),
        (columns.seconds, 4.2, "4.2 s"),
        (columns.seconds, 131.4, "131 s"),
        (columns.seconds, 1200, "20 min"),
        (columns.count, 650, "650"),
        (columns.count, 7_750_000, "7.75 M"),
        (columns.percent, 0.91456, "91.46"),
    ],
)
def test_figures_are_written_for_people(write, value, text):
    assert write(value) == text


def test_every_score_of_other_data_has_columns_and_one_that_a_plugin_adds_its_own_name(tmp_path):
    by = (("auroc", "max_prob"), ("auroc", "top_margin"), ("fpr95", "top_margin"), ("auroc", "feature_density"))
    of = [Quantity(metric, "ood", "other", score=score) for metric, score in by]
    run = write_run(tmp_path, "d", "m", "s", [Score(0, 0, quantity, 0.75, 9) for quantity in of])
    table = tables.gather([run])
    (grid,) = page.ood(plots.part(table, "d", plots.marks(table.runs)))["grids"]
    assert grid.groups == [("score: max prob", 1), ("score: feature density", 1), ("score: top margin", 2)]
    assert grid.head[1:] == ["AUROC", "AUROC", "AUROC", "FPR95"] and grid.title == "against other"
    assert [cell.text for cell in grid.rows[0]] == ["m", *["0.750"] * 4]


def test_transfer_scores_have_their_columns(tmp_path):
    def scored(method, accuracy, nll):
        other = [Quantity(metric, "transfer", "stl<10") for metric in ("accuracy", "nll")]
        made = []
        for seed, d in ((0, 0.01), (1, -0.01)):
            values = ((Quantity("accuracy"), 0.99), (other[0], accuracy + d), (other[1], nll))
            made += [Score(0, seed, of, value, 9) for of, value in values]
        return write_run(tmp_path, "d", method, "s", made)

    table = tables.gather([scored("a", 0.7246, 1.65), scored("b", 0.7225, 0.99)])
    grid = columns.headline(table, "d")
    assert [[(cell.figure, cell.best) for cell in row[4:6]] for row in grid.rows] == [
        [("72.46 ± 1.00", True), ("1.650 ± 0.000", False)],
        [("72.25 ± 1.00", False), ("0.990 ± 0.000", True)],
    ]
    titles = [c.title for c in columns.columns(table, "d")]
    assert titles == ["Accuracy %", "Acc. % stl<10", "NLL stl<10"]
    assert "NLL stl&lt;10" in page.render(table, {}, 80)["index.html"]


def test_recalibration_has_scores_before_and_after_and_the_coverage(tmp_path):
    values = {"nll": 0.5, "nll_recalibrated": 0.4, "ece": 0.1, "ece_recalibrated": 0.05}
    values |= {"coverage_conformal": 0.912, "size_conformal": 1.25}
    figures = [Score(0, 0, Quantity(metric), value, 90) for metric, value in values.items()]
    plain = write_run(tmp_path, "d", "other", "s", figures[:1])
    table = tables.gather([write_run(tmp_path, "d", "m", "s", figures), plain])
    grid = page.recalibration(plots.part(table, "d", plots.marks(table.runs)))["grid"]
    titles = ["NLL before", "NLL after", "ECE % before", "ECE % after", "Coverage %", "Set size"]
    assert grid.head[1:] == titles
    assert [[cell.text for cell in row[1:]] for row in grid.rows] == [
        ["0.500", "0.400", "10.00", "5.00", "91.20", "1.250"]
    ]


def test_the_metric_of_a_plugin_is_a_column(tmp_path, monkeypatch):
    """By its own label and writing; a metric that the plugin does not register is none."""
    from bdl_pipe.metrics import METRICS, register_metric

    monkeypatch.setattr(METRICS, "_others", {})
    register_metric("worst", lambda predictive, targets: None, label="Worst %", better=-1, percent=True)
    figures = [Score(0, 0, Quantity(metric), 0.25, 9) for metric in ("accuracy", "worst")]
    table = tables.gather([write_run(tmp_path, "d", "m", "s", figures)])
    assert [c.title for c in columns.columns(table, "d")] == ["Accuracy %", "Worst %"]
    assert columns.headline(table, "d").rows[0][4].text == "25.00"
    assert columns.metrics(table) == {"d-m-s": {"accuracy": 0.25, "worst": 0.25}}
