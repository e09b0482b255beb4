"""Seconds and memory of a table's preparation and of a fit, against its rows.

    python -m benchmarks.large_table --rows 200000 2000000 20000000 --to results/large_table.md

The script writes a Parquet file of 20 columns of numbers, prepares it as ``make repro`` would, and fits a perceptron to
it for an epoch; each step runs in its own process. Memory is the memory that a process itself allocates (anonymous
pages, sampled) beyond its memory after the imports; pages of mapped files do not count, since the system may drop them.
The last two columns are the same fit with all rows transformed in memory, as small tables are fitted.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

COLUMNS: Final = 20
BATCH: Final = 1024
HIDDEN: Final = [128, 128]
_CHUNK: Final = 500_000
_EVERY: Final = 0.02  # seconds between samples


@dataclass
class Used:
    """The cost of a block: its seconds, and the bytes at its peak beyond the bytes at its start."""

    seconds: float = 0.0
    peak: int = 0


@contextmanager
def watched() -> Iterator[Used]:
    """Time a block, and sample the memory that the process allocates."""
    used, over, start = Used(), threading.Event(), anonymous()

    def sample() -> None:
        while not over.wait(_EVERY):
            used.peak = max(used.peak, anonymous() - start)

    thread, began = threading.Thread(target=sample), time.perf_counter()
    thread.start()
    try:
        yield used
    finally:
        used.seconds = time.perf_counter() - began
        over.set()
        thread.join()


def anonymous() -> int:
    """Return the bytes of anonymous pages of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status has no RssAnon")


def write(path: Path, rows: int) -> None:
    """Write a regression table of ``rows`` rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, names, writer = np.random.default_rng(0), [f"x{i}" for i in range(COLUMNS)], None
    weights = random.normal(size=(COLUMNS, 8)) / COLUMNS**0.5
    for start in range(0, rows, _CHUNK):
        inputs = random.normal(size=(min(_CHUNK, rows - start), COLUMNS))
        targets = np.tanh(inputs @ weights).sum(1) + 0.3 * random.normal(size=len(inputs))
        table = pa.table({**dict(zip(names, inputs.T, strict=True)), "y": targets})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def prepare(folder: Path) -> Used:
    """Prepare the table in ``folder``."""
    from bdl_pipe import artifacts
    from bdl_pipe.config import read
    from bdl_pipe.data.config import DatasetConfig
    from bdl_pipe.seeds import Seed
    from pipeline.prepared import preparation as made

    source = {"name": "table", "path": str(folder / "t.parquet"), "target": ["y"], "task": "regression"}
    section = {"source": source, "normalise": "robust", "whiten": False, "validation": 0.1, "splits": 1, "ood": []}
    section |= {"fit_rows": "train_and_validation", "corrupted_images": 0, "corruptions": "made"}
    config = read(DatasetConfig, section, "datasets.t")
    with (
        watched() as used,
        artifacts.publish(folder / "fit", "prepare", about={}) as fit,
        artifacts.publish(folder / "held", "holdout", about={}) as held,
    ):
        made.prepare("t", {"t": config}, fit, held, rng=Seed(0))
    return used


def fit(folder: Path, held: bool) -> Used:
    """Fit a perceptron to the prepared table, for an epoch."""
    import torch

    from bdl_pipe.config import read
    from bdl_pipe.data import fitdata
    from bdl_pipe.progress import Silent
    from bdl_pipe.seeds import Seed
    from bdl_pipe.trajectory.sgd import SGD
    from pipeline.prepared import folders

    torch.set_num_threads(1)
    if held:
        fitdata.HELD.update(table=2**60)
    optimiser = {"name": "adamw", "lr": 5e-3, "schedule": "one_cycle", "warmup": 0.3, "weight_decay": 0.01}
    section = {"network": {"name": "mlp", "hidden": HIDDEN}, "epochs": 1, "snapshots": 1, "batch": BATCH}
    config = read(SGD.config, {**section, "optimiser": optimiser}, "methods.sgd")
    with watched() as used:
        data = folders.load_fit(folder / "fit", 0, final=True)
        SGD.stages["trajectory"].fit_one(data, {}, config, rng=Seed(0), report=Silent())
    return used


def main() -> None:
    """Measure each number of rows, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--held-up-to", type=int, default=2_000_000, metavar="N", help="also with all rows in memory")
    parser.add_argument("--to", type=Path, help="write the page there")
    parser.add_argument("--part", choices=("prepare", "fit", "held"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        used = prepare(args.folder) if args.part == "prepare" else fit(args.folder, args.part == "held")
        print(used.seconds, used.peak)
        return
    lines = ["| rows | table | prepare | memory | fit, an epoch | memory | all rows in memory | memory |"]
    lines.append("| ---: " * 8 + "|")
    for rows in args.rows:
        with tempfile.TemporaryDirectory(prefix="bdl-large-") as name:
            folder = Path(name)
            write(folder / "t.parquet", rows)
            parts = ["prepare", "fit", *(["held"] if rows <= args.held_up_to else [])]
            found = [_measured(part, folder) for part in parts]
        cells = [f"{used.seconds:.1f} s | {used.peak / 1e6:.0f} MB" for used in found] + ["| "] * (3 - len(found))
        lines.append(f"| {rows:,} | {8 * (COLUMNS + 1) * rows / 1e6:.0f} MB | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if args.to:
        from pipeline.core.provenance import commit
        from pipeline.core.records import device_name

        about = f"Commit {commit()}, {device_name('cpu')}, one thread."
        args.to.write_text("\n".join(["# Large tables", "", __doc__.strip(), "", *lines, "", about]) + "\n")


def _measured(part: str, folder: Path) -> Used:
    command = [sys.executable, "-m", "benchmarks.large_table", "--part", part, "--folder", str(folder)]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Used(float(seconds), int(peak))


if __name__ == "__main__":
    main()
