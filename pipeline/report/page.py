"""``index.html``: one self-contained page, drawn from stored tables."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from . import increments, sections
from .images import CoresetInfo
from .svg import Look
from .tables import Paper, Table

HERE: Final = Path(__file__).parent
TITLE: Final = "Bayesian deep learning methods, side by side"


def render(table: Table, coresets: Sequence[CoresetInfo], provenance: Mapping[str, Any], paper: Paper, dpi: int) -> str:
    """Return the page's HTML.

    Whatever differs between equal runs comes in by ``provenance`` or the run records.
    """
    look, names = Look(table.runs), table.datasets()
    parts = [sections.dataset(table, name, coresets, look, paper, dpi) for name in names]
    links = "".join(f'<a href="#{escape(n)}">{escape(n)}</a>' for n in names)
    if steps := increments.section(table, look, dpi):
        parts.append(steps)
        links += f'<a href="#{increments.ANCHOR}">{increments.TITLE}</a>'
    if over_all := sections.ranks(table, dpi):
        parts.append(over_all)
        links += '<a href="#ranks">Over all data sets</a>'
    style, script = (HERE / "style.css").read_text(), (HERE / "sort.js").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{TITLE}</title><link rel="icon" href="data:,"><style>{style}</style></head>\n<body><main>'
        f'<h1>{TITLE}</h1><p class="lead">{_lead(table)}</p><nav aria-label="Data sets">{links}</nav>'
        f"{_facts(provenance)}{_problems(table)}\n"
        + "\n".join(parts)
        + f"\n</main><script>{script}</script></body></html>\n"
    )


def _lead(table: Table) -> str:
    methods, sets = len({run.method for run in table.runs}), len(table.datasets())
    where = f"{sets} data sets" if sets != 1 else "one data set"
    return f"{len(table.runs)} runs of {methods} methods on {where}, on the same rows and to the same metrics."


def _facts(provenance: Mapping[str, Any]) -> str:
    pairs = "".join(f"<div><dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd></div>" for k, v in provenance.items())
    return f"<dl>{pairs}</dl>" if pairs else ""


def _problems(table: Table) -> str:
    """Return a line for the top, where something is absent or was warned about; the details stand below its table."""
    absent, warned = len(table.notes), sum(bool(w) for w in table.warnings.values())
    told = [f"{absent} of {len(table.runs)} runs have no result"] if absent else []
    told += [f"{warned} runs carry warnings" if warned > 1 else "1 run carries a warning"] if warned else []
    return f'<p class="warn">{"; ".join(told)}: see below the tables.</p>' if told else ""
