"""Pages that a script writes: tables, means with their errors, and the origin of the figures."""

import math
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pipeline.core import provenance
from pipeline.core.records import device_name

PAGES = Path(__file__).resolve().parent.parent / "results" / "collapsed"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """A Markdown table with its first ``left`` columns aligned to the left."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (heads, rule, *rows))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of repeats and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def error(mean: float, standard_error: float, digits: int = 4) -> str:
    return f"{mean:.{digits}f} ± {standard_error:.{digits}f}"


def origin() -> dict[str, object]:
    """Return the facts on a run that has made all of a page's figures."""
    return {"commit": provenance.commit(), "device": device_name("cpu"), "torch": torch.__version__}


def listed(facts: Mapping[str, object]) -> str:
    return "\n".join(f"- {key}: {value}" for key, value in facts.items())


def about(text: str | None) -> str:
    """Return a script's docstring below its first line."""
    return (text or "").partition("\n")[2].strip("\n")


def page(title: str, text: str | None, facts: Mapping[str, object], *parts: str) -> str:
    """Return a page of the docstring ``text``, its figures' origin, and the parts that follow."""
    return "\n\n".join([f"# {title}", *uncommitted(facts), about(text), listed(facts), *parts]) + "\n"


def uncommitted(facts: Mapping[str, object]) -> list[str]:
    """Return a warning for the page if its runs were made from uncommitted files, else nothing."""
    if not str(facts["commit"]).endswith("-dirty"):
        return []
    return [
        "**Tracked files differed from the commit below when this was made, and no commit has them: the figures\n"
        "cannot be checked against their code.**"
    ]


def write(path: Path, title: str, command: str, parts: Sequence[str], start: float) -> None:
    """Write the page with its commit, its device and the processor seconds since ``start``; name uncommitted files."""
    git = ["git", "-C", str(PAGES)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    scripts = [*git, "status", "--porcelain", "--", ":/src", ":/benchmarks"]
    changed = subprocess.run(scripts, capture_output=True, text=True, check=True).stdout
    seconds = time.process_time() - start
    code = f"code of commit {commit.strip()}{', with changes' if changed else ''}; {device_name('cpu')}, one thread"
    made = f"`{command}`; {code}, {seconds:.0f} s of processor time; torch {torch.__version__}."
    path.write_text("\n\n".join([f"# {title}", made, *parts]) + "\n")
