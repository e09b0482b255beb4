"""The project folder of results/your_data: the tables are added there, run, and their scores are read."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from bdl_pipe import scores
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.yaml_files import read_yaml
from pipeline import cli
from pipeline.add import FOLDER as ADDED
from pipeline.add import Request
from pipeline.core import places, provenance
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.plan import plan
from pipeline.run import pool
from pipeline.stages import report

from . import fetch
from .tables import BY_NAME, Table

MINUTES: Final = Request.minutes  # the default of ``add``
ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "plugins/tail_scores.py"
TEST: Final = (
    *("nll", "crps", "rmse", "interval_score_90", "crps_left", "crps_right", "crps_centre"),
    *("coverage_90", "width_90", "accuracy", "brier", "ece"),
)
COST: Final = ("fit_seconds", "seconds_per_1000")
COLUMNS: Final = ("table", "method", "split", "rows", *TEST, *COST)
_MADE_AT: Final = "commit.txt"
_LINKED: Final = ("src", "pipeline", "stages")  # the stages of dvc.yaml depend on these folders


def make(folder: Path) -> None:
    """Make the folder: the default params with the plugin of the scores, the graph of stages, and a DVC repository.

    Existing files are not changed, so that a stopped run can continue.
    """
    (folder / "plugins").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("tail_scores.py"), folder / PLUGIN)
    shutil.copy(ROOT / "dvc.yaml", folder)
    for name in _LINKED:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    if not (folder / "params.yaml").exists():
        text = (ROOT / "params.yaml").read_text()
        write_bytes(folder / "params.yaml", f"plugins: [{PLUGIN}]\n{text}".encode())
        write_bytes(folder / _MADE_AT, _commit().encode())
    if not (folder / ".dvc").exists():
        subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=folder, check=True)


def add(folder: Path, tables: Sequence[Table], minutes: int = MINUTES) -> None:
    """Add the tables that the folder does not have yet, each with the default rules, and remove all other data sets.

    A table that was added with other minutes is added again.

    Raises:
        UserError: a table cannot be read, ``add`` refuses it, or ``add`` takes it for another task.
    """
    for table in tables:
        path = fetch.write(table, folder / "data").relative_to(folder)
        before = _minutes(folder, table.name)
        if before not in (None, minutes):
            verb(folder, "remove", table.name)
        if before != minutes:
            words = [str(path), "--target", table.target, "--name", table.name]
            words += ["--leave-out", *table.leave_out] if table.leave_out else []
            verb(folder, "add", *words, "--minutes", str(minutes))
        task = read_yaml(folder / "params.yaml")["datasets"][table.name]["source"]["task"]
        if task != table.task:
            raise UserError(f"{table.name}: must be {table.task}, and add takes it for {task}")
    for name in read_yaml(folder / "params.yaml")["datasets"]:
        if name not in BY_NAME:
            verb(folder, "remove", name)


def _minutes(folder: Path, name: str) -> int | None:
    """Return the minutes given to ``add``, from the head of its overlay; None if the folder lacks the table."""
    path = folder / ADDED / f"{name}.yaml"
    found = re.search(r"--minutes (\d+)", path.read_text()) if path.is_file() else None
    return int(found[1]) if found else None


def run(folder: Path, jobs: int, methods: Sequence[str]) -> bool:
    """Run the stages that are out of date, of these methods or all, and return whether every one has a result.

    Raises:
        UserError: the command could not run any stage.
    """
    with contextlib.chdir(folder):
        keys = [run.key for run in load().of("student") if run.method.name in methods]
    command = [sys.executable, "-m", "pipeline", "repro", "-j", str(jobs), *(f"evaluate@{key}" for key in keys)]
    with subprocess.Popen(command, cwd=folder, env=environment()) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()  # the interrupt reaches the process, too; finished stages stay
            raise
    if code not in (0, 1):
        raise UserError(f"python -m pipeline repro ended with {code}, in {folder}")
    return code == 0


def environment() -> dict[str, str]:
    """Return the environment of a pipeline's process in a project folder."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"BDL_TRACKING": "off", **os.environ, "PYTHONPATH": path}


def gather(folder: Path, methods: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the scores of these methods or all, a row for each table, method and split, and where they come from.

    A fit without an up-to-date result has a row without scores. Scores are rounded to seven digits, as they are stored.
    """
    commits = {"commit": _commit(), "commit of the params": (folder / _MADE_AT).read_text().strip()}
    with contextlib.chdir(folder):
        params = load()
        facts = {k: v for k, v in report.facts(params, Settings.read()).items() if not k.startswith("data ")}
        stale, rows = pool.stale(plan.plan(params)), []
        for run in (run for run in params.of("student") if not methods or run.method.name in methods):
            path = places.artifact("evaluate", run.key) / "scores.parquet"
            found = scores.read(path).to_pylist() if path.is_file() and f"evaluate@{run.key}" not in stale else []
            for split in range(params.datasets[run.spec.dataset].splits):
                mine = [row for row in found if row["split"] == split]
                test = {row["metric"]: row for row in mine if row["set"] == "test"}
                cost = {row["metric"]: row for row in mine if row["set"] == "cost"}
                values = {name: test[name]["value"] for name in TEST if name in test}
                values |= {name: cost[name]["value"] for name in COST if name in cost}
                rows.append(
                    {"table": run.spec.dataset, "method": run.method.name, "split": split}
                    | {"rows": test["nll"]["n"] if test else None}
                    | {name: float(f"{value:.7g}") for name, value in values.items()}
                )
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"rows": "Int64"})
    return ordered(frame), {**facts, **commits, "cores": os.cpu_count()} | ({"methods": methods} if methods else {})


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the scores in the order of the tables, then by method and split."""
    order = {name: number for number, name in enumerate(BY_NAME)}
    return frame.sort_values(["table", "method", "split"], key=lambda c: c.map(order) if c.name == "table" else c)


def store(place: Path, frame: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Write ``scores.csv`` and ``facts.json``, which has one entry for each run.

    A table's rows in ``scores.csv`` are those of the last run that has the table, or the table and the method.
    """
    place.mkdir(parents=True, exist_ok=True)
    path, names, methods = place / "facts.json", list(dict.fromkeys(frame["table"])), facts.get("methods")
    runs = json.loads(path.read_text()) if path.is_file() else []
    if runs:
        former = pd.read_csv(place / "scores.csv").astype({"rows": "Int64"})
        replaced = former["table"].isin(names) & (former["method"].isin(methods) if methods else True)
        frame = ordered(pd.concat([former[~replaced], frame]))
    for run in runs:
        if not methods or run.get("methods") == methods:
            run["tables"] = [name for name in run["tables"] if name not in names]
    runs = [*(run for run in runs if run["tables"]), {**facts, "tables": names}]
    write_bytes(place / "scores.csv", frame.to_csv(index=False, float_format="%.7g").encode())
    write_bytes(path, (json.dumps(runs, indent=1) + "\n").encode())


def _commit() -> str:
    """Return the commit of this repository; the project folder may lie outside it."""
    with contextlib.chdir(ROOT):
        return provenance.commit()


def verb(folder: Path, *words: str) -> None:
    """Run a verb in the folder, in this process.

    Raises:
        UserError: the verb failed.
    """
    with contextlib.chdir(folder):
        code = cli.main(words)
    if code:
        raise UserError(f"python -m pipeline {' '.join(words)} ended with {code}, in {folder}")
