"""Regression with any registered method, in the interface of scikit-learn's estimators.

model = BayesianRegressor("vbll").fit(X, y)
model.predict(X_new), model.predict_interval(X_new, level=0.9)
"""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if

from ..conformal import intervals
from ..errors import require
from ..predictive import Continuous
from . import given
from .base import BayesianEstimator, online
from .targets import Targets, targets_of


@final
class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """A Bayesian regressor: a registered method, with its defaults for data of this size.

    ``X`` is an array [n, column] or a frame (pandas, polars, Arrow) with numbers, categories, dates and gaps; ``y`` are
    numbers [n] or [n, output]. :class:`.base.BayesianEstimator` documents the parameters.

    Attributes:
        n_features_in_, feature_names_in_: features of ``X``, as in scikit-learn.
        left_out_: column -> the reason why it is not a feature.
        remarks_: notes on the columns, one line each.
        fit_seconds_: seconds of all fits, including the upstream runs.
        fitted_: the posterior's state, a :class:`.fitted.Fitted`.
        made_from_: upstream run, such as a coreset -> its states, one for each seed; empty for an estimator that was
            saved and loaded.
    """

    def fit(self, X: object, y: object, *, groups: object = None, dates: object = None) -> "BayesianRegressor":
        """Fit to all rows. Early stopping is first tuned on a random 20 % of them.

        Args:
            groups: a value for each row, such as a patient. Rows of one value are never on two sides of a split of this
                fit: validation, calibration, folds. (The parameter ``groups`` calibrates the values of a column apart.)
            dates: a date or a number for each row: held-out rows are the latest. Not together with ``groups``.

        Raises:
            ValueError: the rows, the targets or a parameter break a rule; the message has the rule and the value.
            TypeError: ``X`` is sparse.
        """
        self._fit(X, y, groups=groups, dates=dates)
        return self

    @available_if(online("regression"))
    def partial_fit(self, X: object, y: object, *, keep: float = 1.0) -> "BayesianRegressor":
        """Learn further rows in closed form, without another fit; the first call on a new estimator is :meth:`fit`.

        Features, noise and the scales of columns stay those of ``fit``; the posterior of the last layer becomes that of
        all rows. ``linear``, ``map_blr``, ``gbll``, ``ldgbll``, and ``vbll`` for one target can do it.

        Args:
            X, y: the rows, the oldest first, in the form of ``fit``.
            keep: the weight of all earlier rows, and of the prior, after each new row, in (0, 1]; .999 halves it in 693
                rows, for data that drift.

        Raises:
            ValueError: the rows differ in form from the rows of ``fit``, ``keep`` is out of range, the method has no
                closed form, or the estimator has the parameter ``conformal``, whose promise is for the rows of ``fit``.
        """
        return self._partial_fit(X, y, keep)

    def predict(self, X: object) -> np.ndarray:
        """Return the predictive's mean [n], or [n, output] if ``y`` had two dimensions, float64.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        return self._shaped(np.concatenate([p.mean.double().cpu().numpy() for _, p in self._batches(X)]))

    def predict_interval(
        self, X: object, level: float = 0.9, *, conformal: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central intervals of probability ``level``, each of the shape of :meth:`predict`.

        Args:
            conformal: return calibrated intervals, which contain a new target with this probability whatever the
                posterior is (:mod:`bdl_pipe.conformal`). The estimator then needs the parameter ``conformal``. With
                several outputs, the box of their intervals contains all targets with this probability. With the
                parameter ``groups`` the probability holds within each group; the rows of a group with too few
                calibration rows for the level have infinite intervals.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the level is not in (0, 1), or the fit has no
                calibration rows or too few for the level.
        """
        require(0 < level < 1, "level", "must be in (0, 1)", level)
        ends: list[torch.Tensor | list[torch.Tensor]]
        if conformal:
            rows, numbers, learnt = self._calibrated(X, level)
            units = [self.fitted_.predictor(i).transform.own_units for i in numbers]
            batches = self._each_part(rows, numbers, learnt)
            ends = [intervals(of_parts, learnt, units, level, at).cpu() for at, of_parts in batches]
        else:
            ends = []
            for _, predictive in self._batches(X):
                assert isinstance(predictive, Continuous)
                ends.append([predictive.quantile(share).cpu() for share in ((1 - level) / 2, (1 + level) / 2)])
        low, high = (np.concatenate([pair[i].double().numpy() for pair in ends]) for i in (0, 1))
        return self._shaped(low), self._shaped(high)

    def sample(self, X: object, draws: int = 1) -> np.ndarray:
        """Draw each row's targets independently, float64 [draw, n] or [draw, n, output]; all calls return equal draws.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or ``draws`` is not above 0.
        """
        values = self._samples(X, draws)
        return values[:, :, 0] if self._flat else values

    def score(self, X: object, y: object, sample_weight: ArrayLike | None = None) -> float:
        """Return R² of the means, as scikit-learn's regressors do.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        given.warn_of_another_order(X, y)
        return float(super().score(X, y, sample_weight))

    def log_prob(self, X: object, y: object) -> np.ndarray:
        """Return log p(y | x) of each row, natural logarithm of a density in the targets' own units, float64 [n].

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the targets are not numbers of the fit's shape.
        """
        given.warn_of_another_order(X, y)
        predictive = self.predict_dist(X)
        targets, _ = targets_of(y, len(predictive.mean))
        outputs = predictive.mean.shape[1]
        require(targets.shape[1] == outputs, "y", f"must have {outputs} outputs, as in fit", targets.shape[1])
        return predictive.log_prob(torch.tensor(targets, device=predictive.mean.device)).double().cpu().numpy()

    def _targets(self, y: object, rows: int) -> Targets:
        values, dimensions = targets_of(y, rows)
        self._flat = dimensions == 1
        return Targets(values)

    def _image_targets(self, y: object, rows: int) -> Targets:
        raise ValueError("X: must be rows of columns: images have classes, for BayesianClassifier, got images")

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._flat else values

    def _further(self, y: object, rows: int) -> np.ndarray:
        values, dimensions = targets_of(y, rows)
        width = len(self.fitted_.predictor().transform.scale)  # type: ignore[arg-type]
        shape = (width, 1 if self._flat else 2)
        require(
            (values.shape[1], dimensions) == shape,
            "y",
            f"must have the form of fit, {width} numbers a row",
            values.shape,
        )
        return values

    def _facts(self) -> dict[str, object]:
        return {**super()._facts(), "flat": self._flat}

    def _set_facts(self, facts: Mapping[str, Any]) -> None:
        super()._set_facts(facts)
        self._flat = facts["flat"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
