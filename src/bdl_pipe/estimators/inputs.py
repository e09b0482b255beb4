"""``X`` of an estimator: the rows of a fit, and new rows in the same form."""

from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ..data.inspect.profile import Profile
from ..data.raw import FEWEST_ROWS
from ..data.tables.forms import clean
from ..errors import DataError, short
from . import given
from .fitted import Fitted
from .targets import Targets, without_masks

_AS_IT_IS: Final[dict[str, Any]] = {"dtype": None, "ensure_all_finite": False, "allow_nd": True}


class TakesRows(BaseEstimator):
    """An estimator that takes an array, a frame or images.

    Attributes:
        columns: the parameter of :class:`.base.BayesianEstimator`.
        fitted_: the fit, whose form new rows must have.
    """

    columns: Any
    fitted_: Fitted

    def _profile(self, x: Any, y: Any) -> tuple[Profile, list[str]]:
        """Return the description of the rows, and the names of all columns of a table."""
        given.warn_of_another_order(x, y, 6)
        x, is_frame = self._validated(x, reset=True, ensure_min_samples=FEWEST_ROWS)
        if not is_frame and x.ndim > 2:
            return given.image_profile(given.images_of(x), self._image_targets(y, len(x))), []
        table, numbers = given.table_of(x), not is_frame and x.dtype.kind in "biuf"
        if table.num_rows < FEWEST_ROWS:
            raise ValueError(f"X: must have at least {FEWEST_ROWS} samples, got {table.num_rows} sample(s)")
        kinds = None if self.columns is None else {clean(str(name)): kind for name, kind in self.columns.items()}
        targets = self._targets(y, table.num_rows)
        return given.table_profile(table, targets, kinds, numbers=numbers), table.column_names

    def _validated(self, x: Any, **rules: Any) -> tuple[Any, bool]:
        """Return ``X`` as a frame or an array, after scikit-learn's checks, and whether it is a frame."""
        x = without_masks(x)
        if not given.is_frame(x):
            return validate_data(self, x, **rules, **_AS_IT_IS), False
        x = given.as_table(x)
        validate_data(self, x, reset=rules["reset"], skip_check_array=True)
        return x, True

    def _targets(self, y: Any, rows: int) -> Targets:
        raise NotImplementedError

    def _image_targets(self, y: Any, rows: int) -> Targets:
        return self._targets(y, rows)

    def _rows(self, x: Any) -> np.ndarray:
        """Return new rows in the form of the fit's rows."""
        check_is_fitted(self, "fitted_")
        schema = self.fitted_.schema
        if schema["kind"] == "image":
            x = without_masks(x)
            if given.is_frame(x) or np.ndim(x) < 3:
                raise ValueError(f"X: must be images, as in fit, got {short(type(x).__name__)} {list(np.shape(x))}")
            return given.images_of(check_array(x, **_AS_IT_IS), schema["input_shape"])
        x, is_frame = self._validated(x, reset=False)
        if is_frame and x.shape[0] == 0:
            raise ValueError("X: must have at least 1 row, got 0 sample(s)")
        if not is_frame and x.ndim > 2:
            raise ValueError(f"X: must be rows of columns, as in fit, got an array {list(x.shape)}")
        x = self._in_order(x, schema["names"]) if is_frame else x
        return given.rows_of(given.table_of(x, schema["names"]), self.fitted_.columns)

    def _in_order(self, x: Any, names: list[str]) -> Any:
        """Return a frame with its columns in the fit's order; scikit-learn compares names only if all are texts."""
        own = [clean(str(name)) for name in (x.columns if hasattr(x, "iloc") else x.column_names)]
        if own == names:
            return x
        if sorted(own) == sorted(names):
            places = [own.index(name) for name in names]
            return x.iloc[:, places] if hasattr(x, "iloc") else x.select(places)
        of_array = names == [f"x{number}" for number in range(len(names))]
        unnamed = hasattr(x, "iloc") and not any(isinstance(name, str) for name in x.columns)
        if unnamed and not of_array and not hasattr(self, "feature_names_in_"):
            found = short(", ".join(own))
            raise DataError(f"X: must have the columns of fit by name, {short(', '.join(names))}, got {found}")
        return x
