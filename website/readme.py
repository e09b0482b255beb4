"""README's table, ten runs of the stored comparison with their papers and pages, and its badges.

Badges are small pictures from files of the repository, without a service.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from bdl_pipe.registry import METHODS

from . import stored
from .blocks import table

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path("docs/images/badges")
COLOUR: Final = "#3f51b5"
WIDTH: Final = 6.4  # pixels per letter, at a font size of 11 px
COLUMNS: Final = {  # a column of the stored comparison -> its name in README, its digits (None keeps the stored text)
    "Accuracy %": ("accuracy %", 1),
    "NLL": ("NLL", 3),
    "ECE %": ("ECE %", 2),
    "Corrupted acc. %": ("corrupted acc. %", 1),
    "AUROC mnist5k": ("AUROC against MNIST", 3),
    "Parameters": ("parameters stored", None),
    "Fit": ("fit", None),
}


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        page: the method's page below ``docs/methods``.
        paper: the address of its paper; empty if it has none.
    """

    words: str
    method: str
    setting: str
    page: str
    authors: str = ""
    paper: str = ""


ROWS: Final = (
    Row("one network", "deterministic", "small", "deterministic"),
    Row("ensemble of 3", "ensemble", "small", "ensemble", "Lakshminarayanan 2017", "https://arxiv.org/abs/1612.01474"),
    Row("SWAG", "swag", "small", "swag", "Maddox 2019", "https://arxiv.org/abs/1902.02476"),
    Row(
        "K-FAC Laplace",
        "kfac_laplace",
        "small",
        "kfac_laplace",
        "Ritter 2018",
        "https://openreview.net/forum?id=Skdvd2xAZ",
    ),
    Row("collapsed inference", "ciber", "small", "ciber", "Zeng 2023", "https://arxiv.org/abs/2306.09686"),
    Row("Markov chains (SGHMC)", "sgmcmc", "sghmc", "sgmcmc", "Chen 2014", "https://arxiv.org/abs/1402.4102"),
    Row(
        "dark knowledge of these chains",
        "dark_knowledge",
        "small",
        "dark_knowledge",
        "Korattikara 2015",
        "https://arxiv.org/abs/1506.04416",
    ),
    Row("variational last layer", "d_vbll", "small", "d_vbll", "Harrison 2024", "https://arxiv.org/abs/2404.11599"),
    Row("inducing weights", "ffg_u", "small", "inducing", "Ritter 2021", "https://arxiv.org/abs/2105.14594"),
    Row("pseudo-coreset, 10 images a class", "vbpc", "ipc10", "vbpc", "Lee 2025", "https://arxiv.org/abs/2502.21143"),
)


def blocks() -> dict[str, str]:
    """Return the table, for README and for a page in ``docs/start``."""
    return {"ten runs": ten_runs("docs/methods/"), "ten runs of docs": ten_runs("../methods/")}


def ten_runs(pages: str) -> str:
    """Return the table; ``pages``: the folder of the methods' pages, relative to the page with the table."""
    runs = {(run.method, run.setting): run for run in stored.runs() if run.dataset == "fashion_mnist"}
    rows = []
    for row in ROWS:
        run = runs[row.method, row.setting]
        paper = f"[{row.authors}]({row.paper})" if row.paper else ""
        figures = (run.cell(of) if digits is None else run.mean(of, digits) for of, (_, digits) in COLUMNS.items())
        rows.append([f"[{row.words}]({pages}{row.page}.md)", paper, *figures])
    head = ["Fashion-MNIST", "paper", *(name for name, _ in COLUMNS.values())]
    return table(head, rows, right=tuple(range(2, len(head))))


def badges() -> dict[Path, str]:
    """Return the badges by their path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = (stored.RESULTS / "comparison/README.md").read_text()
    seconds = re.search(r"^\| stages \|.* in ([\d,]+) s", about, re.M)
    assert seconds, "results/comparison/README.md must say in how many seconds its stages ran"
    minutes = round(int(seconds[1].replace(",", "")) / 60)
    shown = {
        "python": ("python", project["requires-python"]),
        "licence": ("licence", project["license"]),
        "methods": ("methods", str(len(METHODS))),
        "comparison": ("comparison", f"{len(stored.runs())} runs, {minutes} min on two cores"),
    }
    return {FOLDER / f"{name}.svg": badge(*words) for name, words in shown.items()}


def badge(label: str, value: str) -> str:
    """Return a badge as SVG."""
    left, right = (round(WIDTH * len(text) + 12) for text in (label, value))
    words = "".join(
        f'<text x="{x}" y="14" fill="white" text-anchor="middle">{escape(text)}</text>'
        for x, text in ((left / 2, label), (left + right / 2, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}" font-family="Verdana,sans-serif" font-size="11">'
        f'<rect width="{left}" height="20" fill="#555"/><rect x="{left}" width="{right}" height="20" fill="{COLOUR}"/>'
        f"{words}</svg>\n"
    )
