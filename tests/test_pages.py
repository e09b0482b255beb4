"""Pages under results/ equal what their commands write from the stored figures, and the files that they name exist."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from benchmarks import stored_rows
from benchmarks.pages import coreset_tables, method_costs, vbpc_ablations
from benchmarks.written import uncommitted
from website import results

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for top in ("docs", "results") for page in sorted((ROOT / top).rglob("*.md"))]
SOURCES = [path for top in ("src", "benchmarks", "website") for path in (ROOT / top).rglob("*.py")]
SOURCES += (ROOT / "params").rglob("*.yaml")
FOLDERS = "benchmarks|cluster|docs|params|pipeline|results|src|stages|tests|website"
NAMED = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\w\.(?:py|yaml|md|csv|json|svg|png|sh|safetensors))\b")
MODULE = re.compile(r"(?:-m |`)(benchmarks(?:\.\w+)+)\b")
MADE_BY_COMMANDS = ("params/data/", "params/tuned/", "params/study/FAMILY-NAME.yaml")  # for a user's data and searches
BASE = {ablation.axis: ablation.base for ablation in vbpc_ablations.ABLATIONS}


def ablation_rows() -> list[dict[str, str]]:
    return stored_rows.read(vbpc_ablations.OUT / "ablations.csv")


def test_each_page_that_follows_from_stored_files_equals_the_output_of_its_command() -> None:
    """``python -m website.results`` would change nothing; a figure edited by hand in a page or a table would show."""
    pages = results.pages()
    assert len(pages) >= 37
    assert [path for path, text in pages.items() if path.read_text() != text] == []


@pytest.mark.parametrize("score", ["accuracy", "nll"])
def test_an_effect_is_paired_by_seed_like_scipys_paired_t_test(score: str) -> None:
    """Pairing the seeds crosswise gives more than twice the error."""
    rows, point = ablation_rows(), BASE | {"rho": "1"}
    mean, error = vbpc_ablations.paired(rows, point, BASE, score)
    there, here = ([float(row[score]) for row in vbpc_ablations.at(rows, at)] for at in (point, BASE))
    assert mean / error == pytest.approx(ttest_rel(there, here).statistic, rel=1e-9)
    twisted = [row | {"seed": str(1 - int(row["seed"]))} if row["rho"] == "1" else row for row in rows]
    assert vbpc_ablations.paired(twisted, point, BASE, score)[1] > 2 * error


def test_an_effect_over_different_seeds_is_refused() -> None:
    rows = [row for row in ablation_rows() if row["rho"] != "1000" or row["seed"] != "1"]
    with pytest.raises(SystemExit, match="has other seeds than the default"):
        vbpc_ablations.paired(rows, BASE | {"rho": "1000"}, BASE, "nll")


def test_the_verdict_compares_the_signs_of_both_effects() -> None:
    of = {"++": "found", "0-": "not found", "+-": "the other sign", "00": "neither", "-0": "ours alone"}
    assert {signs: vbpc_ablations.verdict(*signs) for signs in of} == of


def test_the_difference_of_two_fits_is_paired_by_split_and_missing_without_a_split() -> None:
    """Three splits with the differences 1, 2 and 6; the same scores paired crosswise have another error."""
    rows = [("wage", s, "full", 0, nll) for s, nll in enumerate((10.0, 20.0, 30.0))]
    rows += [("wage", s, "vbpc", 50, nll) for s, nll in enumerate((11.0, 22.0, 36.0))]
    frame = pd.DataFrame(rows, columns=["table", "split", "fit", "rows", "nll"])
    mean, error = coreset_tables.difference(frame, "wage", ("vbpc", 50), ("full", 0))
    assert (mean, error) == (pytest.approx(3.0), pytest.approx(((1 / 3 + 1 / 9) * 7.0) ** 0.5))
    crossed = frame.assign(split=[0, 1, 2, 2, 0, 1])
    assert coreset_tables.difference(crossed, "wage", ("vbpc", 50), ("full", 0))[1] > 2 * error
    assert np.isnan(coreset_tables.difference(frame[:-1], "wage", ("vbpc", 50), ("full", 0))).all()


def missing(page: Path) -> list[str]:
    """List the links, files and modules that a text names and that do not exist."""
    text = page.read_text()
    links = (
        [t for t in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in t] if page.suffix == ".md" else []
    )
    broken = [target for target in links if not (page.parent / target).exists()]
    named = [n for n in NAMED.findall(text) if not n.startswith(MADE_BY_COMMANDS)]
    broken += [name for name in named if not (ROOT / name).exists()]
    modules = {name: ROOT / name.replace(".", "/") for name in MODULE.findall(text)}
    run = ((name, (at.with_suffix(".py"), at / "__main__.py")) for name, at in modules.items())
    return broken + [name for name, files in run if not any(file.is_file() for file in files)]


@pytest.mark.parametrize("pages", [PAGES, SOURCES], ids=["pages", "code and params"])
def test_every_file_and_module_that_pages_code_and_params_name_exists(pages: list[Path]) -> None:
    assert {str(page.relative_to(ROOT)): lost for page in pages if (lost := missing(page))} == {}


def test_names_of_absent_files_and_modules_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    named = "`results/vbpc/gone.md` (python -m benchmarks.vbpc_law) `params/tuned/mine.yaml` docs/api.md"
    page.write_text(f"[a](gone.md) {named}\n")
    assert missing(page) == ["gone.md", "results/vbpc/gone.md", "benchmarks.vbpc_law"]


def test_the_costs_of_the_page_equal_the_stored_run() -> None:
    page, run = method_costs.TABLE.read_text(), method_costs.RUN.read_text()
    assert method_costs.with_costs(page, run) == page
    costs = method_costs.costs_of(run)
    row = next(line for line in run.splitlines() if line.startswith("| swag | small | 3 |"))  # of Fashion-MNIST
    assert all(part in row for part in costs["swag"].split(", "))
    assert method_costs.with_costs(page, run.replace(costs["swag"].split(", ")[0], "1,000 s")) != page


def test_a_page_made_from_uncommitted_files_has_a_warning() -> None:
    assert uncommitted({"commit": "0123abcd"}) == []
    (warning,) = uncommitted({"commit": "0123abcd-dirty"})
    for page in (ROOT / "results").rglob("*.md"):
        head = page.read_text()[:1500]
        if re.search(r"^- commit: \w+-dirty$", head, re.M):
            assert warning in head, page
