"""The page results/your_data. It is made from the stored scores beside it, and computes no score.

A pair is a table and a method; its figure is the mean over splits. Differences between two methods are paired by split,
with the standard error of Nadeau and Bengio (2003), √((1/J + test rows / training rows) s²) of J splits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from bdl_pipe.files import write_bytes
from bdl_pipe.metrics.comparison import mean_ranks
from bdl_pipe.registry import METHODS
from benchmarks import written

from . import others, shown
from .tables import BY_NAME

RIVALS: Final = ("constant", "linear", "boosting")
PROCESSES: Final = ("gp", "svgp")
WITH_TREES: Final = "stacked"  # networks and trees: neither a network nor a rival
PROTOCOL: Final = {  # ScoringBench's scores of regression beside coverage
    "crps": "CRPS",
    "crps_left": "CRPS, left tail",
    "crps_right": "CRPS, right tail",
    "crps_centre": "CRPS, centre",
    "interval_score_90": "Interval score",
    "rmse": "RMSE",
}
_FARTHEST: Final = (0.84, 0.96)  # coverage of 90 % intervals that is not far from what they say
_FEW: Final = 3  # the most methods of a table that a sentence names


def write(place: Path) -> str:
    """Write ``README.md`` of the ``scores.csv`` and ``facts.json`` of a folder, and return its head."""
    text = page(read(place), facts(place), others.read(place))
    write_bytes(place / "README.md", text.encode())
    return text.split("\n## ")[0]


def read(place: Path) -> pd.DataFrame:
    """Read ``scores.csv``: a row for each table, method and split, empty scores where a fit has no result."""
    return pd.read_csv(place / "scores.csv")


def facts(place: Path) -> list[dict[str, Any]]:
    """Read ``facts.json``: the runs that the scores come from, each with its tables."""
    found: list[dict[str, Any]] = json.loads((place / "facts.json").read_text())
    return found


def page(frame: pd.DataFrame, runs: Sequence[dict[str, Any]], more: Mapping[str, Any] | None = None) -> str:
    """Return the whole page of scores from these runs, with sections of the files ``more`` (:mod:`.others`)."""
    names = [name for name in BY_NAME if name in set(frame["table"])]
    tasks = {task: [name for name in names if BY_NAME[name].task == task] for task in ("regression", "classification")}
    parts = [
        f"# Your data: {len(names)} tables that packages ship",
        *head(frame),
        _FORMER,
        *_by_kind(frame),
        "## Tables",
    ]
    parts += [_listed(frame, task, mine) for task, mine in tasks.items() if mine]
    parts += ["## Methods", _METHODS, _by_method(frame)]
    if tasks["regression"]:
        parts += ["## The scores of ScoringBench", _SCORES, _ratios(frame), *_ranks(frame)]
    parts += others.sections(more or {})
    parts += ["## Where boosting is better", _boosting(frame), "## The tables' sources", _SOURCES, _sources(names)]
    parts += ["## The runs", _RUNS if len(runs) > 1 else "", *map(_run, runs)]
    return "\n\n".join(part for part in parts if part) + "\n"


_FORMER: Final = (
    "Three defaults of `add` changed after most of these fits: quantile bins and a Student t of `tabm`, `ensemble` and "
    "`deterministic` for regression on 1,000 to 10,000 training rows; `boosting` by quantiles where many targets are "
    "equal; and logarithms of targets only if they gain a standard error, which changes airquality, caschools, "
    "diabetes and saratogahouses. What they change was run again, with `stacked`, as [the runs](#the-runs) say. "
    "[Below](#rivals-that-other-packages-fit) are packages that people use, on the same splits."
)
_METHODS: Final = (
    "NLL on test rows: on how many tables a method is below `constant`, and at or below `boosting`. CRPS: the "
    "geometric mean over tables of its ratio to the CRPS of `constant`. Coverage of the central 90 % interval: "
    "the mean over tables, the lowest and the highest. ECE of classes: the mean over tables. Seconds: of a fit "
    "with all that it is made from, the median over tables."
)
_SCORES: Final = (
    "ScoringBench (Landsgesell et al. 2026) scores predictive distributions of regression by proper scores. Here are "
    "some of its scores, of the predictives whose NLL is above: the CRPS, the CRPS weighted by quantile (Gneiting and "
    "Ranjan 2011), the interval score at 90 % and the RMSE, as geometric means over tables of the ratio to `constant`; "
    "the log score, as the mean difference of NLL. Lower is better."
)
_RUNS: Final = (
    "The tables were run in several parts, each by one state of the code. A run's seconds of fitting cover all that "
    "was run then, also tables whose figures come from a later run."
)
_SOURCES: Final = (
    "A rule that was written before any fit chose the unseen tables: it is the head of "
    "`benchmarks/your_data/tables.py`. No number of `add` was chosen by their scores, but the effect of one rule "
    "(`noise: training`) on cps1988 and deliveries, and of another (the imagined rows of recalibration) on births14, "
    "was looked at before it was adopted. Rows are those with a target, columns those that `add` was given as features."
)


def head(frame: pd.DataFrame) -> list[str]:
    """Return the counts that the page begins with."""
    nll, crps = means(frame, "nll"), means(frame, "crps")
    names = [name for name in BY_NAME if name in nll.index]
    lost = frame[frame["nll"].isna()].groupby(["table", "method"], sort=False).size()
    worse = above(nll)
    seen = sum(BY_NAME[name].seen for name in names)
    told = (
        f"{len(names)} tables, {seen} of them seen by rules of `add` and {len(names) - seen} unseen; "
        f"{len(frame)} fits. Without a result: {_listing([f'{t}: {m} ({n})' for (t, m), n in lost.items()])}."
    )
    pairs = int(nll.drop(columns="constant").notna().sum().sum())
    versus = (
        f"NLL on test rows: {pairs - len(worse)} of {pairs} pairs of a table and a method are at or below `constant`. "
        f"Above it: {_listing(_by_table(worse))}."
    )
    if crps.empty:
        return [told, versus]
    coverage = means(frame, "coverage_90")
    spread = coverage.stack()
    low, high = spread.idxmin(), spread.idxmax()
    rivals = crps.drop(columns="constant")
    below, count = int(rivals.le(crps["constant"], axis=0).sum().sum()), int(rivals.notna().sum().sum())
    regression = (
        f"CRPS: {below} of {count} pairs are at or below `constant`. Central 90 % intervals hold "
        f"{100 * spread.mean():.1f} % of the targets in the mean over pairs, from {100 * spread.min():.1f} % "
        f"({low[0]}: {low[1]}) to {100 * spread.max():.1f} % ({high[0]}: {high[1]}). {_outside(coverage)}"
    )
    return [told, versus, regression]


def _outside(coverage: pd.DataFrame) -> str:
    """Return the sentence that counts the pairs whose coverage is far from 90 %, without ``constant``."""
    pairs = coverage.drop(columns="constant").stack().dropna()
    wide = pairs[pairs > _FARTHEST[1]].groupby(level=0, sort=False).size()
    low, high = (100 * end for end in _FARTHEST)
    return (
        f"Of {len(pairs)} pairs without `constant`, {int((pairs < _FARTHEST[0]).sum())} are below {low:.0f} % and "
        f"{int(wide.sum())} above {high:.0f} %: {_listing([f'{table} ({n})' for table, n in wide.items()])}."
    )


def means(frame: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return means over splits, tables × methods; NaN where a split has no result."""
    kept = frame.groupby(["table", "method"], sort=False)[score].agg(lambda values: values.mean(skipna=False))
    return kept.unstack("method").dropna(how="all")


def above(nll: pd.DataFrame) -> list[tuple[str, str, float]]:
    """List the pairs with a larger NLL than ``constant``, with the difference."""
    more = nll.sub(nll["constant"], axis=0)
    return [(t, m, more.loc[t, m]) for t in BY_NAME if t in more.index for m in more.columns if more.loc[t, m] > 0]


def _by_table(pairs: Sequence[tuple[str, str, float]]) -> list[str]:
    """Return a text for each table: its methods with their differences, or the range of more than three."""
    texts = []
    for table, some in groupby(pairs, itemgetter(0)):
        found = sorted((gap, method) for _, method, gap in some)
        few = ", ".join(f"{method} ({gap:+.3f})" for gap, method in found)
        many = f"{len(found)} methods ({found[0][0]:+.3f} to {found[-1][0]:+.3f})"
        texts.append(f"{table}: {few if len(found) <= _FEW else many}")
    return texts


def networks(methods: Sequence[str]) -> list[str]:
    """Return the networks with a posterior over weights among methods."""
    return [name for name in methods if METHODS[name].bayesian]


def without_posterior(methods: Sequence[str]) -> list[str]:
    """Return the networks without a posterior over weights among methods."""
    others = (*RIVALS, *PROCESSES, WITH_TREES)
    return [name for name in methods if name not in others and not METHODS[name].bayesian]


def best(nll: pd.DataFrame) -> pd.Series:
    """Return the best Bayesian network of each table, by NLL on test rows: chosen after the fact."""
    return nll[networks(list(nll.columns))].idxmin(axis=1)


def paired(frame: pd.DataFrame, table: str, one: str, other: str) -> tuple[float, float]:
    """Return the mean over splits of one method's NLL less another's, and its standard error, NaN of one split."""
    mine = frame[frame["table"] == table].pivot(index="split", columns="method", values="nll")
    return shown.mean_and_error((mine[one] - mine[other]).to_numpy())


def kinds() -> dict[str, list[str]]:
    """Return groups of tables: by task, by size, and seen or unseen."""
    tables = list(BY_NAME.values())
    groups = {task: [t.name for t in tables if t.task == task] for task in ("regression", "classification")}
    groups |= {size: [t.name for t in tables if t.size == size] for size in ("small", "middle", "large")}
    return groups | {("unseen", "seen")[seen]: [t.name for t in tables if t.seen == seen] for seen in (True, False)}


def _by_kind(frame: pd.DataFrame) -> list[str]:
    """Return how often networks are at or below boosting, by the kind of a table."""
    nll = means(frame, "nll")
    bayesian = networks(list(nll.columns))
    others = without_posterior(list(nll.columns))
    every = [*bayesian, *others]
    rows = []
    for kind, names in {"all": list(nll.index), **kinds()}.items():
        mine = nll.loc[[name for name in names if name in nll.index]]
        if mine.empty:
            continue
        boosting, count = mine["boosting"], len(mine)
        cells = [int((mine[group].min(axis=1) <= boosting).sum()) for group in (bayesian, every)]
        wins = mine[bayesian].le(boosting, axis=0).sum() / mine[bayesian].notna().sum()
        stacked = mine.reindex(columns=[WITH_TREES])[WITH_TREES].dropna()
        both = f"{int((stacked <= boosting[stacked.index]).sum())} of {len(stacked)}"
        rows.append([kind, count, *(f"{cell} of {count}" for cell in cells), f"{100 * wins.mean():.0f} %", both])
    told = (
        "The number of tables with an NLL at or below the NLL of `boosting`: of the best Bayesian network of each "
        "table, of the best network of all "
        f"({', '.join(f'`{name}`' for name in others)} have no posterior); and the share of tables of each "
        "Bayesian network, in the mean. The best network is found on the test rows, so that the first two "
        f"columns are optimistic; the third is not. `{WITH_TREES}`, a network and trees, is counted on the tables for "
        "which `add` offers it in ten minutes."
    )
    titles = ["Tables", "Number", "Best Bayesian network", "Best network", "A Bayesian network, in the mean"]
    titles += [f"`{WITH_TREES}`"]
    return ["## Networks and boosting", told, written.table(titles, rows)]


def _listed(frame: pd.DataFrame, task: str, names: Sequence[str]) -> str:
    """Return the tables of a task, a row each."""
    nll, seconds = means(frame, "nll"), means(frame, "fit_seconds")
    first, rows = best(nll), []
    process = ["GP"] if task == "regression" else []
    for name in names:
        table, one, splits = BY_NAME[name], str(first[name]), frame[frame["table"] == name]["split"].nunique()
        difference, error = paired(frame, name, one, "boosting")
        gp = [shown.figure(nll.loc[name].reindex(list(PROCESSES)).min())] if process else []
        cells = [name, "seen" if table.seen else "unseen", f"{table.rows:,}", table.columns, splits]
        cells += [shown.figure(nll.loc[name, rival]) for rival in RIVALS]
        gp += [shown.figure(nll.loc[name].reindex([WITH_TREES]).min())]
        cells += [f"{shown.figure(nll.loc[name, one])} {one}", *gp, shown.error(difference, error)]
        rows.append([*cells, shown.seconds(seconds.loc[name, "boosting"]), shown.seconds(seconds.loc[name, one])])
    titles = [
        task.capitalize(),
        "",
        "Rows",
        "Columns",
        "Splits",
        *RIVALS,
        "Best Bayesian network",
        *process,
        f"`{WITH_TREES}`",
    ]
    return written.table([*titles, "It less boosting", "Seconds, boosting", "Seconds, network"], rows)


def _by_method(frame: pd.DataFrame) -> str:
    nll, crps, seconds = (means(frame, score) for score in ("nll", "crps", "fit_seconds"))
    coverage, ece, rows = means(frame, "coverage_90"), means(frame, "ece"), []
    for method in sorted(nll.columns):
        mine, cells = nll.dropna(subset=[method]), [method]
        for rival, own in (
            ("constant", mine[method] < mine["constant"]),
            ("boosting", mine[method] <= mine["boosting"]),
        ):
            cells.append("" if rival == method else f"{int(own.sum())} of {len(mine)}")
        known = method in coverage.columns and coverage[method].notna().any()
        cells.append(f"{_ratio(crps, method):.3f}" if known else "")
        held = 100 * coverage[method].dropna() if known else None
        cells.append(f"{held.mean():.1f} ({held.min():.1f} to {held.max():.1f})" if held is not None else "")
        cells.append(f"{ece[method].mean():.3f}" if method in ece.columns and ece[method].notna().any() else "")
        rows.append([*cells, shown.seconds(seconds[method].median())])
    titles = ["Method", "Below `constant`", "At or below `boosting`", "CRPS", "Coverage %", "ECE", "Seconds"]
    return written.table(titles, rows)


def _ratio(score: pd.DataFrame, method: str) -> float:
    """Return the geometric mean over tables of the ratio of a method's score to ``constant``'s."""
    return float(np.exp(np.log(score[method] / score["constant"]).mean()))


def _ratios(frame: pd.DataFrame) -> str:
    of = {score: means(frame, score) for score in PROTOCOL}
    nll = means(frame, "nll").loc[of["crps"].index]
    methods = [name for name in sorted(of["crps"].columns) if of["crps"][name].notna().any()]
    rows = [
        [
            method,
            int(of["crps"][method].notna().sum()),
            *(f"{_ratio(values, method):.3f}" for values in of.values()),
            f"{(nll[method] - nll['constant']).mean():+.3f}",
            shown.seconds(means(frame, "fit_seconds")[method].reindex(nll.index).median()),
        ]
        for method in sorted(methods, key=lambda method: _ratio(of["crps"], method))
    ]
    return written.table(["Method", "Tables", *PROTOCOL.values(), "Log score", "Seconds"], rows)


def _ranks(frame: pd.DataFrame) -> list[str]:
    """Return mean ranks of the methods that every table of regression has, by each score."""
    scores = {name: means(frame, name) for name in PROTOCOL}
    scores["nll"] = means(frame, "nll").loc[scores["crps"].index]
    whole = [name for name in sorted(scores["crps"].columns) if all(s[name].notna().all() for s in scores.values())]
    if len(scores["crps"]) < 2 or len(whole) < 2:
        return []
    ranks = {name: mean_ranks(whole, score[whole].to_numpy()) for name, score in scores.items()}
    order = ranks["crps"].means
    rows = [[method, *(f"{found.means[method]:.1f}" for found in ranks.values())] for method in order]
    told = (
        f"Mean ranks of the {len(whole)} methods that all {ranks['crps'].datasets} tables of regression have. Methods "
        f"that differ by less than {ranks['crps'].critical:.1f} are not distinguishable (Nemenyi, at 5 %; Demšar 2006)."
    )
    return [told, written.table(["Method", *PROTOCOL.values(), "Log score"], rows)]


def _boosting(frame: pd.DataFrame) -> str:
    """List the tables on which boosting has a smaller NLL than every Bayesian network."""
    nll = means(frame, "nll")
    found = []
    for name in (name for name in BY_NAME if name in nll.index):
        one = str(best(nll)[name])
        difference, error = paired(frame, name, one, "boosting")
        if difference > 0:
            far = "one split" if math.isnan(error) else f"{difference / error:.1f} standard errors"
            found.append(f"- {name}{'' if BY_NAME[name].seen else ' (unseen)'}: {one} {difference:+.3f}, {far}")
    return "\n".join(found) or "On no table is `boosting` below every Bayesian network."


def _sources(names: Sequence[str]) -> str:
    rows = []
    for table in map(BY_NAME.__getitem__, names):
        out = ", ".join(f"{column} ({why})" for column, why in table.leave_out.items())
        rows.append([table.name, " ".join(table.source), table.target, table.size, out, table.licence])
    return written.table(["Table", "Source", "Target", "Size", "Left out", "Licence"], rows)


def _run(about: dict[str, Any]) -> str:
    """Return a list of a run's facts."""
    values = {name: ", ".join(value) if isinstance(value, list) else value for name, value in about.items()}
    return "\n".join(f"- {name}: {value}" for name, value in values.items())


def _listing(items: Sequence[str]) -> str:
    return ", ".join(items) or "none"
