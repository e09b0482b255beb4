"""results/ood: runs by their scores of unfamiliar rows.

    python -m pipeline repro evaluate && python -m benchmarks.pages.unfamiliar   # the second command predicts nothing

`near` after it names another page than README, for the runs of params/near-ood.yaml.

Every run on a data set with unfamiliar sets has stored rows beside its predictions (1,500 training rows, 1,000 test
rows, 500 rows of each unfamiliar set); all scores here are computed from them. The report's AUROC uses all rows, so
that its figures differ in the second digit. docs/out-of-distribution.md describes the scores.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bdl_pipe.metrics import ood
from bdl_pipe.metrics.ood.rows import StoredFit
from bdl_pipe.metrics.ood.table import GROUPS
from benchmarks import written
from pipeline.core import places
from pipeline.core.load import load
from pipeline.core.model import Params
from pipeline.core.settings import Settings
from pipeline.stages import report

OUT: Final = Path("results/ood")
FILE: Final = "unfamiliar.parquet"
TITLES: Final = {
    "auroc": "AUROC",
    "fpr95": "FPR95: unfamiliar rows that are accepted with 95 % of the test rows, lower is better",
    "aupr_in": "AUPR, test rows as positives",
    "aupr_out": "AUPR, unfamiliar rows as positives",
}
NOTE: Final = """All figures are per cent. ± is a standard error: over folds of held-out classes or over seeds where
a run has several, else over rows by DeLong et al. (1988). Bold: the best score of the run, and each that is not
distinguishable from it at 95 % for all comparisons together. A dash: the posterior has no features that its draws
share, no linear last layer, or one draw."""


def main(name: str = "README") -> None:
    """Write the page ``name`` and its figures from the stored rows of this folder."""
    params, started = load(), time.process_time()
    folds = folds_of(params)
    fits: dict[str, dict[str, dict[tuple[int, int], StoredFit]]] = {}
    size = 0
    for run in params.of("student"):
        path = places.artifact("evaluate", run.key) / FILE
        if path.is_file():
            size += path.stat().st_size
            title, fold = folds[run.spec.dataset]
            of_run = fits.setdefault(title, {}).setdefault(run.key.removeprefix(f"{run.spec.dataset}-"), {})
            of_run |= {(split + fold, seed): fit for (split, seed), fit in ood.read(path)}
    results = {title: [ood.result(run, title, found) for run, found in runs.items()] for title, runs in fits.items()}
    facts = report.facts(params, Settings.read())
    facts |= {
        f"held out, {key}": list(dataset.held_out) for key, dataset in params.datasets.items() if dataset.held_out
    }
    facts |= {"bytes of stored rows": f"{size:,}", "seconds of all scores": round(time.process_time() - started)}
    text = list[str]()
    OUT.mkdir(parents=True, exist_ok=True)
    for title, runs in results.items():
        text += [f"## {title}", *page(runs)]
        ood.frame(runs).round(6).to_csv(OUT / f"{title}.csv", index=False)
    about = f"{__doc__.rstrip()}\n\n{NOTE}"
    (OUT / f"{name}.md").write_text(written.page("Scores of the unfamiliar", about, facts, *text))


def folds_of(params: Params) -> dict[str, tuple[str, int]]:
    """Return data set -> (a title, the number of its first split) of data sets that differ only in held-out classes.

    The title is the first one's name; the splits of all folds have different numbers.
    """
    found, whole = {}, {key: replace(dataset, held_out=()) for key, dataset in params.datasets.items()}
    for key, dataset in params.datasets.items():
        alike = [other for other in whole if whole[other] == whole[key]]
        found[key] = alike[0], alike.index(key) * dataset.splits
    return found


def page(runs: list[ood.Result]) -> list[str]:
    """Return the conclusions from the figures, then a table for each metric and group of sets."""
    groups = [group for group in GROUPS if any(one.figures.get(group) for one in runs)]
    text = ["\n".join(f"- {ood.sentence(runs, group)}" for group in groups)]
    for metric, title in TITLES.items():
        for group in groups:
            sets = ", ".join(dict.fromkeys(name for one in runs for name in one.sets.get(group, ())))
            text += [f"### {title}; {group} sets: {sets}", ood.markdown(*ood.table(runs, group, metric))]
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
