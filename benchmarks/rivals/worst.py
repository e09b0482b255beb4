"""results/your_data/worst.csv: the errors of the differences in NLL that are beyond the rule's bound.

    python -m benchmarks.rivals.worst                 # after the rows of benchmarks.rivals
    python -m benchmarks.rivals.worst --only tobacco  # the rows of other tables stay

A table is beyond the bound if the headline's NLL is more than .05 nats above the least NLL of the others. There both
are fitted again (another processor may move an NLL in its third digit), and the difference gets the standard error of
its mean over the test rows of all splits, paired by row. The error is that of the test rows: another training set or
another seed would add to it. The least of all others is found on the same rows, so that the differences are too large
in the mean.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import pandas as pd

from bdl_pipe.files import write_bytes
from benchmarks.your_data import judged, page, project
from benchmarks.your_data.tables import BY_NAME
from pipeline.core.model import Params

from . import run
from .__main__ import OUT
from .settings import RIVALS

COLUMNS = ("table", "other", "difference", "error", "rows", "commit")


def main() -> int:
    """Fit the pairs, and write their differences and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=project.ROOT / ".state" / "rivals", help="the project folder")
    parser.add_argument("--only", nargs="+", metavar="TABLE", choices=list(BY_NAME), default=list(BY_NAME))
    chosen, rows = parser.parse_args(), judged.labelled(pd.read_csv(OUT / "rivals.csv"))
    folder, every = chosen.folder, judged.beyond(judged.scores(rows, "nll", list(BY_NAME)))
    pairs = {table: other for table, other in every.items() if table in chosen.only}
    params, commit = run.prepare(folder, [BY_NAME[name] for name in pairs]), run.facts()["commit"][:8]
    former = pd.read_csv(OUT / "worst.csv") if (OUT / "worst.csv").is_file() else pd.DataFrame(columns=list(COLUMNS))
    stay = [every.get(row.table) == row.other and row.table not in pairs for row in former.itertuples()]
    found = list(former[stay].itertuples(index=False, name=None))
    for table, other in pairs.items():
        headline, best = (_log_densities(folder, params, rows, table, label) for label in (judged.HEADLINE, other))
        gaps = best - headline
        found.append((table, other, gaps.mean(), gaps.std(ddof=1) / math.sqrt(len(gaps)), len(gaps), commit))
        print(*found[-1], flush=True)
    made = pd.DataFrame(found, columns=list(COLUMNS)).sort_values("table", key=lambda c: c.map(list(BY_NAME).index))
    write_bytes(OUT / "worst.csv", made.to_csv(index=False, float_format="%.7g").encode())
    page.write(OUT)
    return 0


def _log_densities(folder: Path, params: Params, rows: pd.DataFrame, table: str, label: str) -> np.ndarray:
    """Return the log densities of the test rows of a table's splits, under fits of a rival, made again."""
    parts = []
    for row in rows[(rows["table"] == table) & (rows["label"] == label)].itertuples():
        data, split = run.split(folder, table, int(row.split)), int(row.split)
        if label == judged.HEADLINE:
            headline = run.headline_of(params, table)
            scores, clean = run.scored(headline.key, split, headline.method, headline, data, params)
        else:
            rival = RIVALS[str(row.rival)]
            method = run.method_of(rival, folder / "plugins")
            tried = run.trials(method, rival.config, data[0], math.inf, params.seed, int(row.trials))
            best = min(tried, key=lambda trial: trial.nll).config if tried else rival.config
            scores, clean = run.scored(f"{table}-{row.rival}", split, method, best, data, params)
        if abs(scores["nll"] - row.nll) > 1e-4 * max(1, abs(row.nll)):
            print(f"worst: {table}, {label}, split {split}: {scores['nll']:.6g}, and the stored row has {row.nll:.6g}")
        parts.append(clean.predictions["log_prob"].to_numpy())
    return np.concatenate(parts)


if __name__ == "__main__":
    raise SystemExit(main())
