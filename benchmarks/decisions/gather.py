"""The curves of ``work/decide`` as the tables of results/decisions, with their origin."""

import json
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from bdl_pipe.files import write_bytes
from pipeline.core import provenance
from pipeline.core.load import load
from pipeline.core.records import device_name

KEYS: Final = ["decision", "agent", "metric"]


def store(work: Path, place: Path, device: str | None = None) -> None:
    """Write ``curves.csv`` (mean and error over seeds), ``scores.csv`` (the last of each seed) and ``facts.json``.

    Decisions without a result are left out, and named in ``facts.json``.

    Args:
        device: the machine that made the runs. None: this one.
    """
    params = load()
    done = [key for key in params.decisions if (work / key / "curves.parquet").is_file()]
    frame = pd.concat([pd.read_parquet(work / key / "curves.parquet") for key in done], ignore_index=True)
    ends = frame.sort_values("round").groupby([*KEYS, "seed"], sort=False).tail(1)
    _write(place / "scores.csv", ends.sort_values([*KEYS, "seed"])[["decision", "agent", "metric", "seed", "value"]])
    grouped = frame.groupby([*KEYS, "round"])["value"]
    curves = grouped.agg(mean="mean", error=lambda v: v.std(ddof=1) / np.sqrt(len(v)), seeds="count").reset_index()
    _write(place / "curves.csv", curves)
    facts = {
        "commit": provenance.commit(),
        "device": device or device_name("cpu"),
        "root": params.seed,
        "missing": [key for key in params.decisions if key not in done],
        "tasks": {key: params.raw["decisions"][key]["task"] for key in done},
        "seeds": {key: params.decisions[key].seeds for key in done},
    }
    write_bytes(place / "facts.json", (json.dumps(facts, indent=1) + "\n").encode())


def _write(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, frame.to_csv(index=False, float_format="%.5g").encode())
