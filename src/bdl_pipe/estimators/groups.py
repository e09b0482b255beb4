"""Groups of rows that are calibrated apart: the values of a column, or the classes (:mod:`bdl_pipe.conformal`).

A group is a number: a cell of the column as rows of a fit store it, so that NaN is the group of gaps, or the index of a
class.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .. import conformal
from ..conformal import OF_CLASSES
from ..data.tables.columns import UNSEEN, Column
from ..data.tables.forms import clean, listed
from ..errors import require
from ..recalibration import Recalibration
from .fitted import Fitted

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


def warn_of_few(learnt: Sequence[Recalibration], rows: np.ndarray, level: float, fitted: Fitted) -> None:
    """Warn of groups of raw rows, or of classes, with too few calibration rows for the level."""
    place, fewest = learnt[0].grouped_by, conformal.fewest_rows(level)
    if place is None:
        return
    groups = np.unique(conformal.groups_of(place, rows, len(fitted.schema["classes"]))).tolist()
    few = [g for g in groups if sum(len(conformal.rows_of_group(each, g)) for each in learnt) < fewest]
    if few:
        what = "its class is in every set" if place == OF_CLASSES else "its rows get everything"
        rule = f"fewer than the {fewest} calibration rows of level {level:g}, so that {what}"
        warnings.warn(f"groups: {listed([_name(place, group, fitted) for group in few])}: {rule}", stacklevel=4)


def _name(place: int, group: float, fitted: Fitted) -> str:
    if place == OF_CLASSES:
        return str(fitted.schema["classes"][int(group)])
    column = fitted.columns[place]
    if math.isnan(group):
        return "a gap"
    if column.kind != "category":
        return f"{group:g}"
    return "an unseen value" if group == UNSEEN else column.values[int(group)]
