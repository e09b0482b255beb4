"""Pages of results/collapsed that a script writes: tables, and their origin."""

import math
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import torch

PAGES = Path(__file__).resolve().parent.parent / "results" / "collapsed"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table with its first ``left`` columns aligned to the left."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of repeats and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def error(mean: float, standard_error: float, digits: int = 4) -> str:
    return f"{mean:.{digits}f} ± {standard_error:.{digits}f}"


def write(path: Path, title: str, command: str, parts: Sequence[str], start: float) -> None:
    """Write the page with its commit, its device and the processor seconds since ``start``; name uncommitted files."""
    git = ["git", "-C", str(PAGES)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    scripts = [*git, "status", "--porcelain", "--", ":/src", ":/benchmarks"]
    changed = subprocess.run(scripts, capture_output=True, text=True, check=True).stdout
    seconds = time.process_time() - start
    about = f"`{command}`; code of commit {commit.strip()}{', with changes' if changed else ''}; {_processor()}, one "
    about += f"thread, {seconds:.0f} s of processor time; torch {torch.__version__}."
    path.write_text("\n\n".join([f"# {title}", about, *parts]) + "\n")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
