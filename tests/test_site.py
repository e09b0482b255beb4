"""Documentation that is written from code and stored results is up to date and complete, and its links work."""

import html
import os
import re
import tomllib
import unicodedata
from pathlib import Path

import pytest
import yaml

from bdl_pipe.errors import UserError
from bdl_pipe.public import PLACES
from bdl_pipe.registry import METHODS
from tests.end_to_end import forked
from website import __main__ as site
from website import api, blocks, keys, method_pages, parameters, pictures, readme, stored

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
OWN = {name: METHODS[name] for name in METHODS if METHODS[name].config.__module__.startswith("bdl_pipe.")}


@pytest.mark.process
def test_every_generated_page_equals_the_output_of_its_command() -> None:
    """``python -m website`` would change nothing; in its own process, where no test has added a network."""
    assert len(site.pages()) > 40
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    code, out, error = forked.run(ROOT, environment, ["-m", "website", "--check"])
    assert (out, code) == ("", 0), error


def test_a_figure_typed_by_hand_into_a_block_is_overwritten() -> None:
    page = (ROOT / "README.md").read_text()
    typed = page.replace("| 0.230 |", "| 0.130 |", 1)
    assert typed != page
    assert blocks.filled(typed, {"ten runs": "new"}) == blocks.filled(page, {"ten runs": "new"})
    with pytest.raises(UserError, match="must have blocks of known names, got generated: no such"):
        blocks.filled("<!-- generated: no such -->\n<!-- end -->", {})


def test_a_stored_mean_is_rounded_half_up_and_other_text_is_unchanged() -> None:
    run = stored.Run("d", "m", "s", {"a": "86.35 ± 0.37", "b": "29.3 k", "c": "92.20"})
    assert [run.mean(name, 1) for name in "abcd"] == ["86.4", "29.3 k", "92.2", "—"]


# ── completeness of the reference ────────────────────────────────────────────────────────────────────────────────────


def test_every_method_has_blocks_of_facts_numbers_keys_values_and_picture() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "methods").glob("*.md"))
    needed = [f"{part} {name}" for name in OWN for part in ("facts", "numbers", "keys", "values", "picture")]
    lacking = [block for block in needed if f"<!-- generated: {block} -->" not in text]
    assert lacking == []


def test_every_method_that_predicts_from_rows_has_a_picture() -> None:
    shown = {picture.stem for picture in method_pages.PICTURES.glob("*.png")}
    assert set(pictures.drawable()) - shown == set() and shown <= OWN.keys()


def test_every_config_key_has_a_meaning() -> None:
    sections = {section for method in OWN.values() for section in (method.config, *keys.parts(method.config))}
    sections |= {parameters.DatasetConfig, parameters.RunSpec, parameters.EvaluateConfig, parameters.ReportConfig}
    lacking = [f"{s.__name__}.{key.name}" for s in sections for key in keys.keys(s) if not key.meaning]
    assert sorted(lacking) == []


def test_the_rule_and_the_default_of_a_key_come_from_its_dataclass() -> None:
    of = {key.name: key for key in keys.keys(METHODS["swag"].config)}
    assert (of["rank"].kind, of["rank"].rule, of["rank"].default) == ("whole number", "must be 0 or > 1", "")
    assert (of["dtype"].kind, of["dtype"].default) == ("`float64` \\| `float32`", "`float64`")
    assert of["batch_norm_rows"].kind == "whole number or `null`"  # of the base class


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = re.findall(r"^::: (\S+)", "\n".join(api.pages().values()), re.M)
    names = [".".join(("bdl_pipe", *api.place(name))) for name in PLACES]
    assert [name for name in names if shown.count(name) != 1] == []
    for module in set(shown) - set(names):
        place = ROOT / "src" / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), module


def test_every_environment_variable_is_in_the_table() -> None:
    tops = ("src", "pipeline", "stages", "cluster", "benchmarks", "website")
    sources = [path for top in tops for path in (ROOT / top).rglob("*")]
    text = "\n".join(path.read_text() for path in sources if path.suffix in (".py", ".yaml", ".sh"))
    used = set(re.findall(r"\bBDL_[A-Z_]+\b", text + (ROOT / "Makefile").read_text() + (ROOT / "dvc.yaml").read_text()))
    table = set(re.findall(r"^\| `(BDL_[A-Z_]+)` \|", (DOCS / "reference/environment.md").read_text(), re.M))
    assert table == used


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"[\w/.-]+\.md$", text, re.M))
    yaml.safe_load(text.partition("\nnav:")[2].replace("\n  ", "\n"))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - listed == set()
    assert [name for name in listed if not (DOCS / name).is_file() and not (ROOT / name).is_file()] == []


def test_all_files_name_one_version_and_the_changelog_has_it() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first and first[1] == version
    files = [ROOT / "README.md", *(ROOT / "cluster").iterdir()]
    named = re.findall(r"bdl-pipe:(\d[\w.]*)", "".join(file.read_text() for file in files))
    assert set(named) == {version}


def test_badges_show_the_numbers_of_methods_and_stored_runs() -> None:
    assert method_pages.numbers("pretrained") == "No stored run has this method."
    pages = readme.badges()
    assert f">{len(METHODS)}<" in pages[readme.FOLDER / "methods.svg"]
    assert re.search(rf">{len(stored.runs())} runs, \d+ min on two cores<", pages[readme.FOLDER / "comparison.svg"])


# ── links ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Python-Markdown makes them."""
    links: set[str] = set()
    for title in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text()), re.M):
        explicit = re.search(r"\{#([\w.-]+)\}\s*$", title)
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        plain = unicodedata.normalize("NFKD", html.unescape(words)).encode("ascii", "ignore").decode()
        slug = explicit[1] if explicit else re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        number = 0
        while (name := f"{slug}_{number}" if number else slug) in links:
            number += 1
        links.add(name)
    return links


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to no file or to no heading."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    return lost


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert {str(page.relative_to(ROOT)): lost for page in PAGES if (lost := broken(page))} == {}


def test_a_link_to_no_file_or_no_heading_is_found(tmp_path: Path) -> None:
    links = "[x](#one-word_1) [y](b.md) [z](#two) [o](a.md#own)"
    (tmp_path / "a.md").write_text(f"# One `word`\n## One word\n## Set {{#own}}\n{links}")
    assert broken(tmp_path / "a.md") == ["b.md", "#two"]


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py"), ROOT / "Makefile"]
    code = re.sub(r'"\s*\n?\s*f?"', "", "\n".join(path.read_text() for path in sources))
    quoted = re.findall(r"^\| `(.+?)` \|", (DOCS / "start/troubleshooting.md").read_text(), re.M)
    assert len(quoted) > 20
    parts = (part.strip(" ") for quote in quoted for part in quote.split("…"))
    assert [part for part in parts if part.strip(" ()?,;:") and part not in code] == []
