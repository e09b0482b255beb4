"""The rows of a fit: standard splits, validation and calibration rows, and the transform fitted to them.

The stage ``prepare`` writes them to files; estimators take them in memory (:func:`fit_data`).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import DataError
from ..seeds import Seed
from . import scratch
from .catalog import published_constants
from .config import DatasetConfig
from .examples import Examples
from .fitdata import FitData
from .normalise import Scaling, fit_transform
from .raw import Raw, Source
from .sources.images import ImageFolder
from .sources.table import Table
from .target_scale import logarithms_fit_better
from .transform import Transform

FEWEST_CALIBRATION: Final = 20  # the least number of calibration rows; a conformal set at 95 % needs 19
TRAIN_SHARE: Final = 0.9  # the share of training rows of the standard UCI splits


@dataclass(frozen=True)
class FitRows:
    """The rows of a split for fits, with their transforms.

    Attributes:
        rows: the training rows, followed by the validation rows.
        train: the number of training rows.
        search: the transform fitted only to the training rows.
        final: the transform fitted to all ``rows``, if a final fit uses all ``rows`` and the transform differs.
        joined: whether a final fit uses validation rows.
    """

    calibration: Examples | None
    rows: Examples
    train: int
    search: Transform
    final: Transform | None
    joined: bool


def fit_rows(raw: Raw, rows: Examples, config: DatasetConfig, rng: Seed) -> FitRows:
    apart, ordered, trained = drawn(raw, rows, config, rng)
    searched, validation = ordered.cut(trained)
    new = config.increment.new(len(raw.classes)) if config.increment else None
    kept, count = of_classes(ordered, new, raw, "training rows"), len(of_classes(searched, new, raw, "training rows"))
    scaling = _scaling(searched, raw, config)  # both fits use one scaling, so that their units are equal
    search = _transform(searched, raw, config, scaling)
    joined = config.fit_rows == "train_and_validation" and len(validation) > 0
    final = _transform(ordered, raw, config, scaling) if joined and _fitted(config, raw) else None
    return FitRows(apart, kept, count, search, final, joined)


def fit_data(raw: Raw, config: DatasetConfig, *, rng: Seed, split: int = 0) -> tuple[FitData, Examples | None]:
    """Return the data of a final fit on all training rows of ``raw``, in memory, like ``prepared.load_fit``.

    Args:
        rng: the data set's seed address, as in :func:`.prepare.prepare`.
        split: the number of the split; ``raw.train`` holds its training rows.

    Returns:
        The data, and the calibration rows or None.

    Raises:
        DataError: there are too few rows, or a target is constant.
    """
    made = fit_rows(raw, raw.train, config, rng.fold("validation", split))
    train, validation = made.rows.cut(made.train)
    search = FitData(raw.task, train, validation, made.search, raw.classes)
    if not (made.joined and len(validation)):
        return search, made.calibration
    every, none = made.rows.cut(len(made.rows))
    return FitData(raw.task, every, none, made.final or made.search, raw.classes, search=search), made.calibration


def schema(raw: Raw, config: DatasetConfig) -> dict[str, Any]:
    """Return the schema of new rows, for ``schema.json``."""
    return {
        "task": raw.task,
        "kind": raw.kind,
        "classes": list(raw.classes),
        "input_shape": list(raw.train.inputs.shape[1:]),
        "features": list(raw.features),
        "targets": list(raw.targets),
        **({"columns": [column.mapping() for column in raw.columns]} if raw.columns else {}),
        **_resize(config.source),
        **_numbers(config.source),
        "fit_rows": config.fit_rows,
    }


def uci_splits(rows: int, splits: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the first ``splits`` standard UCI splits: (training rows, test rows), each in drawn order.

    Each split draws ``choice(n, n, replace=False)`` from one ``RandomState(1)``; the first round(0.9 n) rows are
    training rows, as in the split files of Hernández-Lobato and Adams, 2015, and Gal and Ghahramani, 2016.
    """
    state = np.random.RandomState(1)  # the published files come from this legacy generator
    orders = [state.choice(rows, rows, replace=False) for _ in range(splits)]
    train = round(TRAIN_SHARE * rows)
    return [(order[:train], order[train:]) for order in orders]


def hold_out(rows: int, validation: int | float, origin: str, *, rng: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Draw (training rows, validation rows) of ``rows`` rows without replacement, each in order.

    Raises:
        DataError: fewer than two training rows are left.
    """
    count = round(validation * rows) if isinstance(validation, float) else validation
    if rows - count < 2:
        raise DataError(f"{origin}: validation must leave at least 2 of {rows} training rows, got {count}")
    order = rng.numpy().permutation(rows)
    return np.sort(order[count:]), np.sort(order[:count])


def drawn(raw: Raw, rows: Examples, config: DatasetConfig, rng: Seed) -> tuple[Examples | None, Examples, int]:
    """Return a split's (calibration rows or None, training rows followed by validation rows, number of training rows).

    Raises:
        DataError: there are too few rows.
    """
    apart = None
    if config.calibration:
        rest, taken = hold_out(len(rows), config.calibration, raw.origin, rng=rng.fold("calibration"))
        if len(taken) < FEWEST_CALIBRATION:
            rule = f"must be 0 or at least {FEWEST_CALIBRATION} rows"
            raise DataError(f"{raw.origin}: calibration {rule}, got {len(taken)} of {len(rows)} training rows")
        apart, rows = take(rows, taken), take(rows, rest)
    train, validation = hold_out(len(rows), config.validation, raw.origin, rng=rng)
    return apart, take(rows, np.concatenate([train, validation])), len(train)


def of_classes(rows: Examples, classes: list[int] | None, raw: Raw, what: str) -> Examples:
    """Return the rows of these classes, in order; all rows if ``classes`` is None.

    Raises:
        DataError: a class has no rows.
    """
    if classes is None:
        return rows
    for label in classes:
        if not (rows.targets == label).any():
            raise DataError(f"{raw.origin}: must have {what} of the class {raw.classes[label]} (increment), got none")
    return take(rows, np.flatnonzero(np.isin(rows.targets, classes)))


def take(rows: Examples, index: np.ndarray) -> Examples:
    return Examples(scratch.taken(rows.inputs, index), scratch.taken(rows.targets, index))


def _fitted(config: DatasetConfig, raw: Raw) -> bool:
    """Return whether the transform depends on the rows."""
    scaled = raw.task == "regression" and config.targets != "none"
    return config.normalise in ("train", "robust") or config.whiten or scaled or bool(raw.columns)


def _scaling(rows: Examples, raw: Raw, config: DatasetConfig) -> Scaling:
    """Return the scaling of a split's targets; ``rows`` are the training rows of a search.

    Logarithms are allowed only if every target of the data is positive, so that no test row has density 0.
    """
    if config.targets != "auto":
        return config.targets
    if not (raw.train.targets > 0).all():
        return "standardise"
    inputs = _transform(rows, raw, config, "standardise").inputs
    return "log" if logarithms_fit_better(inputs, rows.inputs, rows.targets) else "standardise"


def _transform(rows: Examples, raw: Raw, config: DatasetConfig, scaling: Scaling) -> Transform:
    return fit_transform(
        rows.inputs,
        rows.targets,
        kind=raw.kind,
        normalise=config.normalise,
        whiten=config.whiten,
        columns=raw.columns,
        published=published_constants(config.source),
        scaling=scaling,
        origin=raw.origin,
    )


def _resize(source: Source) -> dict[str, Any]:
    """Return the size to which new images are resized, if the set's images were resized."""
    if not isinstance(source, ImageFolder) or source.size is None:
        return {}
    return {"resize": source.size}


def _numbers(source: Source) -> dict[str, Any]:
    """Return how numbers are written in a CSV file, if not with a decimal point alone: new rows are read like it."""
    if not isinstance(source, Table) or (source.csv.decimal, source.csv.thousands) == (".", ""):
        return {}
    return {"numbers": {"decimal": source.csv.decimal, "thousands": source.csv.thousands}}
