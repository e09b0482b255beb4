"""The rows of a fit: standard splits, validation and calibration rows, and the transform fitted to them.

The stage ``prepare`` writes them to files; estimators take them in memory (:func:`fit_data`).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, short
from ..seeds import Seed
from . import scratch, units
from .catalog import published_constants
from .config import DatasetConfig
from .examples import Examples
from .fitdata import FitData
from .normalise import Scaling, fit_transform
from .raw import Raw
from .sources.images import ImageFolder
from .sources.table import Table
from .transform import Transform

FEWEST_CALIBRATION: Final = 20  # the least number of calibration rows; a conformal set at 95 % needs 19
TRAIN_SHARE: Final = 0.9  # the share of training rows of the standard UCI splits
_ROWS: Final = 20_000  # more rows are thinned evenly to this number, before targets and logarithms are compared
_RIDGE: Final = 1.0  # the penalty of each weight except the bias; columns are standardised


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
    scaled = raw.task == "regression" and config.targets != "none"
    depends = config.normalise in ("train", "robust") or config.whiten or scaled or bool(raw.columns)
    final = _transform(ordered, raw, config, scaling) if joined and depends else None
    return FitRows(apart, kept, count, search, final, joined)


def fit_data(raw: Raw, config: DatasetConfig, *, rng: Seed, split: int = 0) -> tuple[FitData, Examples | None]:
    """Return the data of a final fit on all training rows of ``raw``, in memory, as the pipeline reads them.

    Args:
        rng: the data set's seed address, as in the pipeline's stage ``prepare``.
        split: the number of the split; ``raw.train`` holds its training rows.

    Returns:
        The data, and the calibration rows or None.

    Raises:
        DataError: there are too few rows, or a target is constant.
    """
    fit = fit_rows(raw, raw.train, config, rng.fold("validation", split))
    train, validation = fit.rows.cut(fit.train)
    search = FitData(raw.task, train, validation, fit.search, raw.classes, ordered=raw.ordered)
    if not (fit.joined and len(validation)):
        return search, fit.calibration
    every, none = fit.rows.cut(len(fit.rows))
    transform = fit.final or fit.search
    data = FitData(raw.task, every, none, transform, raw.classes, search=search, ordered=raw.ordered)
    return data, fit.calibration


def schema(raw: Raw, config: DatasetConfig) -> dict[str, Any]:
    """Return the schema of new rows, for ``schema.json``."""
    source, reading = config.source, dict[str, Any]()  # how new rows are read, if not in the usual way
    if isinstance(source, ImageFolder) and source.size is not None:
        reading["resize"] = source.size
    if isinstance(source, Table) and (source.csv.decimal, source.csv.thousands) != (".", ""):
        reading["numbers"] = {"decimal": source.csv.decimal, "thousands": source.csv.thousands}
    return {
        "task": raw.task,
        "kind": raw.kind,
        "classes": list(raw.classes),
        "input_shape": list(raw.train.inputs.shape[1:]),
        "features": list(raw.features),
        "targets": list(raw.targets),
        **({"columns": [column.mapping() for column in raw.columns]} if raw.columns else {}),
        **({"ordered": True} if raw.ordered else {}),
        **reading,
        "fit_rows": config.fit_rows,
    }


def outer_splits(raw: Raw, splits: int, rng: Seed) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Draw (training rows, test rows) of each split: the standard UCI splits, or splits by group or date.

    Args:
        rng: the data set's seed address, for groups; the standard splits do not depend on it.

    Raises:
        DataError: there are too few groups or dates.
    """
    rows = raw.train
    if rows.units is None:
        return uci_splits(len(rows), splits)
    return units.splits_of(rows.units, splits, 1 - TRAIN_SHARE, raw.origin, ordered=raw.ordered, rng=rng)


def uci_splits(rows: int, splits: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the first ``splits`` standard UCI splits: (training rows, test rows), each in drawn order.

    Each split draws ``choice(n, n, replace=False)`` from one ``RandomState(1)``; the first round(0.9 n) rows are
    training rows, as in the split files of Hernández-Lobato and Adams, 2015, and Gal and Ghahramani, 2016.
    """
    state = np.random.RandomState(1)  # the published files come from this legacy generator
    orders = [state.choice(rows, rows, replace=False) for _ in range(splits)]
    train = round(TRAIN_SHARE * rows)
    return [(order[:train], order[train:]) for order in orders]


def hold_out(
    rows: int, validation: int | float, origin: str, *, rng: Seed, of: np.ndarray | None = None, ordered: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Draw (training rows, validation rows) of ``rows`` rows without replacement, each in order.

    Args:
        of, ordered: the rows' ``units``, which are not divided, and whether these are dates.

    Raises:
        DataError: fewer than two training rows are left, or there are too few groups or dates.
    """
    count = round(validation * rows) if isinstance(validation, float) else validation
    if rows - count < 2:
        raise DataError(f"{origin}: validation must leave at least 2 of {rows} training rows, got {count}")
    if of is not None and count:
        return units.held(of, count, origin, ordered=ordered, rng=rng)
    order = rng.numpy().permutation(rows)
    return np.sort(order[count:]), np.sort(order[:count])


def drawn(raw: Raw, rows: Examples, config: DatasetConfig, rng: Seed) -> tuple[Examples | None, Examples, int]:
    """Return a split's (calibration rows or None, training rows followed by validation rows, number of training rows).

    Raises:
        DataError: there are too few rows.
    """
    apart = None
    if config.calibration:
        rest, taken = hold_out(
            len(rows), config.calibration, raw.origin, rng=rng.fold("calibration"), of=rows.units, ordered=raw.ordered
        )
        if len(taken) < FEWEST_CALIBRATION:
            rule = f"must be 0 or at least {FEWEST_CALIBRATION} rows"
            raise DataError(f"{raw.origin}: calibration {rule}, got {len(taken)} of {len(rows)} training rows")
        apart, rows = take(rows, taken), take(rows, rest)
    train, validation = hold_out(len(rows), config.validation, raw.origin, rng=rng, of=rows.units, ordered=raw.ordered)
    if rows.units is not None:
        _require_trained(raw, rows, train)
    return apart, take(rows, np.concatenate([train, validation])), len(train)


def _require_trained(raw: Raw, rows: Examples, train: np.ndarray) -> None:
    """Raise DataError unless the training rows have two units and every class, as random ones of a good table do."""
    assert rows.units is not None
    what = "dates" if raw.ordered else "groups"
    if len(np.unique(rows.units[train])) < 2:
        raise DataError(f"{raw.origin}: split_by must leave at least 2 {what} of training rows, got 1")
    absent = [label for label in range(len(raw.classes)) if not (rows.targets[train] == label).any()]
    if absent:
        rule = "must leave training rows of each class"
        raise DataError(f"{raw.origin}: split_by {rule}, got none of {short(raw.classes[absent[0]])}")


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
    of, weights = (None if values is None else values[index] for values in (rows.units, rows.weights))
    return Examples(scratch.taken(rows.inputs, index), scratch.taken(rows.targets, index), of, weights)


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


def logarithms_fit_better(
    transformed: Callable[[np.ndarray], Float[Tensor, "row column"]], inputs: np.ndarray, targets: np.ndarray
) -> bool:
    """Return True if logarithms raise the leave-one-out log density of ridge regression by more than a standard error.

    Its leave-one-out residuals have a closed form: e_i/(1 − h_i), where e are the residuals and h is the diagonal of
    Φ(ΦᵀΦ + Λ)⁻¹Φᵀ (Hastie, Tibshirani & Friedman 2009, section 7.10). If s² is the mean square of the leave-one-out
    residuals r_i, a left-out target has the log density −½ log(2πs²) − r_i²/(2s²). Subtracting log y turns a log
    density of log y into a log density of y. The error is that of the mean over rows. A smaller gain leaves the targets
    as they are, since a mean that is an exponential depends on the noise. Only the training rows of a split are used.

    Args:
        transformed: raw training rows -> network inputs.
        inputs: the raw training rows.
        targets: the targets of these rows, > 0, in original units [row, output].
    """
    chosen = np.unique(np.linspace(0, len(targets) - 1, _ROWS).round().astype(int))
    rows, values = transformed(inputs[chosen]).double().numpy(), targets[chosen]
    logs = np.log(values)
    gain = left_out_densities(rows, logs) - logs.sum(1) - left_out_densities(rows, values)
    return bool(gain.mean() > gain.std() / math.sqrt(len(gain)))


def left_out_densities(
    rows: Float[np.ndarray, "row column"], targets: Float[np.ndarray, "row output"]
) -> Float[np.ndarray, " row"]:
    """Return the log density of each left-out row's targets; outputs are independent."""
    phi = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    ridge = np.full(phi.shape[1], _RIDGE)
    ridge[-1] = 1e-8  # the bias has a tiny penalty, so that the matrix of one row has an inverse
    inverse = np.linalg.inv(phi.T @ phi + np.diag(ridge))
    leverage = np.einsum("nd,de,ne->n", phi, inverse, phi)
    residuals = (targets - phi @ (inverse @ (phi.T @ targets))) / np.maximum(1 - leverage, 1e-12)[:, None]
    square = np.maximum((residuals**2).mean(axis=0), np.finfo(float).tiny)
    return -0.5 * (np.log(2 * math.pi * square) + residuals**2 / square).sum(1)
