"""results/your_data: what the numbers of ``python -m pipeline add`` reach on sets that packages ship.

    for each set: python -m pipeline add data/<set>.csv --target <column>
    make repro && python -m benchmarks.pages.your_data --seen diabetes breast_cancer iris pima_tr airquality diamonds

Read: ``report/comparison.csv`` and the prepared data, where the constant predictor comes from: the share of each class,
or a Gaussian with the targets' mean and variance (of their logarithms, where these are fitted), of the rows that a fit
sees. Written: ``README.md``, with the NLL of every method less that of the constant predictor, and ``scores.csv``.
Sets named with ``--seen`` were looked at while the numbers were made; the others were run once, afterwards.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import pandas as pd

from bdl_pipe.data import prepared
from pipeline.core import places
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.stages import report

OUT = Path("results/your_data")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seen", nargs="+", default=[])
    seen = parser.parse_args().seen
    params = load()
    scores = pd.read_csv("report/comparison.csv")
    nll = scores[(scores["set"] == "test") & (scores["metric"] == "nll")]
    found = nll.groupby(["dataset", "method"])["value"].mean().unstack("method")
    seconds = scores[scores["metric"] == "fit_seconds"].groupby("dataset")["value"].sum()
    asked = {key: [run.method.name for run in params.of("student") if run.spec.dataset == key] for key in found.index}
    constant = {key: np.mean([_constant(key, split) for split in range(params.datasets[key].splits)]) for key in asked}
    order = sorted(asked, key=lambda key: (key not in seen, params.datasets[key].task, key))
    lines = [_head(), *(_row(key, asked[key], found, constant, seconds, seen, params) for key in order)]
    failed = [f"{key}: {m}" for key in order for m in asked[key] if not np.isfinite(found.loc[key].get(m, np.nan))]
    worse = [f"{key}: {m}" for key in order for m in asked[key] if found.loc[key].get(m, np.inf) >= constant[key]]
    fits = sum(len(methods) * params.datasets[key].splits for key, methods in asked.items())
    told = [
        f"{fits} fits of {len(order)} sets. Without a result: {', '.join(failed) or 'none'}. "
        f"No better than the constant predictor by NLL on test rows: {', '.join(worse) or 'none'}.",
        "Those marked as seen were looked at while the numbers of `add` were made; the others were run once, after.",
    ]
    facts = [f"- {k}: {v}" for k, v in report.facts(params, Settings.read()).items() if not k.startswith("data ")]
    OUT.mkdir(parents=True, exist_ok=True)
    text = ["# Your data: sets that packages ship", *told, "\n".join(lines), _by_method(order, asked, found, constant)]
    (OUT / "README.md").write_text("\n\n".join([*text, "\n".join(facts)]) + "\n")
    with (OUT / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("dataset", "method", "nll", "constant"))
        for key in order:
            writer.writerows((key, m, found.loc[key].get(m, np.nan), constant[key]) for m in asked[key])
    print("\n".join(told))


def _constant(key: str, split: int) -> float:
    """Return the constant predictor's NLL on the test rows of a split."""
    fit = prepared.load_fit(places.artifact("prepare", key), split, final=True)
    test = prepared.load_holdout(places.artifact("holdout", key), split).test.targets
    train = fit.train.targets
    if fit.task == "classification":
        shares = np.bincount(train, minlength=len(fit.classes)) / len(train)
        return float(-np.log(shares[test]).mean())
    own, seen = (np.log(test), np.log(train)) if fit.transform.log else (test, train)
    variance = seen.var(0)
    each = 0.5 * np.log(2 * np.pi * variance) + (own - seen.mean(0)) ** 2 / (2 * variance)
    return float((each + (own if fit.transform.log else 0)).sum(1).mean())


def _head() -> str:
    titles = [
        "Set",
        "Rows",
        "Columns",
        "Task",
        "Methods",
        "Constant NLL",
        "Best",
        "Its NLL",
        "Worst",
        "Its NLL",
        "Seconds",
    ]
    rule = ["---"] + ["---:"] * (len(titles) - 1)
    return f"| {' | '.join(titles)} |\n| {' | '.join(rule)} |"


def _row(key, methods, found, constant, seconds, seen, params) -> str:  # type: ignore[no-untyped-def]
    mine = found.loc[key].reindex(methods).dropna().sort_values()
    source = params.datasets[key].source
    fit = prepared.load_fit(places.artifact("prepare", key), 0, final=True)
    rows = len(fit.train) + len(prepared.load_holdout(places.artifact("holdout", key), 0).test)
    task = params.datasets[key].task + (", log" if params.datasets[key].targets == "log" else "")
    name = f"{key} (seen)" if key in seen else key
    cells = [
        name,
        f"{rows:,}",
        str(len(source.columns)),
        task,
        f"{len(mine)} of {len(methods)}",
        f"{constant[key]:.3f}",
    ]
    cells += [mine.index[0], f"{mine.iloc[0]:.3f}", mine.index[-1], f"{mine.iloc[-1]:.3f}", f"{seconds[key]:.0f}"]
    return f"| {' | '.join(cells)} |"


def _by_method(order, asked, found, constant) -> str:  # type: ignore[no-untyped-def]
    """Return NLL less the constant predictor's, a row a method."""
    methods = sorted({method for key in order for method in asked[key]})
    lines = [f"| NLL less constant | {' | '.join(order)} |", f"| --- | {' | '.join(['---:'] * len(order))} |"]
    for method in methods:
        cells = [f"{found.loc[key][method] - constant[key]:+.2f}" if method in asked[key] else "" for key in order]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
