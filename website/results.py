"""The pages of results/ that follow from stored files: ``python -m website.results`` writes them, and runs nothing.

Other pages have figures of a run itself, and name its command. ``--check`` writes nothing and fails where a page
differs; tests/test_pages.py does the same.
"""

import json
import sys
from pathlib import Path
from typing import Final

import pandas as pd

from bdl_report.papers import stored
from bdl_report.papers.pages import facts_of, markdown
from benchmarks import cluster_throughput, stored_rows
from benchmarks.decisions import page as decisions
from benchmarks.gpu import page as gpu
from benchmarks.pages import coreset_tables, vbpc_ablations, vbpc_law
from benchmarks.simulation import page as simulation
from benchmarks.your_data import page as your_data

from .blocks import write

RESULTS: Final = Path("results")


def pages() -> dict[Path, str]:
    """Return the text of every page that follows from stored files, for a command in the project's folder."""
    texts = {}
    for path, comparison in stored.stored(RESULTS):
        page = path.with_suffix(".md")
        texts[page] = markdown(comparison, facts_of(page.read_text()))
    scale = {name: json.loads((RESULTS / f"scale/{name}.json").read_text()) for name in ("simulation", "throughput")}
    tasks = json.loads((RESULTS / "decisions/facts.json").read_text())
    return texts | {
        RESULTS / "decisions/README.md": decisions.page(pd.read_csv(RESULTS / "decisions/scores.csv"), tasks),
        RESULTS / "gpu/README.md": gpu.page(),
        RESULTS / "scale/simulation.md": simulation.page(scale["simulation"]["runs"]),
        RESULTS / "scale/throughput.md": cluster_throughput.page(scale["throughput"]),
        RESULTS / "vbpc/ablations-beside-the-paper.md": vbpc_ablations.page(
            stored_rows.read(RESULTS / "vbpc/ablations.csv")
        ),
        RESULTS / "vbpc/law.md": vbpc_law.page(*vbpc_law.stored()),
        RESULTS / "vbpc/regression.md": coreset_tables.page(*coreset_tables.read()),
        RESULTS / "your_data/README.md": your_data.page(
            *(of(RESULTS / "your_data") for of in (your_data.read, your_data.facts, your_data.others.read))
        ),
    }


if __name__ == "__main__":
    sys.exit(write(pages()))
