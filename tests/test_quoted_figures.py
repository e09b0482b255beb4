"""Every figure that README, docs/ and results/claims.md quote is in the stored page that its part links to.

A part is a paragraph, an item of a list or a row of a table. A figure is a number with a decimal point, one of per
cent, or a count of a whole (29 of 38). These are none: other whole numbers (sizes, years), the usual levels (90 %),
versions, numbers of a paper's sections and tables, and whatever is in code, in a quotation, in a picture's caption, or
in a block that ``python -m website`` writes. So write a setting as code: `` `lr: 0.001` ``.

A part with a figure links to its sources: files below ``results/``, or the code that states the figure. A part without
such a link has those of the parts above it under the same heading. The source has a number that, rounded to the
figure's digits, is the figure; signs do not count. A figure and its error (1.2 ± .3) are in one
line of the source, as are the figures of a row without own links. What is computed from stored figures is not stored:
quote these figures, or store the result.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("results/", "benchmarks/", "params", "src/", "tests/")  # not docs/, which quotes
LEFT_OUT = (r"^<!-- generated: .*?^<!-- end -->", r"^( *)```.*?^ *```", r"^> .*?$", r"!\[[^\]]*\]\([^)]*\)")
PAGES = [ROOT / "README.md", ROOT / "results/claims.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"``.*?``|`[^`\n]*`", re.S)
LEVELS = {"1", "5", "50", "90", "95", "99", "100"}  # per cent
NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]|\.\d)")
COUNT = re.compile(r"\b(\d(?:[\d,]*\d)?) of (?:the |all )?(\d[\d,]*)\b")  # 29 of 38
PERCENT = re.compile(r"(?:,? (?:and|to|or|±)? ?[\d.]+)* %")
NO_FIGURE = re.compile(  # numbers of parts of a paper or of a page, versions, licences
    r"(?i)\b(?:sections?|appendix|eq\.|figures?|tables?|chapter|version|python|cuda|torch|ray|apache|covenant|cc by)"
    r"[ -][A-Z]?[\d.]*\d(?:(?:,| and| to| or) [\d.]*\d)*|\b[A-Z]\.\d+(?:\.\d+)*|\d+\.\d+\.\d+"
)


class Part(NamedTuple):
    """A paragraph, an item or a row with its figures.

    Attributes:
        sources: the files of its own links, else of the links above it under the same heading.
        row: whether it is a row of a table without links of its own to a source.
    """

    text: str
    figures: tuple[str, ...]
    sources: tuple[Path, ...]
    row: bool


def parts(page: Path) -> Iterator[Part]:
    """Yield the parts of a page that have figures."""
    text = page.read_text()
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text, flags=re.M | re.S)
    above: tuple[Path, ...] = ()
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#))", text):
        pages, words = tuple(sources(page, part)), part.lstrip()
        if numbers := tuple(figures(part)):
            yield Part(" ".join(part.split()), numbers, pages or above, words.startswith("|") and not pages)
        above = () if words.startswith("#") else above + pages


def sources(page: Path, part: str) -> Iterator[Path]:
    """Yield the files that a part of a page links to, or names in code below ``results/``."""
    named = [page.parent / link for link in re.findall(r"\]\(([^)#\s]+)", part)]
    named += [ROOT / name for name in re.findall(r"`(results/[^`\s]+)`", part)]
    for path in (place.resolve() for place in named):
        if path.is_file() and str(path.relative_to(ROOT)).startswith(SOURCES):
            yield path


def figures(part: str) -> Iterator[str]:
    """Yield the figures of a part, without signs and units; an error with its ±."""
    prose = NO_FIGURE.sub(" ", CODE.sub(" ", re.sub(r"\]\([^)]*\)", "]", part)))
    counts = {count.start(group) for count in COUNT.finditer(prose) for group in (1, 2)}
    for number in NUMBER.finditer(prose):
        share = number[0] not in LEVELS and PERCENT.match(prose[number.end() :])
        if "." in number[0] or (number[0] and share) or number.start() in counts:
            yield "±" * prose[: number.start()].rstrip().endswith("±") + number[0].replace(",", "")


@cache
def numbers(source: Path) -> tuple[tuple[Decimal, ...], ...]:
    """Return the numbers of each line of a file, with their digits."""
    lines = (NUMBER.findall(line.replace("_", " ")) for line in source.read_text().splitlines())
    numbers = (tuple(Decimal(text.replace(",", "")) for text in line if text) for line in lines)
    return tuple(line for line in numbers if line)


def quotes(figure: str, line: tuple[Decimal, ...]) -> bool:
    """Return whether a number of a line, rounded to the digits of a figure, is the figure."""
    value = Decimal(figure.removeprefix("±"))
    half = Decimal(5).scaleb(exponent(value) - 1)
    return any(exponent(number) <= exponent(value) and abs(number - value) <= half for number in line)


def exponent(number: Decimal) -> int:
    return int(number.as_tuple().exponent)


def absent(part: Part) -> list[str]:
    """List the figures of a part that its sources do not have; those of a row must be in one line of a source."""
    lines = [line for source in part.sources for line in numbers(source)]
    if part.row:
        return [] if any(all(quotes(one, line) for one in part.figures) for line in lines) else [*part.figures]
    of = ["", *part.figures]
    pairs = [[of[i], one] if one.startswith("±") and i else [one] for i, one in enumerate(part.figures)]
    return [pair[-1] for pair in pairs if not any(all(quotes(one, line) for one in pair) for line in lines)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_figure_is_in_the_source_that_its_part_links_to(page: Path) -> None:
    wrong = [f"{', '.join(missing)}: {part.text[:200]}" for part in parts(page) if (missing := absent(part))]
    assert wrong == []


def test_the_quotation_of_readme_is_output_that_the_tour_shows() -> None:
    quoted = re.findall(r"^> (.*)$", (ROOT / "README.md").read_text(), re.M)
    tour = (ROOT / "docs/start/tour.md").read_text()
    assert quoted and [line for line in quoted if f"- {line}\n" not in tour] == []


def test_a_part_with_a_wrong_figure_or_no_source_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_quoted_figures.ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a.md").write_text("| vbll | 0.2184 | 92.2 |\n| swag | 0.2202 | 92.0 |\n")
    page, link = tmp_path / "page.md", "[a](results/a.md)"

    def missing(text: str) -> list[str]:
        page.write_text(text)
        return [figure for part in parts(page) for figure in absent(part)]

    assert missing(f"NLL .218, −0.220 and 92.20 % ({link}), with `lr: 0.1`, 90 % intervals, 24 runs, table 3.1") == [
        "92.20"
    ]
    assert missing(f"NLL .219 ({link})") == [".219"] and missing("NLL .218") == [".218"]
    assert missing(f"best on 92 of the 1,000 rows ({link}), of 24 methods") == ["1000"]
    assert missing(f"## H\n\nAll: {link}\n\n| x | 0.218 | 92.2 % |\n| y | 0.218 | 92.0 % |") == ["0.218", "92.0"]
    assert missing(f"## H\n\nAll: {link}\n\n## Next\n\n- 0.218") == ["0.218"]
    assert missing("> 0.3\n\n```text\n0.3\n```\n\n<!-- generated: x -->\n0.3\n<!-- end -->\n") == []


@pytest.mark.slow
def test_most_figures_with_another_last_digit_are_seen() -> None:
    """A long page has many numbers: of one digit two of five wrong figures are seen, of four digits nearly all."""
    wrong, seen = 0, 0
    for part in (part for page in PAGES for part in parts(page)):
        for place, figure in enumerate(part.figures):
            other = figure[:-1] + str((int(figure[-1]) + 5) % 10)
            wrong += 1
            seen += bool(absent(part._replace(figures=(*part.figures[:place], other, *part.figures[place + 1 :]))))
    assert wrong > 250 and seen / wrong > 0.7
