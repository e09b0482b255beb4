"""Groups of rows that are calibrated apart: the values of a column, or the classes (:func:`.conformal.by_group`).

A group is a number: a cell of the column as rows of a fit store it, so that NaN is the group of gaps, or the index of a
class.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..data.examples import Examples
from ..data.tables.columns import UNSEEN, Column
from ..data.tables.forms import clean, listed
from ..errors import require
from ..recalibration import Recalibration
from . import conformal
from .fitted import Fitted

OF_CLASSES: Final = -1  # instead of a column's place
_CLASS: Final = "class"


def place_of(groups: Any, columns: Sequence[Column], names: Sequence[str], *, classes: bool) -> int | None:
    """Return the place of the column of groups among the columns of the fit; ``OF_CLASSES``, or None for one group.

    Args:
        groups: the parameter of the estimator: a column's name, its number among ``names``, ``class`` or None.
        columns: the columns that the fit uses.
        names: all columns of ``X``.
        classes: whether the targets are classes.

    Raises:
        ConfigError: there is no such column, or ``class`` means both a column and the classes.
    """
    if groups is None:
        return None
    known = [column.name for column in columns]
    if classes and groups == _CLASS:
        require(_CLASS not in known, "groups", "must not be class if X has a column class: rename it", groups)
        return OF_CLASSES
    number = isinstance(groups, int | np.integer) and not isinstance(groups, bool) and 0 <= groups < len(names)
    name = names[groups] if number else clean(str(groups))
    rule = f"must be a column of X that the fit uses ({listed(known)}), or class with BayesianClassifier"
    require(name in known, "groups", rule, groups)
    return known.index(name)


def of_rows(place: int, rows: Examples) -> np.ndarray:
    """Return the group of each calibration row [n]."""
    groups: np.ndarray = rows.targets if place == OF_CLASSES else rows.inputs[:, place]
    return groups


def of_answer(place: int, rows: np.ndarray, classes: int) -> np.ndarray:
    """Return the group of each raw row [n, 1], or of each class [1, class]."""
    return np.arange(classes, dtype=np.float64)[None] if place == OF_CLASSES else rows[:, [place]]


def warn_of_few(place: int, groups: np.ndarray, learnt: Sequence[Recalibration], level: float, fitted: Fitted) -> None:
    """Warn of groups with too few calibration rows for the level."""
    fewest = conformal.fewest_rows(level)
    few = [group for group in np.unique(groups).tolist() if conformal.rows_of_group(learnt, group) < fewest]
    if few:
        what = "its class is in every set" if place == OF_CLASSES else "its rows get everything"
        said = f"fewer than the {fewest} calibration rows of level {level:g}, so that {what}"
        warnings.warn(f"groups: {listed([_name(place, group, fitted) for group in few])}: {said}", stacklevel=5)


def _name(place: int, group: float, fitted: Fitted) -> str:
    if place == OF_CLASSES:
        return str(fitted.schema["classes"][int(group)])
    column = fitted.columns[place]
    if math.isnan(group):
        return "a gap"
    if column.kind != "category":
        return f"{group:g}"
    return "an unseen value" if group == UNSEEN else column.values[int(group)]
