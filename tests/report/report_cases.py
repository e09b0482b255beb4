"""Synthetic results as the other stages write them: eight methods on images, four on regression."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from bdl_pipe import artifacts, scores
from bdl_pipe.artifacts import State
from bdl_pipe.scores import Quantity, Score
from bdl_report import ChainsInfo, CoresetInfo, RunInfo

NOISES = "gaussian_noise shot_noise impulse_noise speckle_noise gaussian_blur defocus_blur glass_blur motion_blur"
REST = "snow frost fog spatter brightness contrast saturate elastic_transform pixelate jpeg_compression"
CORRUPTIONS = f"{NOISES} zoom_blur {REST}".split()
# method, setting, seeds, accuracy, nll, ece, fit seconds, per 1000, bytes
IMAGES = [
    ("deterministic", "small", 3, 0.915, 0.241, 0.012, 26.0, 0.11, 33_000),
    ("ensemble", "small", 1, 0.922, 0.223, 0.009, 78.0, 0.33, 99_000),
    ("vbpc", "ipc1", 5, 0.694, 0.93, 0.045, 118.0, 0.05, 210_000),
    ("vbpc", "ipc10", 5, 0.812, 0.56, 0.031, 131.0, 0.05, 211_000),
    ("random_coreset", "ipc1", 5, 0.52, 1.52, 0.09, 0.4, 0.05, 210_000),
    ("random_coreset", "ipc10", 5, 0.71, 0.95, 0.07, 0.5, 0.05, 211_000),
    ("sgld", "small", 1, 0.868, 0.38, 0.02, 95.0, 1.9, 31_000_000),
    ("dark_knowledge", "small", 1, 0.861, 0.40, 0.018, 140.0, 0.02, 800_000),
]
CHAINS = ChainsInfo(
    {"rhat_prediction": 1.3125, "ess_prediction": 41.0, "ess_tail_prediction": 20.0, "noise_worst": 260.0},
    {"log-likelihood": [[-3.0, -2.0], [-2.5, -2.75]]},
)
ROWS = [("deterministic", 3.4, 2.9), ("ensemble", 3.2, 2.7), ("sgld", 3.0, 2.55), ("dark_knowledge", 3.05, 2.6)]


def image_scores(case: tuple, rng: np.random.Generator, *, corrupted: bool = True) -> list[Score]:
    _, _, seeds, accuracy, nll, ece, seconds, per_1000, size = case
    scores = []
    for seed in range(seeds):
        a, b = accuracy + rng.normal(0, 0.003), nll + rng.normal(0, 0.006)
        for metric, value in [("accuracy", a), ("nll", b), ("brier", 1.45 * (1 - a)), ("ece", ece)]:
            scores.append(Score(0, seed, Quantity(metric), value, 10_000))
        for i, name in enumerate(CORRUPTIONS if corrupted else []):
            for level in range(1, 6):
                loss = 0.02 * level * (0.5 + i / 8)
                for metric, value in (("accuracy", max(a - loss, 0.1)), ("nll", b + 5 * loss)):
                    scores.append(Score(0, seed, Quantity(metric, "corrupted", name, level), value, 1000))
        for name, base in [("mnist5k", 0.66), ("digits", 0.74)]:
            for by in ["max_prob", "mutual_information"][: 1 if case[0] == "deterministic" else 2]:
                areas = {"auroc": base, "aupr_in": base + 0.1, "aupr_out": base - 0.1, "fpr95": 0.8}
                for metric, value in areas.items():
                    of = Quantity(metric, "ood", name, score=by)
                    scores.append(Score(0, seed, of, value + rng.normal(0, 0.01), 15_000))
        costs = {"parameters": size / 4, "bytes": size, "seconds_per_1000": per_1000}
        costs |= {"fit_seconds": seconds * (1 + 0.02 * seed), "peak_bytes": 6.1e8}
        scores += [Score(0, seed, Quantity(metric, "cost"), value, 1) for metric, value in costs.items()]
    return scores


def row_scores(case: tuple, rng: np.random.Generator) -> list[Score]:
    _, rmse, nll = case
    scores = []
    costs = {"parameters": 1500.0, "bytes": 6000.0, "seconds_per_1000": 0.004, "fit_seconds": 3.1, "peak_bytes": 3e8}
    for split in range(5):
        for metric, value in [("rmse", rmse + rng.normal(0, 0.5)), ("nll", nll + rng.normal(0, 0.15))]:
            scores.append(Score(split, 0, Quantity(metric), value, 51))
        scores += [Score(split, 0, Quantity(metric, "cost"), value, 1) for metric, value in costs.items()]
    return scores


def bins(case: tuple, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for seed in range(case[2]):
        counts = rng.multinomial(10_000, np.linspace(0.1, 1, 15) ** 4 / (np.linspace(0.1, 1, 15) ** 4).sum())
        counts[0] = 0
        for i, count in enumerate(counts):
            middle = (i + 0.5) / 15
            accuracy = float(np.clip(middle - case[5] * 2 + rng.normal(0, 0.01), 0, 1)) if count else np.nan
            rows.append((0, seed, i, i / 15, (i + 1) / 15, count, middle if count else np.nan, accuracy))
    return pd.DataFrame(rows, columns=list(scores.CALIBRATION))


def write_run(root: Path, dataset: str, method: str, setting: str, figures: list[Score], **more: object) -> RunInfo:
    """An evaluate artifact; ``more``: tables beside the scores, and further fields of the ``RunInfo``."""
    key = f"{dataset}-{method}-{setting}"
    stored = {name: more.pop(name, None) for name in ("calibration", "same_class")}
    with artifacts.publish(root / "evaluate" / key, "evaluate") as folder:
        pq.write_table(scores.table(dataset, method, setting, figures), folder / "scores.parquet")
        for name, table in stored.items():
            if isinstance(table, pd.DataFrame):
                table.to_parquet(folder / f"{name}.parquet")
    return RunInfo(key, dataset, method, setting, root / "evaluate" / key, **more)  # type: ignore[arg-type]


def of_values(values: Mapping[Any, Any], *, splits: bool = False, rows: int = 9) -> list[Score]:
    """Scores of metrics or quantities: of one fit, or of several seeds or splits, whose values are a list."""
    runs = []
    for of, each in values.items():
        for number, value in enumerate(each if isinstance(each, list) else [each]):
            split, seed = (number, 0) if splits else (0, number)
            runs.append(Score(split, seed, of if isinstance(of, Quantity) else Quantity(of), value, rows))
    return runs


def write_coreset(root: Path, key: str, per_class: int) -> CoresetInfo:
    """A coreset artifact of ten classes, of random images and soft labels."""
    rng, top = np.random.default_rng(per_class), np.tile(np.arange(10), per_class)
    labels = np.eye(10)[top] * 0.9 + rng.uniform(0, 0.1, (len(top), 10))
    images = rng.uniform(size=(len(top), 1, 28, 28))
    tensors = {name: torch.tensor(values).float() for name, values in (("raw", images), ("labels", labels))}
    with artifacts.publish(root / "coreset" / key, "coreset") as folder:
        artifacts.write_state(folder / "0-0", State(tensors))
    return CoresetInfo(key, "fashion_mnist", key.split("-")[1], root / "coreset" / key, per_class)


def everything(root: Path) -> list[RunInfo]:
    """A whole comparison, as the default params make it."""
    rng = np.random.default_rng(0)
    runs = []
    for case in IMAGES:
        warnings = ("split R-hat of the mean log-likelihood is 1.21 (> 1.1)",) if case[0] == "sgld" else ()
        figures, more = image_scores(case, rng), {"calibration": bins(case, rng), "warnings": warnings}
        if case[0] == "vbpc":
            more["coreset"] = write_coreset(root, f"fashion_mnist-vbpc-{case[1]}", int(case[1].removeprefix("ipc")))
        if case[0] in ("sgld", "dark_knowledge"):
            more["chains"] = {"fashion_mnist-chains": CHAINS}
        runs.append(write_run(root, "fashion_mnist", case[0], case[1], figures, **more))
    for row in ROWS:
        runs.append(write_run(root, "boston", row[0], "small", row_scores(row, rng)))
    return runs


def scores_of_step(accuracies: list[float]) -> list[Score]:
    """One accuracy per seed, and an NLL that follows from it."""
    return of_values({"accuracy": accuracies, "nll": [2 * (1 - a) for a in accuracies]})
