"""The judgement of rule.md: ranks of the headline among rivals, from rows of ``benchmarks.rivals``.

A label is a rival at its defaults, or ``RIVAL, tuned``. A table's score is the mean over the splits, rounded to three
decimals; equal scores share the mean rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from bdl_pipe.metrics.pit import THIRDS
from benchmarks import written
from benchmarks.rivals.settings import RIVALS

from . import shown
from .tables import BY_NAME

HEADLINE: Final = "headline"
KNOWN: Final = ("sacramento", "deliveries")  # unseen tables with rows of other methods when the rule was written
WORST: Final = 0.05  # the bound on the difference to the best rival, in nats
COVERED: Final = (0.85, 0.95)  # of all rows
COVERED_THIRD: Final = (0.80, 0.97)
LARGE: Final = 300  # test rows of a table whose coverage is shown
_DECIMALS: Final = 3
_TUNED: Final = ", tuned"
_KEY: Final = ["table", "split"]
_SETS: Final = ("all", "seen", "unseen", f"unseen without {' and '.join(KNOWN)}")
_LARGEST: Final = 11_000  # rows of the tables that the rule chose by size
_STACKED: Final = 1_200  # rows from which these tables have ``stacked`` as their headline
_KINDS: Final = {
    "NLL": ("nll", "regression"),
    "CRPS": ("crps", "regression"),
    "NLL of classes": ("nll", "classification"),
}


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over tables.

    Attributes:
        means: label -> mean rank, the least first.
        errors: label -> the standard error over tables of its rank less the rank of ``best``; 0 for ``best``, NaN of
            one table.
        best: the rival with the least mean rank, of the tuned ones if there are any.
        tables: the number of tables.
    """

    means: dict[str, float]
    errors: dict[str, float]
    best: str
    tables: int

    @property
    def gap(self) -> float:
        """Return the mean rank of the best rival less the headline's: positive if the headline is ahead."""
        return self.means[self.best] - self.means[HEADLINE]

    @property
    def first(self) -> bool:
        """Return whether the headline is ahead of the best rival by more than the error."""
        return self.gap > self.errors[HEADLINE]


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the tables that the rule chose, with the splits of a table's headline, and their labels."""
    label, own = rows["rival"] + np.where(rows["settings"] == "default", "", _TUNED), rows[rows["rival"] == HEADLINE]
    there = pd.MultiIndex.from_frame(rows[_KEY]).isin(pd.MultiIndex.from_frame(own[_KEY]))
    return rows.assign(label=label)[there & rows["table"].map(lambda name: BY_NAME[name].rows < _LARGEST)]


def scores(rows: pd.DataFrame, score: str, names: Sequence[str]) -> pd.DataFrame:
    """Return means over splits, tables × labels; NaN where a label lacks a split that the headline has."""
    mine = rows[rows["table"].isin(names) & rows[score].notna()]
    need = mine[mine["label"] == HEADLINE].groupby("table")["split"].size()
    of = mine.groupby(["table", "label"])[score].agg(["mean", "size"])
    whole = of["size"] == need.reindex(of.index.get_level_values("table")).to_numpy()
    return of["mean"][whole].unstack("label").reindex([name for name in BY_NAME if name in names])


def ranks(values: pd.DataFrame) -> Ranks | None:
    """Return the mean ranks of the labels with a score on every table; None without the headline or a rival."""
    of_table = values.dropna(axis=1).round(_DECIMALS).rank(axis=1, method="average")
    means = of_table.mean().sort_values(kind="stable")
    others = [label for label in means.index if label != HEADLINE]
    if HEADLINE not in means or not others:
        return None
    best = next((label for label in others if label.endswith(_TUNED)), others[0])
    errors = of_table.sub(of_table[best], axis=0).std(ddof=1) / math.sqrt(len(of_table))
    return Ranks(means.to_dict(), errors.to_dict(), best, len(of_table))


def sections(rows: pd.DataFrame, worst: pd.DataFrame | None = None) -> list[str]:
    """Return the text of the judgement, none if no row is of a headline.

    Args:
        rows: rows of ``rivals.csv``.
        worst: rows of ``worst.csv``, the errors of the differences beyond the bound.
    """
    rows = labelled(rows)
    names = [name for name in BY_NAME if name in set(rows["table"])]
    if not names:
        return []
    by_task = {task: [n for n in names if BY_NAME[n].task == task] for task in ("regression", "classification")}
    tuned = rows["label"].str.endswith(_TUNED)
    plain, searched = rows[~tuned], set(rows.loc[tuned, "table"])
    within = {"tuned": (rows, [n for n in names if n in searched]), "defaults": (plain, names)}
    found = {
        (settings, kind, which): of
        for settings, (some, own) in within.items()
        for kind, (score, task) in _KINDS.items()
        for which in _SETS
        if (chosen := _of(which, [name for name in own if BY_NAME[name].task == task]))
        if which != _SETS[-1] or set(KNOWN) & set(own) & set(by_task[task])
        if (of := ranks(scores(some, score, chosen)))
    }
    parts = [_TOLD, f"{_reached(names)}{_incomplete(rows, by_task)}", *_verdict(rows, found, names)]
    for settings, told in _RANKS.items():
        parts += [told, _rank_table({key[1:]: of for key, of in found.items() if key[0] == settings})]
    parts += [_SEPARATE, _distances(rows, by_task), *(_beyond(worst) if worst is not None else [])]
    parts += ["### Coverage", *_coverage(rows, by_task["regression"])]
    parts += ["### Seconds", _SECONDS, _seconds(rows)]
    for task, own in by_task.items():
        for title, score in (("NLL", "nll"), ("CRPS", "crps")) if task == "regression" else (("NLL", "nll"),):
            parts += [f"### {title}, {task}", _by_table(rows, score, own)] if own else []
    return parts


def _of(which: str, names: Sequence[str]) -> list[str]:
    kept = [name for name in names if which == "all" or BY_NAME[name].seen == (which == "seen")]
    return [name for name in kept if which != _SETS[-1] or name not in KNOWN]


_TOLD: Final = (
    "By [the rule](../../benchmarks/your_data/rule.md), which was committed before an unseen table was run (65441659; "
    "what could be paid of it: 82dcc07f): `headline` is `stacked`, with what `add` writes for ten minutes a split. "
    "Below 1,000 training rows it was `multi_swag` until further rivals were run, and for regression on 1,000 to "
    "10,000 rows it had one network until RealMLP was searched, as the rule says. Of the rivals, those named `…, "
    "tuned` were searched, too. A tuned rival has .2 minutes of the processor for a table below 1,200 rows and .4 for "
    "a larger one (RealMLP 1 and 2, TabM-D 3 and 6), not the rule's ten: a weaker test than the rule's."
)
_RANKS: Final = {
    "tuned": "Mean ranks on the tables with a tuned rival, 1 is best, of the methods that have all tables of a column; "
    "in brackets the standard error over tables of the difference to the best tuned rival.",
    "defaults": "The same of methods at their defaults, on all tables; the error is of the difference to the best.",
}
_SEPARATE: Final = (
    "Ranks do not show by how much. Below: the mean over tables of the headline's NLL less another method's, and the "
    "geometric mean of the ratio of their CRPS, with standard errors over tables; negative, or below 1, is better for "
    "the headline. One table can lead the mean: many targets of medexp and tobacco are 0, where a narrow peak has a "
    "large density, so that there the CRPS says more."
)
_BEYOND: Final = (
    "The differences in NLL beyond .05 nats, each with the standard error of its mean over test rows, paired by row "
    "(`python -m benchmarks.rivals.worst`). The error is that of the test rows alone: another training set or another "
    "seed would add to it. The least of all others is found on the same rows, so that the differences are too large "
    "in the mean."
)
_SECONDS: Final = (
    "Seconds of one fit on one thread, all tables together (one split each), and the median: the processor's; of the "
    "`headline` rows of 221a98b9, the clock's."
)


def _reached(names: Sequence[str]) -> str:
    left = [name for name, table in BY_NAME.items() if table.rows < _LARGEST and name not in names]
    told = f"{len(names)} tables were run, {sum(BY_NAME[name].seen for name in names)} of them seen. "
    return f"{told}Chosen by the rule and not reached in the time that there was: {', '.join(left) or 'none'}."


def _incomplete(rows: pd.DataFrame, by_task: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence for each searched rival that lacks a split of some table of its task."""
    told = ""
    for task, own in by_task.items():
        values = scores(rows, "nll", own)
        for label in (name for name in values if name.endswith(_TUNED) and 0 < values[name].count() < len(own)):
            told += f" `{label}` has {values[label].count()} of {len(own)} tables of {task}, and is not in their ranks."
    return told


def _verdict(rows: pd.DataFrame, found: Mapping[tuple[str, str, str], Ranks], names: Sequence[str]) -> list[str]:
    texts = []
    for settings in _RANKS:
        for which in ("unseen", "all"):
            own = {kind: of for kind in _KINDS if (of := found.get((settings, kind, which)))}
            told = [
                f"in {kind} {of.gap:+.2f} ± {of.errors[HEADLINE]:.2f} ranks over `{of.best}` on {of.tables} tables"
                f"{'' if of.first else ' (not established)'}"
                for kind, of in own.items()
            ]
            if own:
                against = "tuned rivals" if settings == "tuned" else "methods at their defaults"
                texts.append(f"- Against {against}, {which} tables: {'; '.join(told)}.")
    nll = scores(rows, "nll", names)
    others = nll.drop(columns=HEADLINE)
    gaps = nll[HEADLINE] - others.min(axis=1)
    table = str(gaps.idxmax())
    texts.append(
        f"- Worst table: {table}, {gaps[table]:+.3f} nats against `{others.loc[table].idxmin()}`; "
        f"{int((gaps <= WORST).sum())} of {len(names)} tables are within {WORST:.2f} of the best other one."
    )
    for task in dict.fromkeys(task for _, task in _KINDS.values()):
        own = [name for name in names if BY_NAME[name].task == task]
        parts = [[n for n in own if (BY_NAME[n].rows < _STACKED) == small] for small in (False, True)]
        least = [f"{int((gaps[part] <= 0).sum())} of {len(part)}" for part in parts]
        told = f"{least[0]} tables of at least {_STACKED:,} rows, {least[1]} smaller ones"
        texts.append(f"- The headline has the least NLL of all, {task}: on {told}.")
    return ["The headline's lead, positive if it is ahead:", "\n".join(texts)]


def beyond(nll: pd.DataFrame) -> dict[str, str]:
    """Return the tables beyond the bound, each with the label of the least NLL.

    Args:
        nll: tables × labels, as :func:`scores` returns them.
    """
    others = nll.drop(columns=HEADLINE)
    far = others[nll[HEADLINE] - others.min(axis=1) > WORST]
    return {str(table): str(label) for table, label in far.idxmin(axis=1).items()}


def _rank_table(of: Mapping[tuple[str, str], Ranks]) -> str:
    titles = ["", *(f"{kind}, {which} ({ranks.tables})" for (kind, which), ranks in of.items())]
    labels = [name + more for name in RIVALS for more in ("", _TUNED)]
    lines = []
    for label in labels:
        cells = [
            f"{ranks.means[label]:.2f}" + (f" ({ranks.errors[label]:.2f})" if label != ranks.best else " (best)")
            if label in ranks.means
            else ""
            for ranks in of.values()
        ]
        if any(cells):
            lines.append([f"`{label}`", *cells])
    return written.table(titles, lines)


def _distances(rows: pd.DataFrame, by_task: Mapping[str, Sequence[str]]) -> str:
    lines = []
    labels = [name + more for name in RIVALS for more in ("", _TUNED) if name != HEADLINE]
    for label in labels:
        cells = [f"`{label}`"]
        for task in by_task:
            for which in ("seen", "unseen"):
                nll = scores(rows, "nll", _of(which, by_task[task]))
                less = (nll[HEADLINE] - nll[label]).dropna() if label in nll else pd.Series(dtype=float)
                cells.append(_with_error(less))
        crps = scores(rows, "crps", by_task["regression"])
        ratio = np.log(crps[HEADLINE] / crps[label]).dropna() if label in crps else pd.Series(dtype=float)
        cells.append(f"{math.exp(ratio.mean()):.3f} ± {ratio.sem():.3f}" if len(ratio) > 1 else "")
        if any(cells[1:]):
            lines.append(cells)
    titles = [f"NLL, {which} {task}" for task in by_task for which in ("seen", "unseen")]
    return written.table(["The headline less", *titles, "CRPS ratio"], lines)


def _beyond(worst: pd.DataFrame) -> list[str]:
    far = worst[worst["difference"] > 2 * worst["error"]]
    told = f"{len(far)} of {len(worst)} are more than two errors: {', '.join(far['table']) or 'none'}."
    seen = {True: "seen", False: "unseen"}
    lines = [
        [name, seen[BY_NAME[name].seen], f"`{other}`", rows, f"{gap:+.3f} ± {error:.3f}", commit]
        for name, other, gap, error, rows, commit in worst.itertuples(index=False)
    ]
    titles = ["Table", "", "The least NLL", "Test rows, all splits", "The headline less it", "Commit"]
    return ["### Beyond the bound", f"{_BEYOND} {told}", written.table(titles, lines)]


def _with_error(values: pd.Series) -> str:
    return f"{values.mean():+.3f} ± {values.sem():.3f} ({len(values)})" if len(values) > 1 else ""


def _coverage(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the coverage of the headline on tables with many test rows, in all rows and in thirds by width."""
    lines, inside, held = [], 0, 0
    columns = ("coverage_90", *THIRDS)
    for name in names:
        mine = rows[(rows["table"] == name) & (rows["label"] == HEADLINE)]
        count = int(mine["rows"].sum())
        if count < LARGE or mine[list(columns)].isna().any(axis=None):
            continue
        shares = [float(np.average(mine[column], weights=mine["rows"])) for column in columns]
        inside += COVERED[0] <= shares[0] <= COVERED[1]
        held += all(COVERED_THIRD[0] <= share <= COVERED_THIRD[1] for share in shares[1:])
        error = 100 * math.sqrt(0.09 * len(THIRDS) / count)
        lines.append([name, "seen" if BY_NAME[name].seen else "unseen", count, *(f"{100 * s:.1f}" for s in shares)])
        lines[-1].append(f"{error:.1f}")
    told = (
        f"Coverage in percent of the headline's central 90 % intervals, on tables of at least {LARGE} test rows, of "
        f"all rows and of each third of the rows by width: {inside} of {len(lines)} tables are from 85 to 95 %, and on "
        f"{held} every third is from 80 to 97 %. The error is the binomial standard error of a third."
    )
    titles = ["Table", "", "Test rows", "All", *(third.capitalize() for third in THIRDS.values()), "Error"]
    return [told, written.table(titles, lines)]


def _seconds(rows: pd.DataFrame) -> str:
    lines = []
    for label in [name + more for name in RIVALS for more in ("", _TUNED)]:
        mine = rows[rows["label"] == label]
        if mine.empty:
            continue
        of = mine.groupby("table")[["fit_seconds", "search_seconds"]].mean()
        trials = f"{mine.groupby('table')['trials'].sum().median():.0f}" if label.endswith(_TUNED) else ""
        cells = [f"{of['fit_seconds'].sum():.0f}", shown.seconds(of["fit_seconds"].median())]
        cells += [f"{mine['search_seconds'].sum():.0f}" if trials else "", trials]
        lines.append([f"`{label}`", len(of), *cells])
    titles = ["", "Tables", "Fits, all tables", "Median fit", "Search, all splits", "Trials of a table, median"]
    return written.table(titles, lines)


def _by_table(rows: pd.DataFrame, score: str, names: Sequence[str]) -> str:
    """Return the scores of the tables, in all of their splits, the least of a table in bold."""
    wide, splits = scores(rows, score, names), rows[rows["label"] == HEADLINE].groupby("table")["split"].size()
    labels = [label for name in RIVALS for label in (name, name + _TUNED) if label in wide]
    lines: list[list[Any]] = []
    for name in names:
        best = wide.loc[name].round(_DECIMALS).min()
        cells = []
        for label in labels:
            value = float(wide.loc[name, label])
            text = f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
            cells.append("" if math.isnan(value) else f"**{text}**" if round(value, _DECIMALS) == best else text)
        lines.append(
            [name, "seen" if BY_NAME[name].seen else "unseen", f"{BY_NAME[name].rows:,}", splits[name], *cells]
        )
    return written.table(["Table", "", "Rows", "Splits", *(f"`{label}`" for label in labels)], lines)
