"""results/your_data/rivals.csv: rivals that other packages fit, on tables of results/your_data.

    pip install -c constraints.txt -e '.[rivals]' && pip install --no-deps ngboost==0.6.0
    python -m benchmarks.rivals --only computers sacramento          # at their defaults, on the first split
    python -m benchmarks.rivals --only computers --minutes 10        # after ten minutes of search each

Tables, splits, recalibration and scores are those of `python -m benchmarks.your_data`. A search fits the training rows,
and the validation rows choose; test rows are only scored. Its minutes, of the processor, are those of a table: its
splits share them. The rival ``headline`` is our method by benchmarks/your_data/rule.md, with the hyperparameters that
``add`` writes for ten minutes. Finished rows are not made again, so that a stopped command continues; ``--again`` makes
them again. Every fit has one thread.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import pandas as pd

from bdl_pipe.errors import Diverged, UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.metrics import pit
from benchmarks.your_data import page, project
from benchmarks.your_data.tables import BY_NAME
from pipeline.core.model import Params

from . import run
from .settings import RIVALS

OUT = project.ROOT / "results" / "your_data"
COLUMNS = (
    *("table", "rival", "settings", "split", "rows", *project.TEST, *pit.THIRDS, *project.COST),
    *("trials", "search_seconds", "commit"),
)
KEY = ["table", "rival", "settings", "split"]


def main() -> int:
    """Run the rivals, and write their rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TABLE", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--rivals", nargs="+", metavar="RIVAL", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument(
        "--minutes", type=float, default=0, metavar="M", help="of search for each table; 0: defaults alone"
    )
    parser.add_argument("--splits", type=int, default=1, metavar="N", help="the first N splits (default 1)")
    parser.add_argument("--weights", type=Path, help="TabPFN's file of weights")
    parser.add_argument("--again", action="store_true", help="make finished rows again")
    parser.add_argument("--folder", type=Path, default=project.ROOT / ".state" / "rivals", help="the project folder")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of rivals.csv and the page")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    whole = True
    try:
        params = run.prepare(chosen.folder, [BY_NAME[name] for name in chosen.only])
    except UserError as error:
        print(f"rivals: {error}", file=sys.stderr)
        return 2
    for table in chosen.only:
        for split in range(min(chosen.splits, params.datasets[table].splits)):
            for name in chosen.rivals:
                whole &= _one(table, split, name, params, chosen)
    if chosen.out == OUT:
        page.write(OUT)
    return 0 if whole else 1


def _one(table: str, split: int, name: str, params: Params, chosen: argparse.Namespace) -> bool:
    """Make the row of one rival on one split; return whether there is one."""
    rival = RIVALS[name]
    if "weights" in rival.config and chosen.weights:
        rival = dataclasses.replace(rival, config={**rival.config, "weights": str(chosen.weights)})
    settings = f"{chosen.minutes:g} minutes" if chosen.minutes else "default"
    path, key = chosen.out / "rivals.csv", [table, name, settings, str(split)]
    if len(_rows(path, key)[0]) and not chosen.again:
        return True
    own = run.headline_of(params, table) if name == "headline" else None
    try:
        method = own.method if own else run.method_of(rival, chosen.folder / "plugins")
        if (own and chosen.minutes) or BY_NAME[table].task not in method.tasks:
            return True
        rows = run.split(chosen.folder, table, split)
        if len(rows[0].train) > rival.most:
            told = f"{len(rows[0].train):,} rows, and {rival.most:,} is the most"
            print(f"rivals: {name} is not run on {table}: {told}")
            return True
        start, share = time.process_time(), 60 * chosen.minutes / min(chosen.splits, params.datasets[table].splits)
        found = run.trials(method, rival.config, rows[0], share, params.seed) if chosen.minutes else []
        seconds = time.process_time() - start if found else 0.0
        best = min(found, key=lambda trial: trial.nll).config if found else own or rival.config
        scored, _ = run.scored(own.key if own else f"{table}-{name}", split, method, best, rows, params)
    except (Diverged, UserError) as error:
        print(f"rivals: {table}, {name}: {error}", file=sys.stderr)
        return False
    facts = run.facts()
    row = {"table": table, "rival": name, "settings": settings, "split": split, "trials": len(found)}
    row |= {"search_seconds": seconds, "commit": facts["commit"][:8]} | scored
    print(row, dict(best) if found else "", flush=True)
    _, others = _rows(path, key)  # another process may have added rows
    parts = [part for part in (others, pd.DataFrame([row])) if len(part)]
    ordered = pd.concat(parts).reindex(columns=list(COLUMNS)).sort_values(KEY, key=_order, kind="stable")
    write_bytes(path, ordered.to_csv(index=False, float_format="%.7g").encode())
    write_bytes(path.with_suffix(".json"), (json.dumps(facts, indent=1) + "\n").encode())
    return True


def _rows(path: Path, key: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the stored row with this key, and all others."""
    stored = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=list(COLUMNS))
    mine = (stored[KEY].astype(str) == key).all(axis=1)
    return stored[mine], stored[~mine]


def _order(column: pd.Series) -> pd.Series:
    names = {"table": list(BY_NAME), "rival": list(RIVALS)}.get(str(column.name))
    return column.map(names.index) if names else column


if __name__ == "__main__":
    sys.exit(main())
