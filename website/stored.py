"""The figures of stored runs below ``results/``, as pages show them."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Final

from .blocks import table

RESULTS: Final = Path(__file__).parents[1] / "results"
DEFAULT_RUN: Final = RESULTS / "comparison/comparison.md"
_CONSTANT: Final = "constant"  # the method without features


@dataclass(frozen=True)
class Run:
    """A row of the stored comparison.

    Attributes:
        cells: name of a column -> its text, without bold letters and without a paper's figure.
    """

    dataset: str
    method: str
    setting: str
    cells: dict[str, str]

    def cell(self, column: str) -> str:
        """Return the text of a column; a dash if the run has no such column."""
        return self.cells.get(column, "—")

    def mean(self, column: str, digits: int) -> str:
        """Return the mean of a column without its error, with as many digits as the table of README has."""
        text = self.cell(column).split(" ±")[0]
        if not re.fullmatch(r"-?[\d.]+", text):
            return text
        return str(Decimal(text).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def blocks() -> dict[str, str]:
    """Return the table of coverages without errors and times."""
    shown = ["method", "all", "quiet", "noisy"]
    rows = [[row[name] for name in shown] for row in tables((RESULTS / "coverage.md").read_text())]
    return {"coverage": table(shown, rows, (1, 2, 3))}


@cache
def runs(comparison: Path = DEFAULT_RUN) -> tuple[Run, ...]:
    """Return the runs of the stored comparison, in its order."""
    rows_of_runs = []
    for part in re.split(r"^## ", comparison.read_text(), flags=re.M)[1:]:
        dataset, _, text = part.partition("\n")
        rows = list(tables(text))
        for row in rows:
            if {"Method", "Setting", "NLL"} <= row.keys():
                rows_of_runs.append(Run(dataset.strip(), row["Method"], row["Setting"], row))
    return tuple(rows_of_runs)


def tables(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the tables of a page, each as column -> text."""
    head: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [re.sub(r"\[paper[^]]*\]", "", cell).strip(" *") for cell in line.strip().strip("|").split(" | ")]
        if head is None:
            head = cells
        elif not set("".join(cells)) <= set("-: "):
            yield dict(zip(head, cells, strict=False))


@cache
def coreset_scores() -> tuple[dict[str, str], ...]:
    """Return the stored scores of every coreset under each protocol, one figure a row."""
    with (RESULTS / "coresets/coresets.csv").open() as file:
        return tuple(csv.DictReader(file))


@cache
def shipped_tables() -> dict[str, dict[str, tuple[float, float]]]:
    """Return for each table that packages ship: method -> its NLL and the NLL of ``constant``, means over splits."""
    scores: dict[str, dict[str, list[float]]] = {}
    with (RESULTS / "your_data/scores.csv").open() as file:
        for row in csv.DictReader(file):
            if row["nll"]:
                scores.setdefault(row["table"], {}).setdefault(row["method"], []).append(float(row["nll"]))
    means = {name: {method: mean(values) for method, values in of.items()} for name, of in scores.items()}
    return {name: {method: (nll, of[_CONSTANT]) for method, nll in of.items()} for name, of in means.items()}


def on_shipped_tables(method: str) -> tuple[int, int, float] | None:
    """Return a method's number of tables, the number on which its NLL is the least, and its median gain.

    The gain on a table is the NLL of ``constant`` minus the method's NLL.
    """
    sets = shipped_tables().values()
    gains = [scores[method][1] - scores[method][0] for scores in sets if method in scores]
    best = sum(min(scores, key=lambda name: scores[name][0]) == method for scores in sets)
    return (len(gains), best, median(gains)) if gains else None
