"""The report from stored tables: figures against hand computation, and a self-contained page."""

import csv
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

import bdl_report
from bdl_pipe.errors import ArtifactError
from bdl_pipe.evaluation.joint import LINES, PAIRED
from bdl_pipe.registry import METHODS
from bdl_pipe.scores import COLUMNS, SAME_CLASS, Quantity
from bdl_report import charts, columns, page, question_pages, tables
from tests.report.report_cases import (
    IMAGES,
    ROWS,
    everything,
    image_scores,
    of_values,
    row_scores,
    write_coreset,
    write_run,
)

pytestmark = pytest.mark.slow  # the report of all tables is built first, in three seconds
LINKS = {"index.html", "pages/trust.html", "pages/unseen.html", "pages/vega.js"}
FILES = LINKS | {
    "pages/manifest.json",
    "comparison.csv",
    "coresets.csv",
    "comparison.parquet",
    "comparison.md",
    "metrics.json",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    runs = everything(root)
    bdl_report.build(runs, root / "report", provenance={"commit": "<abc>", "device": "cpu"}, dpi=110)
    return root, runs


class Page(HTMLParser):
    """Balanced tags, and every URL that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.urls, self.tags, self.text = list[str](), list[str](), list[tuple[str, dict]](), ""
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.urls += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action")]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_report_has_exactly_its_files_and_the_comparison_is_tidy_sorted_and_equal_in_csv_and_parquet(built):
    root, *_ = built
    assert {str(f.relative_to(root / "report")) for f in (root / "report").rglob("*.*")} == FILES
    assert not [f for f in root.iterdir() if f.name.startswith(".")], "a temporary folder is left"
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


def test_best_values_are_bold_by_the_metrics_own_direction(built):
    table = tables.gather(built[1]).by_dataset()["fashion_mnist"]
    for column in columns.columns(table):
        cells = columns.cells(table, column)
        values = [c.value for c in cells if c.value is not None]
        best = (min if column.of.metric in ("nll", "brier", "ece") or column.of.set == "cost" else max)(values)
        assert {c.value for c in cells if c.best} == ({best} if len(set(values)) > 1 else set())


def test_the_papers_figure_stands_beside_the_runs_figure_and_splits_or_seeds_are_counted(built):
    text = (built[0] / "report/comparison.md").read_text()
    line = next(x for x in text.splitlines() if x.startswith("| vbpc | ipc10"))
    ours = tables.gather(built[1]).estimate("fashion_mnist-vbpc-ipc10", Quantity("accuracy"))
    assert f"{100 * ours.mean:.2f} ± {100 * ours.error:.2f} [paper 89.4 ± 0.2]" in line
    assert "[paper 0.30 ± 0.01]" in line and "VBPC, table 1" in text
    assert "paper" not in next(x for x in text.splitlines() if x.startswith("| ensemble"))
    heads = {one.title: one.head[2] for one in bdl_report.headlines(tables.gather(built[1]))}
    assert heads["boston"] == "Splits" and heads["fashion_mnist"] == "Seeds"


def test_chains_of_several_runs_are_shown_once_with_traces_and_omitted_if_absent(built):
    parts = tables.gather(built[1]).by_dataset()
    shown = page.chains(parts["fashion_mnist"])
    assert page.chains(parts["boston"]) is None
    ((key, *cells),) = shown["grid"].rows
    assert key.text == "fashion_mnist-chains"
    assert [cell.text for cell in cells] == ["1.31", columns.NOTHING, "41", "20", columns.NOTHING, "260"]
    (figure,) = shown["figures"]
    assert figure.alt == "Traces of fashion_mnist-chains: log-likelihood -3 to -2"
    text = (built[0] / "report/index.html").read_text()
    assert text.count("<h3>Markov chains</h3>") == 1 and "Tail ESS" in text


def test_metrics_json_has_no_costs_and_a_method_has_one_colour_and_dashes_for_each_setting(built):
    metrics = json.loads((built[0] / "report/metrics.json").read_text())
    assert set(metrics) == {run.key for run in built[1]}
    assert set(metrics["fashion_mnist-sgld-small"]) == {"accuracy", "nll", "ece"}
    assert set(metrics["boston-sgld-small"]) == {"rmse", "nll"}
    looks = tables.gather(built[1]).looks
    assert looks["fashion_mnist-sgld-small"].colour == looks["boston-sgld-small"].colour
    ipc1, ipc10 = looks["fashion_mnist-vbpc-ipc1"], looks["fashion_mnist-vbpc-ipc10"]
    assert ipc1.colour == ipc10.colour and ipc1.dash != ipc10.dash
    assert tables.gather(built[1][1:4]).looks["fashion_mnist-vbpc-ipc1"] == ipc1, "another run changes a colour"
    known = {run.method: looks[run.key].colour for run in built[1] if run.method in METHODS}
    assert len({*known.values()}) == len(known) == 5


def test_the_methods_of_a_family_share_a_colour_and_those_without_one_share_three():
    runs = {name: SimpleNamespace(method=name, dataset="d", setting="") for name in METHODS}
    colours = {name: re.findall(r"--m\d", tables.look(run, [run]).colour)[0] for name, run in runs.items()}
    of_family = {family: {colours[n] for n, m in METHODS.items() if m.family == family} for family in ("", "coresets")}
    assert {family: len(of) for family, of in of_family.items()} == {"": 3, "coresets": 1}


def test_the_page_is_well_formed_self_contained_and_shows_every_run(built):
    text = (built[0] / "report/index.html").read_text()
    parsed = Page(text)
    assert parsed.open == []
    assert {url for url in parsed.urls if not url.startswith(("#", "data:"))} == LINKS
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
    specs = [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    assert len(specs) == 2 * 2 + 2 + 1  # differences and costs of two data sets, severity, traces
    assert [one["description"] for one in specs] == [a["aria-label"] for _, a in parsed.tags if a.get("role") == "img"]
    assert sum(tag == "img" for tag, _ in parsed.tags) == 2  # one picture a coreset
    assert not re.search(r"#[0-9a-f]{6}\b", str(specs)), "a colour that does not follow light and dark"
    boxes = [a["value"] for tag, a in parsed.tags if tag == "input"]
    assert boxes == ["coreset"], "boston has no coreset, and no difference has an interval"
    assert 'data-kinds="coreset"' in text and parsed.text.index("Origin") > parsed.text.index("Over all data")


def test_an_entry_of_sections_or_pages_is_rendered(built, monkeypatch):
    table = tables.gather(built[1][8:])
    drawn = charts.pareto(table)
    assert "deterministic 2.86" in drawn.alt
    more = page.Section("severity", "Another <section>", lambda table: {"figures": [drawn]})
    monkeypatch.setattr(page, "SECTIONS", (more,))
    monkeypatch.setattr(page, "PAGES", (*page.PAGES, replace(page.PAGES[0], name="index", title="Another page")))
    text = page.render(table, {}, 80)["index"]
    assert "<h3>Another &lt;section&gt;</h3>" in text and "<title>Another page</title>" in text
    assert text.count('<a href="index.html">') == 2 and "pages/unseen.html" not in text


def test_students_stand_beside_the_posteriors_that_they_imitate(tmp_path):
    """Two splits: a loss is the mean of paired differences; a student without its teacher's run has dashes."""

    def made(method, nll, rmse, size, **more):
        values = {"nll": nll, "rmse": rmse, "joint_nll_20": [nll[0] * 10, nll[1] * 10], "joint_gap_20": [0.25, 0.75]}
        values |= {Quantity("bytes", "cost"): [size] * 2, Quantity("seconds_per_1000", "cost"): [size / 1e5] * 2}
        return write_run(tmp_path, "d", method, "s", of_values(values, splits=True), **more)

    teacher = made("sgmcmc", [2.0, 4.0], [1.0, 1.0], 9_000)
    student = made("dark_knowledge", [2.1, 4.3], [0.9, 0.7], 3_000, imitates=teacher.key)
    online = made("online", [2.5, 4.5], [1.0, 2.0], 3_000, imitates="")
    assert page.imitation(tables.gather([teacher])) is None
    table = tables.gather([online, teacher, student])
    (grid,) = page.imitation(table).values()
    assert grid.head == [
        *("Method, setting", "teacher", "student", "teacher", "ratio", "student", "teacher"),
        *("student", "teacher", "lost", "lost", "student", "teacher", "student", "teacher"),
    ]
    assert grid.groups == [
        *(("", 1), ("Size", 3), ("Per 1,000", 2), ("NLL", 3), ("RMSE", 1)),
        *(("Joint NLL 20", 2), ("Joint gap 20", 2)),
    ]
    without, beside = ([cell.figure for cell in row] for row in grid.rows)  # in the order of the runs
    assert beside[:2] == ["dark knowledge s", "sgmcmc"] and without[:2] == ["online s", "—"]
    assert beside[2:7] == ["3 kB", "9 kB", "3 ×", "30 ms", "90 ms"]
    assert beside[7:11] == ["3.200 ± 1.100", "3.000 ± 1.000", "+0.200 ± 0.100", "-0.200 ± 0.100"]
    assert beside[11:] == ["32.000 ± 11.000", "30.000 ± 10.000", "0.500 ± 0.250", "0.500 ± 0.250"]
    assert without[3:5] == ["—", "—"] and without[9:11] == ["—", "—"] and without[7] == "3.500 ± 1.000"
    text = Page(page.render(table, {}, 80)["index"])
    assert text.open == [] and text.text.count("Students") == 1


def test_a_warning_of_several_runs_is_one_line_that_names_the_runs(tmp_path):
    disagreement, divergence = (
        "b-chains: chains disagree: R-hat 3.932 (limit 1.05): run them longer",
        "rates: the fit diverged",
    )
    warnings = {"sgmcmc": (disagreement,), "dark_knowledge": (divergence, disagreement)}
    of = of_values({"nll": 1.0})
    runs = [write_run(tmp_path, "b", method, "s", of, warnings=lines) for method, lines in warnings.items()]
    bdl_report.build(runs, tmp_path / "out", provenance={}, dpi=80)
    lines = [f"{disagreement}. Runs: b-sgmcmc-s, b-dark_knowledge-s", f"{divergence}. Runs: b-dark_knowledge-s"]
    page_lines = (tmp_path / "out/comparison.md").read_text().splitlines()
    assert [line for line in page_lines if "Runs:" in line] == [f"- {line}" for line in lines]
    text = (tmp_path / "out/index.html").read_text()
    assert text.count(disagreement) == 1 and all(f'<p class="warn">{line}</p>' in text for line in lines)


def test_the_table_of_chains_names_the_worst_of_several_splits_and_rounds_r_hats_to_two_decimals():
    of = tables.ChainsInfo({"rhat_prediction": 3.0, "rhat_log_likelihood": 1.004, "ess_prediction": 41.25}, {})
    grid = columns.diagnostics({"chains": of})
    assert grid.head[0] == "Chains" and [cell.text for cell in grid.rows[0][1:4]] == ["3.00", "1.00", "41.2"]
    assert columns.diagnostics({"chains": replace(of, splits=5)}).head[0] == "Chains, worst of 5 splits"


def test_the_noise_column_of_regression_has_words(tmp_path):
    """The word has no error, though there are two splits, and no run is the best."""
    values = {"gp": [1.0, 1.0], "swag": [2.0, 7.0]}
    of = {method: of_values({"noise_ratio": ratios}, splits=True) for method, ratios in values.items()}
    grid = columns.headline(tables.gather([write_run(tmp_path, "d", method, "s", of[method]) for method in of]))
    place = grid.head.index("Noise")
    assert [(row[place].figure, row[place].best) for row in grid.rows] == [("one", False), ("each input", False)]


def test_joint_scores_have_a_section_if_a_run_has_them(built, tmp_path):
    assert page.together(tables.gather(built[1])) is None
    values = {"joint_nll_20": 3.2, "joint_gap_20": 1.25, "joint_gap": 0.001, "nll": 0.3}
    run = write_run(tmp_path, "d", "d_vbll", "s", of_values(values))
    bdl_report.build([run], tmp_path / "out", provenance={}, dpi=80)
    parsed = Page((tmp_path / "out/index.html").read_text())
    assert parsed.open == [] and "Several inputs together" in parsed.text
    grid, drawn = page.together(tables.gather([run])).values()
    assert drawn == [], "an evaluation of before the line has no figure"
    assert grid.head == ["Method, setting", "Joint NLL 20", "Joint gap 20", "Joint gap"]
    assert [cell.text for cell in grid.rows[0][1:]] == ["3.200", "1.250", "0.001"]


def test_the_lines_between_two_inputs_are_one_figure_per_data_set(tmp_path):
    scores, runs = of_values({"nll": 0.3, "joint_nll_2": 0.3}), []
    for number, method in enumerate(["d_vbll", "ensemble", "sgld"]):
        ends = [(0, 0.9, 0.7 + 0.1 * number), (1, 0.7, 0.5)]  # seed, and the values at the line's beginning
        rows = [(0, seed, share, a * (1 - share), b * (1 - share)) for seed, a, b in ends for share in (0.0, 0.5, 1.0)]
        line = pd.DataFrame(rows, columns=list(SAME_CLASS)) if method != "sgld" else None
        runs.append(write_run(tmp_path, "d", method, "s", scores, same_class=line))
    drawn = page.together(tables.gather(runs))["figures"]
    texts = ["0.300 by the product", "0.325 by the product"]
    assert [one.alt.rpartition("0.400 by the joint and ")[2] for one in drawn] == texts
    bdl_report.build(runs, tmp_path / "out", provenance={}, dpi=80)
    parsed = Page((tmp_path / "out/index.html").read_text())
    assert parsed.open == [] and "second input moves on the line" in parsed.text
    rule = f"among the first {PAIRED} test rows, the {LINES} pairs of rows of different classes that are nearest"
    assert rule in parsed.text
    (runs[0].evaluate / "same_class.parquet").write_bytes(b"")
    with pytest.raises(ArtifactError):
        tables.gather(runs)


@pytest.mark.slow
def test_equal_inputs_give_equal_files_and_another_commit_changes_the_index_alone(tmp_path, built):
    _, runs = built
    for name, commit in [("a", "1"), ("b", "1"), ("c", "2")]:
        bdl_report.build(runs[7:9], tmp_path / name, provenance={"commit": commit}, dpi=110)
    a, b, c = (
        {n: (tmp_path / name / n).read_bytes() for n in ("index.html", "pages/vega.js", *FILES - LINKS)}
        for name in "abc"
    )
    assert a == b
    assert {name for name in a if a[name] != c[name]} == {"index.html"}


def test_a_run_without_results_is_a_row_of_dashes_and_a_note(tmp_path):
    rng = np.random.default_rng(1)
    plain = write_run(tmp_path, "fashion_mnist", "sgld", "small", image_scores(IMAGES[6], rng, corrupted=False))
    gone = replace(plain, key="fashion_mnist-gone", method="gone", evaluate=tmp_path / "no")
    nothing = replace(gone, key="empty-gone", dataset="empty")
    absent = replace(write_coreset(tmp_path, "fashion_mnist-vbpc-ipc1", 1), path=tmp_path / "no")
    bdl_report.build([replace(plain, coreset=absent), gone, nothing], tmp_path / "out", provenance={}, dpi=80)
    text = (tmp_path / "out/index.html").read_text()
    assert Page(text).open == []
    assert "Score against severity" not in text and "Coreset images" not in text
    assert "2 of 3 runs have no result" in text and "evaluation is absent. Runs: fashion_mnist-gone<" in text
    row = next(x for x in (tmp_path / "out/comparison.md").read_text().splitlines() if x.startswith("| gone"))
    assert set(row.replace("| gone | small", "").split()) == {"|", "—"}
    assert "fashion_mnist-gone" in json.loads((tmp_path / "out/metrics.json").read_text())


def test_a_report_of_no_runs_or_of_scores_that_are_not_finite_is_written(tmp_path):
    bdl_report.build([], tmp_path / "none", provenance={}, dpi=80)
    assert (tmp_path / "none/comparison.csv").read_text() == ",".join(COLUMNS) + "\n"
    case = ROWS[0]
    odd = {"nll": math.inf, "rmse": math.nan}
    rows = [s._replace(value=odd.get(s.of.metric, s.value)) for s in row_scores(case, np.random.default_rng(0))]
    bdl_report.build([write_run(tmp_path, "boston", "a", "small", rows)], tmp_path / "out", provenance={}, dpi=80)
    assert "∞" in (tmp_path / "out/comparison.md").read_text() and "NaN" in (tmp_path / "out/index.html").read_text()
    assert json.loads((tmp_path / "out/metrics.json").read_text()) == {"boston-a-small": {"nll": None, "rmse": None}}


def test_a_failed_build_leaves_the_old_report_unchanged_and_a_truncated_file_is_named(tmp_path, monkeypatch):
    """A report is replaced in the same way as artifacts, which test_artifacts.py tests; here a page fails to render."""
    runs, out = [write_run(tmp_path, "d", "m", "s", of_values({"accuracy": 0.5}))], tmp_path / "out"
    bdl_report.build(runs, out, provenance={"commit": "old"}, dpi=80)
    before = {f.name: f.read_bytes() for f in out.rglob("*.*")}
    monkeypatch.setattr(page, "render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bdl_report.build(runs, out, provenance={"commit": "new"}, dpi=80)
    assert {f.name: f.read_bytes() for f in out.rglob("*.*")} == before
    assert not list(tmp_path.glob(".*"))
    (runs[0].evaluate / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"scores.parquet: is truncated"):
        tables.gather(runs)


def test_every_ood_score_has_columns_and_the_comparison_refers_to_them_if_there_are_several(tmp_path):
    """A plugin's score has its own name."""

    def built(*by):
        of = {Quantity(metric, "ood", "other", score=score): 0.75 for metric, score in by}
        run = write_run(tmp_path, "d", "m", "s", of_values(of))
        bdl_report.build([run], tmp_path / "out", provenance={}, dpi=80)
        (grid,) = question_pages.answers(tables.gather([run]), "unseen")["parts"]["d"]["grids"]
        return (tmp_path / "out/comparison.md").read_text().splitlines(), grid

    lines, grid = built(
        ("auroc", "max_prob"), ("auroc", "top_margin"), ("fpr95", "top_margin"), ("auroc", "feature_density")
    )
    assert grid.groups == [("score: max prob", 1), ("score: feature density", 1), ("score: top margin", 2)]
    assert grid.head[1:] == ["AUROC", "AUROC", "AUROC", "FPR95"] and grid.title == "against other"
    assert [cell.text for cell in grid.rows[0]] == ["m", *["0.750"] * 4]
    assert lines[-2:] == ["", "AUROC here is by max_prob; pages/unseen.html has it by every score, set by set."]
    lines, grid = built(("auroc", "max_prob"))
    assert not any("unseen" in line for line in lines)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((-2e-4, 1e-5, 3e-4), (True, False, False)),
        ((-2e-4, -1e-5, 3e-4), (True, True, False)),
        ((0.0, -1e-5, 3e-4), (True, True, False)),
        ((2e-4, 1e-5, 3e-4), (False, True, False)),
        ((-2e-4, -1e-5), (False, False)),
        ((-2e-4, math.nan, 1e-5), (True, False, False)),
    ],
)
def test_an_unbiased_estimate_below_zero_is_no_better_than_zero(tmp_path, values, best):
    """A reliability cannot be below 0, its estimate can. The printed mean over seeds counts; an NLL may be below 0."""
    pairs = [[value + 4e-3, value - 4e-3] for value in values]
    scored = [of_values({"brier_reliability": pair, "nll": pair}) for pair in pairs]
    runs = [write_run(tmp_path, "d", name, "s", scores) for name, scores in zip("abc", scored, strict=False)]
    table = tables.gather(runs)
    cells = columns.cells(table, columns.Column("", Quantity("brier_reliability")))
    assert tuple(cell.best for cell in cells) == best
    assert [cell.value for cell in cells if cell.value is not None] == pytest.approx([v for v in values if v == v])
    nll = columns.cells(table, columns.Column("", Quantity("nll")))
    assert [cell.best for cell in nll].index(True) == int(np.nanargmin(values))


def test_transfer_scores_have_their_columns(tmp_path):
    other = {Quantity(metric, "transfer", "stl<10"): 0.5 for metric in ("accuracy", "nll")}
    table = tables.gather([write_run(tmp_path, "d", "m", "s", of_values({"accuracy": 0.99, **other}))])
    assert [c.title for c in columns.columns(table)] == ["Accuracy %", "Acc. % stl<10", "NLL stl<10"]
    assert "NLL stl&lt;10" in page.render(table, {}, 80)["index"]


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_the_recalibration_table_has_scores_before_and_after_and_the_coverage(tmp_path, task):
    """Of regression, the scores after are the run's own."""
    if task == "classes":
        values = {"nll": 0.5, "nll_recalibrated": 0.4, "ece": 0.1, "ece_recalibrated": 0.05}
        values |= {"coverage_conformal": 0.912, "size_conformal": 1.25}
        expected = {"NLL before": "0.500", "NLL after": "0.400", "ECE % before": "10.00", "ECE % after": "5.00"}
        expected |= {"Coverage %, conformal": "91.20", "Set size, conformal": "1.250"}
    else:
        values = {"nll": 0.4, "nll_before": 0.5, "crps": 0.1, "crps_before": 0.2, "coverage_90": 0.9}
        values |= {"coverage_90_before": 0.97, "coverage_conformal": 0.91, "width_conformal": 1.25}
        expected = {"NLL before": "0.500", "NLL after": "0.400", "CRPS before": "0.200", "CRPS after": "0.100"}
        expected |= {"Coverage % before": "97.00", "Coverage % after": "90.00"}
        expected |= {"Coverage %, conformal": "91.00", "Width, conformal": "1.250"}
    plain = write_run(tmp_path, "d", "other", "s", of_values({"nll": 0.5}))
    grid = page.recalibration(tables.gather([write_run(tmp_path, "d", "m", "s", of_values(values)), plain]))["grid"]
    (row,) = grid.rows
    assert dict(zip(grid.head[1:], (cell.text for cell in row[1:]), strict=True)) == expected
    assert grid.head[1:] == [*expected] or task == "regression"


def test_a_plugins_metric_is_a_column(tmp_path, monkeypatch):
    """It has its own label and format; a metric that names a question is on that question's page instead."""
    from bdl_pipe.metrics import METRICS, register_metric

    monkeypatch.setattr(METRICS, "_others", {})
    register_metric("worst", lambda fit: None, label="Worst %", better=-1, percent=True)
    register_metric("asked", lambda fit: None, label="Asked", better=-1, question="refuse")
    figures = of_values(dict.fromkeys(("accuracy", "worst", "asked"), 0.25))
    table = tables.gather([write_run(tmp_path, "d", "m", "s", figures)])
    assert [c.title for c in columns.columns(table)] == ["Accuracy %", "Worst %"]
    assert columns.headline(table).rows[0][4].text == "25.00"
    assert columns.metrics(table) == {"d-m-s": {"accuracy": 0.25, "worst": 0.25}}
    (grid,) = question_pages.answers(table, "refuse")["parts"]["d"]["grids"]
    assert grid.head[1:] == ["Asked"] and grid.rows[0][1].text == "0.250"


def test_the_page_concludes_which_method_to_take(built):
    """The runs on boston have five splits; two data sets have four methods in common."""
    table = tables.gather(built[1])
    text, comparison = ((built[0] / "report" / name).read_text() for name in ("index.html", "comparison.md"))
    for part in table.by_dataset().values():
        verdict = columns.headline(part).verdict
        assert (
            f"## {part.dataset}\n\n" + "".join(f"- {sentence}\n" for sentence in verdict) + "\n| Method" in comparison
        )
        for sentence in verdict:
            head = sentence[: min(sentence.find(end) for end in ":?" if end in sentence) + 1]
            assert f"<li><b>{head}</b>{sentence.removeprefix(head)}</li>" in text
    assert text.count("The differences as a table") == 2
    ranked = page.ranks(table)
    assert ranked["ranks"].datasets == 2 and {cell.text for cell, _ in ranked["grid"].rows} == {r[0] for r in ROWS}
    assert f"{ranked['ranks'].first} ranks first; statistically tied with it: " in text
