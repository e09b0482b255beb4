"""Sections of the page results/your_data: rivals that other packages fit, and the protocols of others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from benchmarks import written
from benchmarks.protocols import scoringbench, tables
from benchmarks.rivals.settings import RIVALS

from . import judged, shown

_SCORES: Final = {
    "nll": "NLL",
    "crps": "CRPS",
    "crls": "CRLS",
    "interval_score_90": "Interval score",
    "wcrps_left": "Weighted, left",
    "wcrps_right": "Weighted, right",
    "wcrps_center": "Weighted, centre",
    "rmse": "RMSE",
}


def read(place: Path) -> dict[str, Any]:
    """Read the files of rivals and protocols that a folder has, and the facts of the rivals' run as ``run``."""
    names = ("rivals", "worst", "scoringbench", "tabarena")
    files: dict[str, Any] = {
        name: pd.read_csv(place / f"{name}.csv") for name in names if (place / f"{name}.csv").is_file()
    }
    path = place / "rivals.json"
    return files | ({"run": json.loads(path.read_text())} if path.is_file() else {})


def sections(files: Mapping[str, Any]) -> list[str]:
    """Return the sections of the files that there are."""
    parts = list[str]()
    if "rivals" in files:
        parts += [
            "## Rivals that other packages fit",
            _RIVALS,
            *_rivals(files["rivals"], files.get("worst")),
            _run(files.get("run")),
        ]
    if "scoringbench" in files:
        parts += ["## The protocol of ScoringBench", _SCORINGBENCH, *_protocol(files["scoringbench"])]
    if "tabarena" in files:
        parts += ["## The errors of TabArena", _TABARENA, _errors(files["tabarena"]), _published()]
    return parts


_RIVALS: Final = (
    "Packages that people install, on the splits, with the recalibration and by the scores of all other methods, one "
    "thread each: `python -m benchmarks.rivals`. Validation rows choose; test rows are only scored. A category has its "
    "20 most frequent values, as for every method here. An empty cell was not run. TabPFN has no row: it needs weights."
)
_FURTHER: Final = "Larger tables, which the rule did not choose, and splits that the headline does not have."
_SCORINGBENCH: Final = (
    "Its five folds with seed 42, of at most 3,000 rows, its encoding of categories as whole numbers, and its scores, "
    "of the predictive itself in place of a histogram: `python -m benchmarks.protocols scoringbench`. Its leaderboard "
    "has other methods, whose figures on these folds are in its own files and not here; its remaining tables need "
    "OpenML. Below are the means over folds, and mean ranks over pairs of a table and a fold."
)
_TABARENA: Final = (
    "RMSE, 1 − ROC AUC (two classes) or log loss, on three folds: `python -m benchmarks.protocols tabarena`. Its own "
    "folds are files of OpenML and not here, so these figures have its metric and its rows, not its splits. Its "
    "methods are tuned for hours, and ours have the estimators' defaults. Lower is better."
)


def _rivals(rivals: pd.DataFrame, worst: pd.DataFrame | None) -> list[str]:
    """Return the judgement, and the rows of rivals that it does not have."""
    names = [name for name in RIVALS if name in set(rivals["rival"])]
    listed = written.table(["Rival", ""], [[f"`{name}`", RIVALS[name].about] for name in names])
    rest = rivals.drop(index=judged.labelled(rivals).index)
    lines = [
        [row.table, f"`{row.rival}`", row.split, f"{row.nll:.3f}", shown.small(row.crps), row.commit]
        for row in rest.itertuples()
    ]
    others = written.table(["Table", "Rival, at its defaults", "Split", "NLL", "CRPS", "Commit"], lines)
    return [listed, *judged.sections(rivals, worst), *(["### Further rows", _FURTHER, others] if lines else [])]


def _run(about: Mapping[str, Any] | None) -> str:
    """Return the facts of the run as a sentence."""
    if about is None:
        return ""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return (
        f"Commit of the last rows: {about['commit'][:8]}; {about['device']}, threads of a fit: "
        f"{about['threads of a fit']}; {packages}. Other programs ran on the same cores: a fit takes a little less "
        "of the processor on an idle machine."
    )


def _protocol(frame: pd.DataFrame) -> list[str]:
    rows = []
    for (table, method), mine in frame.groupby(["table", "method"], sort=False):
        means = [f"{mine[score].mean():.4g}" for score in _SCORES]
        rows.append([table, method, len(mine), *means, f"{100 * mine['coverage_90'].mean():.1f}"])
    parts = [written.table(["Table", "Method", "Folds", *_SCORES.values(), "Coverage %"], rows)]
    if frame["method"].nunique() > 1:
        ranks = {score: scoringbench.ranked(frame, score) for score in _SCORES}
        first = ranks["crps"]
        told = (
            f"Mean ranks over {first.datasets} pairs. Methods that differ by less than {first.critical:.1f} are not "
            "distinguishable (Nemenyi, at 5 %), and folds of one table are not independent, so that this is too "
            "small."
        )
        lines = [[method, *(f"{found.means[method]:.1f}" for found in ranks.values())] for method in first.means]
        parts += [told, written.table(["Method", *_SCORES.values()], lines)]
    return [*parts, _published("scoringbench")]


def _errors(frame: pd.DataFrame) -> str:
    wide = frame.groupby(["table", "method"], sort=False)["error"].mean().unstack("method")
    folds, of = frame.groupby("table")["fold"].nunique(), tables.of("tabarena")
    kinds = {"regression": "RMSE", "binary": "1 − ROC AUC", "multiclass": "log loss"}
    rows = [[table, kinds[of[str(table)].task], folds[table], *map(shown.small, row)] for table, row in wide.iterrows()]
    return written.table(["Table", "Error", "Folds", *map(str, wide.columns)], rows)


def _published(protocol: str = "tabarena") -> str:
    rows = []
    for table in tables.of(protocol).values():
        figures = ", ".join(f"{name} {value:.6g}" for name, value in table.published.items())
        rows.append([table.name, " ".join(table.source), figures, "; ".join(table.differs.values()) or "nothing"])
    return written.table(["Its table", "Ours", "Its description", "What differs"], rows)
