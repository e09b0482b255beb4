"""Coresets of tables: NLL of ``vbpc_regression`` with 20, 50 and 100 rows beside the same network fitted to all rows.

    pip install 'bdl-pipe[tables]'
    python -m benchmarks.coreset_tables              # --sizes 50, --tables wage, --minutes 20; goes on where it stopped

The tables are the regressions of results/your_data with 300 to 10,000 rows, read as ``add`` reads them, on their first
three standard splits. Five fits have one network, a perceptron of 256 units:

- ``full``: ``map_blr`` on all training rows, with the training that ``add`` writes for it (a weight decay of 5 below
  10,000 rows) and one noise variance;
- ``plain``: the same with the training that ``add`` writes for most networks (a weight decay of .1). It was added after
  nine tables had shown no coreset of 50 rows above the full fit: a full fit that is too smooth would be no bar;
- ``vbpc``: the rows that ``vbpc_regression`` distils from the training rows, 300 steps;
- ``random`` and ``kmeans``: training rows, drawn or nearest to the centres of a k-means of the inputs, with ρ, γ and σ²
  learned from all training rows (``learns: scales``), 150 steps.

A student gets only the coreset. Test rows are scored once, by the last posterior of each fit. The settings were chosen
on rows of seven tables (diabetes, salaries, saratogahouses, houseprices, wage, gestation, budgetitaly) that are in no
test part of the three splits.

Rules, written before the first test row was scored: the figure of a table is the mean over splits of the NLL in nats,
in the targets' own units. A difference is paired by split and has the error of Nadeau and Bengio (2003). A coreset is
*within* .05 nats of the full fit if the mean difference is at most .05, and this is *established* if it is so with the
error added; it is established to be *farther* if the difference less its error is above .05.

A row is added to results/vbpc/regression.csv after each fit; ``python -m website.results`` writes the page.
"""

import argparse
import csv
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.size import Size
from bdl_pipe.data.split_rows import fit_data, take, uci_splits
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Kind
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from benchmarks import stored_rows
from pipeline.core import provenance
from pipeline.core.records import device_name

from .your_data import fetch
from .your_data.tables import TABLES, Table

OUT: Final = Path("results/vbpc")
SPLITS: Final = 3
SIZES: Final = (50, 20, 100)  # in the order in which they are fitted
CORESETS: Final = ("vbpc", "random", "kmeans")
FULL: Final = ("full", "plain")  # fits to all rows
FEWEST, MOST = 300, 10_000
NETWORK: Final = {"name": "mlp", "hidden": [256]}
BATCH: Final = 256
CHANGES: Final[Mapping[str, dict[str, Any]]] = {  # these values replace defaults of ``vbpc_regression``
    "vbpc": {"coreset": {"steps": 300}},
    "random": {"coreset": {"steps": 150, "lr": 0.1}, "learns": "scales"},
    "kmeans": {"coreset": {"steps": 150, "lr": 0.1, "start": "kmeans"}, "learns": "scales"},
}
COLUMNS: Final = ("table", "split", "fit", "rows", "train", "test", "nll", "rmse", "seconds", "commit")


class Fit(NamedTuple):
    """A fit of one split of one table; ``rows`` is the number of coreset rows, 0 for all training rows."""

    table: str
    split: int
    name: str
    rows: int


def main() -> None:
    """Run the fits that are not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("work/coreset_tables"), help="for the tables' CSV files")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--tables", nargs="+", default=[table.name for table in tables()])
    parser.add_argument("--fits", nargs="*", default=CORESETS, choices=CORESETS)
    parser.add_argument("--minutes", type=float, default=math.inf)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    commit = provenance.commit()  # this process has read the code of this commit
    until, stored = time.monotonic() + 60 * chosen.minutes, done(OUT / "regression.csv")
    digests = {}
    for table in tables():
        digests[table.name] = hashlib.sha256(fetch.write(table, chosen.folder).read_bytes()).hexdigest()[:12]
    facts = {"device": device_name("cpu"), "torch": torch.__version__, "data": digests, "settings": settings()}
    write_bytes(OUT / "regression.json", (json.dumps(facts, indent=1) + "\n").encode())
    for size in chosen.sizes:
        for table in (table for table in tables() if table.name in chosen.tables):
            fits = [
                fit
                for split in range(SPLITS)
                for fit in fits_of(table.name, split, size, chosen.fits)
                if fit not in stored
            ]
            profile = profile_of(table, chosen.folder) if fits else None
            for fit in fits:
                if time.monotonic() > until:
                    return
                assert profile is not None
                row = measured(fit, profile, commit)
                add(OUT / "regression.csv", row)
                stored.add(fit)
                print(f"{fit.table} split {fit.split} {fit.name} {fit.rows or ''}: NLL {row['nll']}", flush=True)


def tables() -> list[Table]:
    """Return the tables in the order of the list."""
    return [table for table in TABLES if table.task == "regression" and FEWEST <= table.rows < MOST]


def fits_of(table: str, split: int, size: int, names: Sequence[str]) -> Iterator[Fit]:
    """Yield the fits to all rows, and the coresets of one size."""
    yield from (Fit(table, split, name, 0) for name in FULL)
    yield from (Fit(table, split, name, size) for name in names)


def profile_of(table: Table, folder: Path) -> Profile:
    """Inspect a table, as ``add`` does."""
    return inspect_table(fetch.write(table, folder), [table.target], "regression", list(table.leave_out))


def split_of(profile: Profile, split: int, rng: Seed) -> tuple[FitData, Examples]:
    """Return the data of a final fit on the training rows of a split, and the test rows."""
    raw, size = profile.raw, profile.size()
    train, test = uci_splits(len(raw.train), SPLITS)[split]
    read = config.read(DatasetConfig, size.dataset(profile.dataset()), "datasets.table")
    data, _ = fit_data(replace(raw, train=take(raw.train, train)), read, rng=rng, split=split)
    return data, take(raw.train, test)


def measured(fit: Fit, profile: Profile, commit: str) -> dict[str, Any]:
    """Fit, and return a row of the table of scores."""
    rng = Seed(0).fold("coreset tables", fit.table, fit.split)
    data, test = split_of(profile, fit.split, rng.fold("prepare"))
    start = time.process_time()
    state = fitted(fit, data, profile.size(), rng.fold(fit.name, fit.rows))
    seconds = time.process_time() - start
    predictor = Predictor(posterior_of(state), data.transform)
    predictive, targets = predictor.predict(test.inputs, rng=rng.fold("predict")), torch.from_numpy(test.targets)
    nll = float(-predictive.log_prob(targets).mean())
    rmse = float((predictive.mean - targets).square().mean().sqrt())
    counts = {"train": len(data.train), "test": len(test)}
    scores = {"nll": f"{nll:.5f}", "rmse": f"{rmse:.6g}", "seconds": f"{seconds:.2f}"}
    about = {"table": fit.table, "split": fit.split, "fit": fit.name, "rows": fit.rows}
    return about | counts | scores | {"commit": commit}


def fitted(fit: Fit, data: FitData, size: Size, rng: Seed) -> State:
    """Return the state of a posterior."""
    if fit.name in FULL:
        section = map_blr(size) | ({} if fit.name == "full" else {"training": size.training()})
        return made("map_blr", "student", data, section, {}, rng)
    section = coreset(fit.name, min(BATCH, len(data.train)), fit.rows)
    distilled = made("vbpc_regression", "coreset", data, section, {}, rng.fold("coreset"))
    return made("vbpc_regression", "student", data, section, {"coreset": [distilled]}, rng.fold("student"))


def made(
    name: str, kind: Kind, data: FitData, section: dict[str, Any], inputs: dict[str, list[State]], rng: Seed
) -> State:
    method = METHODS[name]
    read = config.read(method.config, section, f"methods.{name}")
    return method.stages[kind].fit_one(data, inputs, read, rng=rng, report=Silent())


def map_blr(size: Size) -> dict[str, Any]:
    """Return the hyperparameters that ``add`` writes, with this network and one noise."""
    method = METHODS["map_blr"]
    assert method.default is not None
    section = config.merge(method.settings, method.default.override(size))
    return section | {"network": dict(NETWORK), "noise": "one"}


def coreset(name: str, batch: int, rows: int) -> dict[str, Any]:
    """Return the hyperparameters of a coreset and its student."""
    base = config.merge(METHODS["vbpc_regression"].settings, CHANGES[name])
    return config.merge(base, {"rows": rows, "network": dict(NETWORK), "coreset": {"batch": batch}})


def settings() -> dict[str, Any]:
    """Return the settings of the coresets, for the page."""
    return {name: coreset(name, BATCH, 50) for name in CORESETS}


def done(path: Path) -> set[Fit]:
    """Return the fits of which the table has a row."""
    return {Fit(row["table"], int(row["split"]), row["fit"], int(row["rows"])) for row in stored_rows.read(path)}


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the table of scores."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
