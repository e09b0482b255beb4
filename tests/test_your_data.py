"""The tables of results/your_data: the list, the sources of the tables, and the page that is made from their scores."""

import csv
import functools
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bdl_pipe import scores
from bdl_pipe.errors import DataError, UserError
from bdl_pipe.metrics.comparison import over_splits
from bdl_pipe.scores import Quantity, Score
from bdl_pipe.seeds import Seed
from benchmarks.rivals.worst import COLUMNS
from benchmarks.your_data import fetch, judged, others, page, project
from benchmarks.your_data.tables import BY_NAME, INSTALL, TABLES, Table

PLACE = Path(__file__).resolve().parents[1] / "results" / "your_data"
FORMER = {
    *("breast_cancer", "iris", "pima_tr", "airquality", "diabetes", "diamonds", "mpg", "digits_8x8", "penguins"),
    *("titanicsurvival", "wine", "flights", "houseprices", "salaries", "wage"),
}
LATER = {"magic", "nmes1988", "gestation", "budgetfood", "check_times"}  # seen since a run of all tables
WIDE = {"budgetitaly", "saratogahouses", "acs12", "computers"}  # since the recalibration of tails, or by `stacked`
MET = re.compile(
    r"college$|hitters|carseats|auto|boston|concrete|winequality|prestige|ames|cpus|pima|titanic|wdbc", re.I
)


def test_tables_of_both_tasks_and_all_sizes_are_listed_and_the_tables_that_the_rules_have_met_are_marked() -> None:
    assert len(TABLES) == 39 and len(BY_NAME) == len({table.source for table in BY_NAME.values()}) == 48
    assert Counter(table.task for table in TABLES) == {"regression": 26, "classification": 13}
    assert all(re.fullmatch(r"[a-z0-9_]+", table.name) and table.licence for table in TABLES)
    for seen in (True, False):
        assert {table.size for table in TABLES if table.seen == seen} == {"small", "middle", "large"}
    assert {table.name for table in BY_NAME.values() if table.seen} == FORMER | LATER | WIDE
    assert [table.name for table in BY_NAME.values() if not table.seen and MET.search(" ".join(table.source))] == []


def test_a_table_without_a_known_source_a_reason_or_its_size_is_refused() -> None:
    for source, out, rule in (("here", {}, "source must be of"), ("sklearn", {"a": ""}, "must have a reason")):
        with pytest.raises(UserError, match=rule):
            Table("x", (source, "x"), "y", "regression", 300, 4, False, "CC0", out)
    with pytest.raises(DataError, match="iris must have 149 rows with a target and 4 columns, got 150 and 4"):
        fetch.read(Table("iris", ("sklearn", "iris"), "target", "classification", 149, 4, True, "CC0"))


@pytest.mark.slow
@pytest.mark.parametrize("table", BY_NAME.values(), ids=list(BY_NAME))
def test_a_table_is_read_from_its_package_and_its_target_fits_its_task(table: Table) -> None:
    pytest.importorskip(table.source[0])
    frame = fetch.read(table)
    assert frame[table.target].nunique() > 20 if table.task == "regression" else frame[table.target].nunique() <= 26


def test_the_error_for_a_missing_package_has_its_install_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    for name in ("iris", "diamonds", "german"):
        with pytest.raises(UserError, match=re.escape(INSTALL[BY_NAME[name].source[0]])):
            fetch.write(BY_NAME[name], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.slow
def test_tables_are_added_once_and_their_scores_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten_plugins: None
) -> None:
    """The default data sets are removed, other minutes add a table again, and a fit without scores has an empty row.

    A fit whose scores are out of date has an empty row, too: here all scores are, until the plan says otherwise.
    """
    folder, iris = tmp_path / "project", [BY_NAME["iris"]]
    project.make(folder)
    project.add(folder, iris, 1)
    first = (folder / "params.yaml").read_text()
    project.make(folder)
    project.add(folder, iris, 1)
    assert (folder / "params.yaml").read_text() == first
    project.add(folder, iris)
    assert "--minutes 10" in (folder / "params/data/iris.yaml").read_text()
    place = folder / "work/evaluate/iris-bnn"
    place.mkdir(parents=True)
    figures = [Score(1, 0, Quantity("nll"), 0.123456789, 15), Score(1, 0, Quantity("fit_seconds", "cost"), 2.0, 1)]
    scores.pq.write_table(scores.table("iris", "bnn", "auto", figures), place / "scores.parquet")
    assert project.gather(folder, [])[0]["nll"].isna().all()
    monkeypatch.setattr(project.pool, "stale", lambda stages: {})
    assert set(project.gather(folder, ["vbll", "bnn"])[0]["method"]) == {"bnn"}
    frame, facts = project.gather(folder, [])
    assert set(frame["table"]) == {"iris"}
    assert set(facts) >= {"commit", "seed", "device", "cores"}
    (row,) = frame[frame["nll"].notna()].to_dict("records")
    wanted = {"method": "bnn", "split": 1, "rows": 15, "nll": 0.1234568, "fit_seconds": 2.0}
    assert {name: row[name] for name in wanted} == wanted
    assert len(frame) == 5 * frame["method"].nunique()
    project.store(tmp_path / "page", frame, facts)
    pd.testing.assert_frame_equal(page.read(tmp_path / "page"), frame.reset_index(drop=True), check_dtype=False)


def test_a_later_run_replaces_only_its_own_tables(tmp_path: Path) -> None:
    later = ["iris", "airquality"]
    every = project.ordered(made())
    again = every[every["table"].isin(later)].assign(nll=0.25)
    project.store(tmp_path, every, {"commit": "one"})
    project.store(tmp_path, again, {"commit": "two"})
    stored, keys = page.read(tmp_path), ["table", "method", "split"]
    assert [key for key, _ in stored.groupby(keys)] == [key for key, _ in every.groupby(keys)]
    assert (stored[stored["table"].isin(later)]["nll"] == 0.25).all()
    rest, before = (frame[~frame["table"].isin(later)]["nll"] for frame in (stored, every))
    assert rest.to_numpy() == pytest.approx(before.to_numpy(), rel=1e-6, nan_ok=True)
    runs = [(run["commit"], run["tables"]) for run in page.facts(tmp_path)]
    assert runs == [("one", ["titanicsurvival", "caschools"]), ("two", later)]
    text = page.page(stored, page.facts(tmp_path))
    assert "- commit: one\n- tables: titanicsurvival, caschools" in text and "- tables: iris, airquality" in text
    some = every[every["method"] == "dropout"].assign(nll=0.5)
    project.store(tmp_path, some, {"commit": "three", "methods": ["dropout"]})
    stored = page.read(tmp_path)
    assert (stored["nll"] == 0.5).equals(stored["method"] == "dropout") and len(stored) == len(every)
    assert [run["commit"] for run in page.facts(tmp_path)] == ["one", "two", "three"]
    project.store(tmp_path, every, {"commit": "four"})
    assert [run["commit"] for run in page.facts(tmp_path)] == ["four"]


def made() -> pd.DataFrame:
    """Return scores of four tables: `bnn` is above the constant on one of them, and one fit of `dropout` is missing."""
    random, rows = Seed(3).numpy(), []
    shift = {
        "constant": 0.0,
        "linear": -0.5,
        "boosting": -1.0,
        "bnn": -0.9,
        "stacked": -1.1,
        "dropout": -1.05,
        "ensemble": -1.2,
    }
    for name in ("iris", "titanicsurvival", "airquality", "caschools"):
        table = BY_NAME[name]
        for method in [*shift, *(["gp"] if table.task == "regression" else [])]:
            for split in range(5 if table.size == "small" else 3):
                nll = 2 + shift.get(method, -0.8) + 0.1 * random.normal() + 1.2 * ((name, method) == ("iris", "bnn"))
                record = {"nll": nll, "fit_seconds": 3 * random.random(), "rows": 12}
                if table.task == "regression":
                    record |= {score: math.exp(nll + 0.1 * random.normal()) for score in page.PROTOCOL}
                    record |= {"coverage_90": random.uniform(0.7, 1)}
                else:
                    record |= {"ece": random.uniform(0, 0.2)}
                if (name, method, split) == ("caschools", "dropout", 4):
                    record = {}
                rows.append({"table": name, "method": method, "split": split} | record)
    return pd.DataFrame(rows, columns=list(project.COLUMNS))


@functools.cache
def scored(which: str) -> tuple[pd.DataFrame, str]:
    """Return made or stored scores, and the page that is written from them."""
    frame = page.read(PLACE) if which == "stored" else made()
    return frame, page.page(frame, [])


each = pytest.mark.parametrize("which", ["made", *(["stored"] if (PLACE / "facts.json").is_file() else [])])


def averages(frame: pd.DataFrame, score: str) -> dict[tuple[str, str], float]:
    """Average over splits row by row, by the csv module: a second computation of the figures of the page."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader(frame.to_csv(index=False).splitlines()):
        names.setdefault((row["table"], row["method"]), []).append(row[score])
    return {key: math.fsum(map(float, values)) / len(values) for key, values in names.items() if all(values)}


@each
def test_the_head_of_the_page_agrees_with_the_scores(which: str) -> None:
    frame, text = scored(which)
    nll, crps, coverage = (averages(frame, score) for score in ("nll", "crps", "coverage_90"))
    pairs = [key for key in nll if key[1] != "constant"]
    worse = [key for key in pairs if nll[key] > nll[key[0], "constant"]]
    assert f"{len(pairs) - len(worse)} of {len(pairs)} pairs of a table and a method" in text
    sentence, tables = text.split("Above it: ")[1].split("\n")[0], [table for table, _ in worse]
    for table, method in worse:
        many = tables.count(table)
        assert (f"{table}: {many} methods (+" if many > 3 else f"{method} (+") in sentence
    better = [key for key in crps if key[1] != "constant" and crps[key] <= crps[key[0], "constant"]]
    assert f"CRPS: {len(better)} of {sum(key[1] != 'constant' for key in crps)} pairs" in text
    spread = list(coverage.values())
    assert f"hold {100 * sum(spread) / len(spread):.1f} % of the targets" in text
    assert f"{100 * min(spread):.1f} % (" in text and f"{100 * max(spread):.1f} % (" in text
    real = {key: value for key, value in coverage.items() if key[1] != "constant"}
    wide = [table for (table, _), value in real.items() if value > 0.96]
    narrow = sum(value < 0.84 for value in real.values())
    assert f"Of {len(real)} pairs without `constant`, {narrow} are below 84 % and {len(wide)} above 96 %: " in text
    assert all(f"{table} ({wide.count(table)})" in text for table in wide)
    lost = [row for row in csv.DictReader(frame.to_csv(index=False).splitlines()) if not row["nll"]]
    assert ("Without a result: none." in text) == (not lost)
    assert all(f"{row['table']}: {row['method']} (" in text for row in lost)


@each
def test_networks_and_boosting_are_counted_by_kind(which: str) -> None:
    """A count that took the ensemble for a network with a posterior differs on the made scores."""
    frame, text = scored(which)
    nll = averages(frame, "nll")
    names = {table for table, _ in nll}

    def best(table: str, *but: str) -> float:
        out = {"constant", "linear", "boosting", "gp", "svgp", "stacked", *but}
        return min(value for (name, method), value in nll.items() if name == table and method not in out)

    def row(kind: str, mine: set[str]) -> str:
        bayesian = sum(best(name, "deterministic", "swa", "ensemble", "tabm") <= nll[name, "boosting"] for name in mine)
        every = sum(best(name) <= nll[name, "boosting"] for name in mine)
        return f"| {kind} | {len(mine)} | {bayesian} of {len(mine)} | {every} of {len(mine)} |"

    def stacked(mine: set[str]) -> str:
        there = [name for name in mine if (name, "stacked") in nll]
        return f" | {sum(nll[name, 'stacked'] <= nll[name, 'boosting'] for name in there)} of {len(there)} |"

    groups = {"all": names, **{k: names & set(v) for k, v in page.kinds().items()}}
    for kind, mine in ((kind, mine) for kind, mine in groups.items() if mine):
        (line,) = (line for line in text.splitlines() if line.startswith(row(kind, mine)))
        assert line.endswith(stacked(mine))


def test_differences_are_paired_with_the_error_of_nadeau_and_bengio() -> None:
    """The error is half of the t interval over its quantile; one split has no error."""
    from scipy.stats import t

    frame = made()
    one, other = (frame.query("table == 'airquality' and method == @m")["nll"].to_numpy() for m in ("bnn", "boosting"))
    mean, error = page.paired(frame, "airquality", "bnn", "boosting")
    estimate = over_splits(one - other, 1 / 9)
    assert (mean, error) == pytest.approx((estimate.mean, estimate.half / t.ppf(0.975, 4)))
    assert math.isnan(page.paired(frame[frame["split"] == 0], "airquality", "bnn", "boosting")[1])


def test_the_crps_ratio_is_a_geometric_mean_over_tables() -> None:
    crps = averages(made(), "crps")
    logs = [math.log(crps[name, "bnn"] / crps[name, "constant"]) for name in ("airquality", "caschools")]
    assert f"| bnn | 2 | {math.exp(np.mean(logs)):.3f} |" in page.page(made(), [])


def test_the_facts_of_the_stored_page_name_each_table_once() -> None:
    named = [name for run in page.facts(PLACE) if "methods" not in run for name in run["tables"]]
    assert sorted(named) == sorted(set(page.read(PLACE)["table"]))


def test_the_judgement_ranks_means_over_splits_that_are_equal_to_three_decimals() -> None:
    """Ranks by hand; without rounding the headline's would be 1.33. A larger table does not count."""
    columns = ["table", "rival", "settings", "split", "nll"]
    cells = {
        "airquality": {"headline": (1.0, 2.0), "lightgbm_t": (1.6, 1.6), "lightgbm_t, tuned": (1.4002, 1.6)},
        "diabetes": {"headline": (3.0,), "lightgbm_t": (3.2,), "lightgbm_t, tuned": (3.1,)},
        "sacramento": {"headline": (5.2,), "lightgbm_t": (5.3,), "lightgbm_t, tuned": (5.1,)},
    }
    rows = [
        (table, name.split(",")[0], "default" if "," not in name else "0.5 minutes", split, nll)
        for table, of in cells.items()
        for name, values in of.items()
        for split, nll in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=columns).assign(
        commit="a", rows=30, fit_seconds=1.0, search_seconds=0.0, trials=1
    )
    frame = frame.assign(
        crps=frame["nll"], coverage_90=0.9, coverage_narrow=0.9, coverage_middle=0.9, coverage_wide=0.9
    )
    other = frame[(frame["table"] == "diabetes")].assign(table="diamonds", nll=[0.0, 2.0, 1.0], commit="b")
    frame = pd.concat([frame, other], ignore_index=True)
    found = judged.ranks(judged.scores(judged.labelled(frame), "nll", list(cells)))
    less = np.array([1.5 - 1.5, 1 - 2, 2 - 1])
    assert found is not None and found.best == "lightgbm_t, tuned" and found.tables == 3
    assert found.means == pytest.approx({"headline": 1.5, "lightgbm_t, tuned": 1.5, "lightgbm_t": 3.0})
    assert found.errors["headline"] == pytest.approx(less.std(ddof=1) / math.sqrt(3)) and not found.first
    nll = judged.scores(judged.labelled(frame), "nll", list(cells))
    assert judged.beyond(nll) == {"sacramento": "lightgbm_t, tuned"}
    worst = pd.DataFrame([("sacramento", "lightgbm_t, tuned", 0.1, 0.06, 30, "c")], columns=list(COLUMNS))
    text = "\n".join(others.sections({"rivals": frame, "worst": worst}))
    assert (
        "| sacramento | unseen | `lightgbm_t, tuned` | 30 | +0.100 ± 0.060 | c |" in text and "0 of 1 are more" in text
    )
    assert "- Worst table: sacramento, +0.100 nats against `lightgbm_t, tuned`; 2 of 3 tables" in text
    assert "| diamonds | `headline` | 0 | 0.000 | 3 | b |" in text and others.sections({}) == []
    assert (
        "ranks over `lightgbm_t, tuned` on 3 tables (not established)" in text and "is not in their ranks" not in text
    )
    lost = frame[~((frame["table"] == "airquality") & (frame["settings"] != "default") & (frame["split"] == 1))]
    told = "`lightgbm_t, tuned` has 2 of 3 tables of regression, and is not in their ranks."
    assert told in "\n".join(others.sections({"rivals": lost}))
