"""results/vbpc/regression.md: coresets of tables beside the same network fitted to all rows, from the stored scores.

``benchmarks/coreset_tables.py`` has the fits and the rules.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from benchmarks import coreset_tables, written

OUT: Final = Path("results/vbpc")
NEAR: Final = 0.05  # nats
SIZES: Final = tuple(sorted(coreset_tables.SIZES))
_TEST_OVER_TRAIN: Final = 1 / 9  # test rows over training rows of a standard split
_NONE: Final = "—"
TOLD: Final = {"vbpc": "distilled", "random": "random", "kmeans": "k-means"}


def page(frame: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    """Return the page of scores (``read``) and facts."""
    parts = ["# Coresets of tables", _about(), _facts(frame, facts), "## How many tables are within .05 nats", COUNTS]
    parts += [_counts(frame), *_below(frame), "## Differences of NLL", DIFFERENCES]
    parts += [_table(frame, size) for size in SIZES if (frame["rows"] == size).any()]
    parts += ["## Settings", f"```json\n{json.dumps(facts['settings']['vbpc'])}\n```"]
    return "\n\n".join(parts) + "\n"


COUNTS: Final = (
    "A difference is the coreset's NLL less the NLL of a fit to all rows, paired by split. *Within*: its mean is at "
    "most .05. *Established*: so is the mean with its error added. *Farther*: the mean less its error is above .05. "
    "Only tables with all three splits count."
)
DIFFERENCES: Final = (
    "Mean over three splits ± the error of Nadeau and Bengio (2003). The last columns are differences between coresets "
    "of one size, which are not established if they are smaller than their error (in brackets)."
)


def read() -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """Read the stored scores and facts."""
    return pd.read_csv(OUT / "regression.csv"), json.loads((OUT / "regression.json").read_text())


def difference(frame: pd.DataFrame, table: str, one: tuple[str, int], other: tuple[str, int]) -> tuple[float, float]:
    """Return the mean over splits of the NLL of ``one`` less ``other``, (fit, rows) each, and its error.

    Both are NaN unless all splits have both fits.
    """
    scores = [
        frame[(frame["table"] == table) & (frame["fit"] == name) & (frame["rows"] == rows)].set_index("split")["nll"]
        for name, rows in (one, other)
    ]
    less = (scores[0] - scores[1]).dropna()
    if len(less) < coreset_tables.SPLITS:
        return math.nan, math.nan
    return float(less.mean()), math.sqrt((1 / len(less) + _TEST_OVER_TRAIN) * float(less.var(ddof=1)))


def _about() -> str:
    head, _, rest = (coreset_tables.__doc__ or "").partition("\n\n")
    return f"{head}\n\n{rest.strip()}"


def _facts(frame: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    commits = ", ".join(dict.fromkeys(commit[:8] for commit in frame["commit"]))
    data = ", ".join(f"{name} {digest}" for name, digest in facts["data"].items())
    lines = {"code of commit": commits, "device": facts["device"] + ", one thread", "torch": facts["torch"]}
    lines |= {"fits": f"{len(frame)} in {frame['seconds'].sum():,.0f} s of processor time", "data, SHA-256": data}
    return written.listed(lines)


def _tables(frame: pd.DataFrame) -> list[str]:
    return [table.name for table in coreset_tables.tables() if table.name in set(frame["table"])]


def _counts(frame: pd.DataFrame) -> str:
    head = ("Beside", "Rows", "Tables", *(f"{TOLD[name]}: within, established, farther" for name in TOLD))
    rows = list[tuple[str, ...]]()
    for full, size in itertools.product(coreset_tables.FULL, SIZES):
        cells, whole = [], 0
        for name in TOLD:
            pairs = [difference(frame, table, (name, size), (full, 0)) for table in _tables(frame)]
            whole = max(whole, sum(not math.isnan(mean) for mean, _ in pairs))
            within = sum(mean <= NEAR for mean, _ in pairs)
            known, farther = sum(m + e <= NEAR for m, e in pairs), sum(m - e > NEAR for m, e in pairs)
            some = any(not math.isnan(mean) for mean, _ in pairs)
            cells.append(f"{within}, {known}, {farther}" if some else _NONE)
        if whole:
            rows.append((f"`{full}`", str(size), str(whole), *cells))
    return written.table(head, rows)


def _below(frame: pd.DataFrame) -> list[str]:
    """Return, for each size, on how many tables the distilled rows have a lower NLL than selected rows."""
    lines = []
    for size in SIZES:
        parts = []
        for name in ("random", "kmeans"):
            pairs = [difference(frame, table, ("vbpc", size), (name, size)) for table in _tables(frame)]
            whole, lower = sum(not math.isnan(mean) for mean, _ in pairs), sum(mean < 0 for mean, _ in pairs)
            known = sum(mean + error < 0 for mean, error in pairs)
            parts += [f"{TOLD[name]} rows on {lower} of {whole} tables, established on {known}"] if whole else []
        lines += [f"- {size} rows: below {', below '.join(parts)}."] if parts else []
    return ["The NLL of the distilled rows:", "\n".join(lines)] if lines else []


def _table(frame: pd.DataFrame, size: int) -> str:
    head = ("Table", "Training rows", "`full`", "distilled less `full`", "distilled less `plain`")
    head += ("random less `full`", "k-means less `full`", "distilled less random", "distilled less k-means")
    rows = list[Sequence[str]]()
    for table in _tables(frame):
        of_full = frame[(frame["table"] == table) & (frame["fit"] == "full")]
        pairs = [("vbpc", "full"), ("vbpc", "plain"), ("random", "full"), ("kmeans", "full")]
        beside = [_cell(*difference(frame, table, (name, size), (full, 0))) for name, full in pairs]
        between = [difference(frame, table, ("vbpc", size), (name, size)) for name in ("random", "kmeans")]
        cells = [_cell(mean, error, bracket=abs(mean) < error) for mean, error in between]
        if len(of_full) < coreset_tables.SPLITS or {*beside} == {_NONE}:
            continue
        rows.append((table, f"{int(of_full['train'].iloc[0]):,}", f"{of_full['nll'].mean():.3f}", *beside, *cells))
    return f"### {size} rows\n\n{written.table(head, rows)}"


def _cell(mean: float, error: float, *, bracket: bool = False) -> str:
    if math.isnan(mean):
        return _NONE
    text = f"{mean:+.3f} ± {error:.3f}"
    return f"({text})" if bracket else text
