"""results/your_data: methods by the protocols of ScoringBench and TabArena, on the tables of both that packages ship.

    python -m benchmarks.protocols scoringbench --methods constant linear boosting multi_swag
    python -m benchmarks.protocols tabarena --only credit-g diabetes --folds 1

Each table is first compared with its published description. A method may be a rival of ``benchmarks.rivals``, at its
defaults. Finished rows are not made again, so that a stopped command continues.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from benchmarks.rivals import run
from benchmarks.your_data import page, project

from . import scoringbench, tabarena, tables

OUT = project.ROOT / "results" / "your_data"


def main() -> int:
    """Run a protocol, and write its rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=("scoringbench", "tabarena"))
    parser.add_argument("--only", nargs="+", metavar="TABLE", help="only these tables")
    parser.add_argument("--methods", nargs="+", metavar="M", default=["constant", "linear", "boosting", "multi_swag"])
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="the first N folds")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the rows and the page")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    path, commit = chosen.out / f"{chosen.protocol}.csv", run.facts()["commit"][:8]
    for name, table in tables.of(chosen.protocol).items():
        if chosen.only and name not in chosen.only:
            continue
        try:
            frame = tables.read(table)
        except UserError as error:
            print(f"protocols: {error}", file=sys.stderr)
            return 2
        for method in chosen.methods:
            former = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["table", "method", "fold"])
            if ((former["table"] == name) & (former["method"] == method)).sum() >= chosen.folds:
                continue
            kept = former[~((former["table"] == name) & (former["method"] == method))]
            if chosen.protocol == "scoringbench":
                rows = scoringbench.run(frame, table.target, [method], chosen.folds)
            else:
                rows = tabarena.run(frame, table.target, table.task, [method], chosen.folds)
            if not rows:  # the method has no such task
                continue
            made = pd.DataFrame([{"table": name, **row, "commit": commit} for row in rows])
            print(made.mean(numeric_only=True).to_dict(), name, method, flush=True)
            whole = pd.concat([part for part in (kept, made) if len(part)])
            ordered = whole.sort_values(["table", "method", "fold"], kind="stable")
            write_bytes(path, ordered.to_csv(index=False, float_format="%.7g").encode())
    if chosen.out == OUT:
        page.write(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
