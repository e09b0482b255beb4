"""The evaluations of the same fits on a GPU and on a CPU: how far every score is from the other's.

    BDL_DEVICE=cuda BDL_EXECUTOR=inline BDL_TRACKING=off python -m benchmarks.gpu.stages OUT --evaluate
    python -m benchmarks.gpu.same_fits gather OUT/scores.parquet            # there: all scores of work/evaluate
    python -m benchmarks.gpu.same_fits compare scores.parquet WORK COMMIT   # here: beside WORK/evaluate of a CPU

``compare`` writes results/gpu/same_fits.csv: for each run and set of rows the number of scores, the largest difference
and its score. Costs are left out.
"""

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

OUT: Final = Path("results/gpu/same_fits.csv")
AT: Final = ["run", "split", "seed", "metric", "set", "name", "severity", "score"]


def main() -> None:
    what = sys.argv[1:]
    if what[:1] == ["gather"] and len(what) == 2:
        pq.write_table(gather(Path("work")), what[1])
    elif what[:1] == ["compare"] and len(what) == 4:
        there, here = pq.read_table(what[1]).to_pandas(), gather(Path(what[2])).to_pandas()
        compare(there, here, what[3]).to_csv(OUT, index=False, float_format="%.3g", lineterminator="\n")
    else:
        sys.exit(__doc__)


def gather(work: Path) -> pa.Table:
    """Return the scores of all runs, with their keys."""
    parts = []
    for path in sorted((work / "evaluate").glob("*/scores.parquet")):
        table = pq.read_table(path)
        parts.append(table.append_column("run", pa.array([path.parent.name] * len(table))))
    return pa.concat_tables(parts)


def compare(there: pd.DataFrame, here: pd.DataFrame, commit: str) -> pd.DataFrame:
    """Return the largest difference |a − b| / max(1, |b|) of each run and set of rows, and its score."""
    both = there[[*AT, "value"]].merge(here[[*AT, "value"]], on=AT, how="left", suffixes=("", "_cpu"))
    both = both[both["set"] != "cost"]
    both["difference"] = (both["value"] - both["value_cpu"]).abs() / np.maximum(1, both["value_cpu"].abs())
    rows = []
    for (run, of), part in both.groupby(["run", "set"], sort=True):
        worst = part.loc[part["difference"].idxmax()] if part["difference"].notna().any() else part.iloc[0]
        missing = int(part["value_cpu"].isna().sum())
        where = " ".join(
            str(worst[k]) for k in ("metric", "name", "severity", "score") if pd.notna(worst[k]) and worst[k]
        )
        rows.append(
            (commit, run, of, len(part), missing, worst["difference"], where, worst["value"], worst["value_cpu"])
        )
    return pd.DataFrame(
        rows, columns=["commit", "run", "set", "scores", "not on the CPU", "difference", "of", "GPU", "CPU"]
    )


if __name__ == "__main__":
    main()
