"""Tutorials: their pages belong to their scripts, their text has no figure that could go stale, and they run."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.tutorials.__main__ import compare, execute
from benchmarks.tutorials.page import index, page, page_of, pictures_of, shape, wrapped
from benchmarks.tutorials.script import FOLDER, HELPER, ROOT, Cell, cells, scripts, stamp

LARGEST = 60_000  # bytes of a picture
NAMES = re.compile(r"\b(one|two|three|four|five|six|seven|eight|nine|ten) (?:point|percent|%|times better)", re.I)
CITED = re.compile(r"\([A-Z][^()]*\b(?:19|20)\d\d\)")
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
SCRIPTS = pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)


def figures(cell: Cell) -> list[str]:
    """List the numbers in a cell that a reader would take for results, typed by hand.

    In text these are digits outside of code, links and citations; in code, digits in what ``print`` shows.
    """
    if cell.kind == "markdown":
        text = CITED.sub("", CODE.sub("", cell.text))
        return [*re.findall(r"\d[\d.,]*", text), *(name[0] for name in NAMES.finditer(text))]
    if cell.kind == "check":
        return []
    printed = [n for n in ast.walk(ast.parse(cell.text)) if isinstance(n, ast.Call) and _name(n) == "print"]
    return [digits for call in printed for text in _constants(call) for digits in re.findall(r"\d[\d.,]*", text)]


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _constants(node: ast.AST) -> list[str]:
    """List the texts below a node, without formats and expressions in braces."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.FormattedValue | ast.Subscript):
        return []
    return [text for child in ast.iter_child_nodes(node) for text in _constants(child)]


def extras(text: str) -> set[str]:
    """Return the extras that the line beginning with ``Needs`` names."""
    (needs,) = re.findall(r"^Needs.*(?:\n.+)*", text, re.M)
    named = {name for group in re.findall(r"'\.\[([\w,]+)\]'", needs) for name in group.split(",")}
    return named | set(re.findall(r"extra `(\w+)`", needs))


def distributions(chosen: set[str]) -> set[str]:
    """Return the names of the distributions that the project and these extras name in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines, wanted = list(project["dependencies"]), list(chosen)
    while wanted:
        for line in project["optional-dependencies"][wanted.pop()]:
            within = re.fullmatch(r"bdl-pipe\[([\w,]+)\]", line)
            if within:
                wanted += within[1].split(",")
            else:
                lines.append(line)
    return {re.split(r"[\[<>=~!; ]", line)[0].lower() for line in lines}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1800)
@SCRIPTS
def test_a_tutorial_runs_with_the_cells_and_pictures_of_its_page(script: Path, tmp_path: Path) -> None:
    """The checks of the script hold, and its cells print and draw where the page shows it; printed text may differ.

    A search on a cluster ends weak trials in the order of their arrival, so that its lines differ from run to run.
    """
    output = execute(script, tmp_path)
    assert script.stem == "8_a_search_and_a_cluster" or compare(script, output) == ""


@SCRIPTS
def test_a_page_has_the_stamp_and_the_pictures_of_its_script(script: Path) -> None:
    """Where this fails, ``python -m benchmarks.tutorials`` with the script's name writes the page again."""
    text = page_of(script).read_text()
    assert text.splitlines()[0] == stamp(script)
    shown = re.findall(r"^!\[([^]]*)\]\((.*)\)$", text, re.M)
    assert shown and all(says for says, _ in shown)
    assert [FOLDER / file for _, file in shown] == pictures_of(script)
    assert all(picture.stat().st_size <= LARGEST for picture in pictures_of(script))


def test_every_page_and_every_picture_has_its_script_and_the_overview_is_made_from_them() -> None:
    assert len(scripts()) >= 8 and (FOLDER / "index.md").read_text() == index()
    pages = {page_of(script) for script in scripts()} | {FOLDER / "index.md"}
    assert {*FOLDER.glob("*.md")} == pages
    assert {*(FOLDER / "images").iterdir()} == {picture for script in scripts() for picture in pictures_of(script)}


@SCRIPTS
def test_a_tutorial_states_its_goal_its_needs_and_the_next_step(script: Path) -> None:
    """The first cell has a title, one sentence on the result, and the extras; the last cell has the next steps."""
    markdown = [cell for cell in cells(script.read_text()) if cell.kind == "markdown"]
    title, gives, needs, *_ = markdown[0].text.split("\n\n")
    assert title.startswith("# ") and gives.startswith("At the end you") and gives.count(". ") == 0
    assert needs.startswith("Needs ") and extras(markdown[0].text)
    assert "## What next" in markdown[-1].text
    assert any(cell.kind == "check" and "assert " in cell.text for cell in cells(script.read_text()))


@SCRIPTS
def test_no_figure_is_typed_by_hand(script: Path) -> None:
    assert {cell.line: typed for cell in cells(script.read_text()) if (typed := figures(cell))} == {}


@SCRIPTS
def test_the_named_extras_contain_every_imported_package(script: Path) -> None:
    text = script.read_text()
    if "from scratch import" in text:
        text += HELPER.read_text()
    modules = {a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names}
    modules |= {str(n.module) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in modules} - {*sys.stdlib_module_names, "bdl_pipe", "scratch"}
    needed = extras(cells(script.read_text())[0].text)
    packages, named = importlib.metadata.packages_distributions(), distributions(needed)
    assert {root for root in roots if not {name.lower() for name in packages[root]} & named} == set()


def test_figures_typed_by_hand_are_found() -> None:
    for kind, text, expected in (
        ("markdown", "It is right on 91 % of the rows.", ["91"]),
        ("markdown", "It gained two percent.", ["two percent"]),
        ("markdown", "Use `lr=0.1` (Welling and Teh 2011), [here](7_distil.md).", []),
        ("code", "x = 0.5\nprint(f'right {x:.1%} of {rows[0]}', x, 3)", []),
        ("code", "print('right', f'91.5% of {rows}')", ["91.5"]),
        ("check", "assert nll < 0.7, '91'", []),
    ):
        assert figures(Cell(kind, text, 1)) == expected, text  # type: ignore[arg-type]


def test_a_script_is_split_into_its_cells() -> None:
    text = '"""Head."""\n# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 1\n\n# %% tags=["check"]\nassert x\n'
    title = Cell("markdown", "# Title\n\nText.", 3)
    assert cells(text) == [title, Cell("code", "x = 1", 8), Cell("check", "assert x", 11)]
    with pytest.raises(ValueError, match="line 1: a cell of text must have comments alone, got 'x = 1'"):
        cells("# %% [markdown]\n# Title\nx = 1\n")


def test_a_page_shows_printed_text_and_pictures_and_no_check(tmp_path: Path) -> None:
    script = tmp_path / "1_one.py"
    script.write_text('# %% [markdown]\n# # Title\n# %%\nprint(1)\n# %% tags=["check"]\nassert 1 > 0\n')
    ran = [{"printed": "", "pictures": []}, {"printed": "1", "pictures": [{"file": "a.png", "shows": "One"}]}]
    text = page(script, [*ran, {"printed": "", "pictures": []}])
    shown = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n![One](images/1_one-1.png)\n"
    assert shown in text and "assert" not in text
    ran[1]["printed"] = "2"
    assert shape(page(script, [*ran, ran[0]])) == shape(text) != shape(text.replace("One", "Two"))


def test_long_lines_are_broken_and_rows_of_tables_are_not() -> None:
    row, sentence = f"| {'x ' * 80}|", f"  take {'one of the others ' * 8}".rstrip()
    first, *rest = wrapped(f"{row}\n{sentence}\nshort  --line").splitlines()
    assert first == row and rest[-1] == "short  --line" and len(rest) == 3
    assert rest[0].startswith("  take one") and rest[1].startswith("      ") and max(map(len, rest)) <= 98
    assert " ".join(" ".join(rest[:2]).split()) == sentence.strip()


def test_a_change_of_a_script_or_its_helper_changes_the_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, helper = tmp_path / "1_one.py", tmp_path / "scratch.py"
    monkeypatch.setattr("benchmarks.tutorials.script.HELPER", helper)
    seen = set()
    for text in ("x = 1", "x = 2", "from scratch import run"):
        for other in ("a", "b"):
            script.write_text(text)
            helper.write_text(other)
            seen.add(stamp(script))
    assert len(seen) == 4  # the helper counts where it is imported
