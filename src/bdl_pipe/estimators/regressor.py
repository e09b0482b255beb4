"""Regression with any registered method, in the interface of scikit-learn's estimators.

model = BayesianRegressor().fit(X, y)
model.predict(X_new), model.predict_interval(X_new, level=0.9)
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, final, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if

from ..conformal import intervals
from ..distribution import NumberDistribution, levels_of
from ..errors import require
from ..predictive import Continuous
from . import given
from .base import BayesianEstimator, online
from .row_facts import weighing
from .targets import Targets, targets_of


@final
class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """A Bayesian regressor: a registered method, with its defaults for data of this size.

    ``X`` is an array [n, column] or a frame (pandas, polars, Arrow) with numbers, categories, dates and gaps; ``y`` are
    numbers [n] or [n, output].

    Attributes:
        method_: the name of the fitted method.
        choice_: this name, and why the method was taken.
        n_features_in_: the number of columns of ``X``.
        feature_names_in_: the names of the columns of ``X``, if they are texts.
        left_out_: column -> the reason why it is not a feature.
        remarks_: notes on the columns, one line each.
        fit_seconds_: seconds of all fits, including the upstream runs.
        fitted_: the posterior's state, a :class:`.fitted.Fitted`.
        made_from_: upstream run, such as a coreset -> its states, one for each seed; empty for an estimator that was
            saved and loaded.
    """

    @weighing
    def fit(
        self, X: object, y: object, *, groups: object = None, dates: object = None, sample_weight: object = None
    ) -> "BayesianRegressor":
        """Fit to all rows. Early stopping is first tuned on a random 20 % of them.

        Args:
            groups: a value for each row, such as a patient. Rows of one value are never on two sides of a split of this
                fit: validation, calibration, folds. (The parameter ``groups`` calibrates the values of a column apart.)
            dates: a date or a number for each row: held-out rows are the latest. Not together with ``groups``.
            sample_weight: the weight of each row's log-likelihood, >= 0 [n]. A weight of 2 counts as two equal rows;
                rows of weight 0 are left out. Only for methods whose loss weighs rows. The scales of columns and of
                targets, and conformal calibration, do not use the weights.

        Raises:
            ValueError: the rows, the targets or a parameter break a rule; the message has the rule and the value.
            TypeError: ``X`` is sparse.
        """
        self._fit(X, y, groups=groups, dates=dates, weights=sample_weight)
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

    @overload
    def predict(self, X: object, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: object, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: object, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the predictive's mean [n], or [n, output] if ``y`` had two dimensions, float64.

        Args:
            return_std: also return the standard deviation of a new target, noise included, of the same shape.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        mean, std = self._means(X, std=bool(return_std))
        return (self._shaped(mean), self._shaped(std)) if return_std else self._shaped(mean)

    def predict_dist(self, X: object) -> NumberDistribution:
        """Return the distribution of each row's target, in the targets' own units.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: the rows differ in form from the rows of ``fit``.
        """
        predictive, rng = self._predictive(X)
        assert isinstance(predictive, Continuous)
        return NumberDistribution(predictive, rng, self._flat)

    def predict_quantile(self, X: object, level: ArrayLike = 0.5) -> np.ndarray:
        """Return the quantiles of the predictive, of the shape of :meth:`predict`; several levels give [level, …].

        They are the posterior's own, also of an estimator with ``conformal``, which calibrates intervals.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or a level is not in (0, 1).
        """
        levels = levels_of(level)
        parts = [[p.quantile(each).cpu().numpy() for each in levels] for p in self._continuous(X)]
        values = np.stack([self._shaped(np.concatenate(of_level)) for of_level in zip(*parts, strict=True)])
        return values if np.ndim(level) else values[0]

    def _continuous(self, X: object) -> Iterator[Continuous]:
        for _, predictive in self._batches(X):
            assert isinstance(predictive, Continuous)
            yield predictive

    def predict_interval(
        self, X: object, level: ArrayLike = 0.9, *, conformal: bool | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central intervals of probability ``level``, each of the shape of :meth:`predict`.

        Args:
            level: the probability; several in a list give ends [level, …].
            conformal: return calibrated intervals, which contain a new target with this probability whatever the
                posterior is (:mod:`bdl_pipe.conformal`). The estimator then needs the parameter ``conformal``. None
                calibrates them if the estimator has this parameter; False returns the posterior's own. With several
                outputs, the box of their intervals contains all targets with this probability. With the
                parameter ``groups`` the probability holds within each group; the rows of a group with too few
                calibration rows for the level have infinite intervals.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the level is not in (0, 1), or the fit has no
                calibration rows or too few for the level.
        """
        levels = levels_of(level)
        if self._is_calibrated(conformal):
            rows, numbers, learnt = self._calibrated(X, levels)
            units = [self.fitted_.predictor(i).transform.own_units for i in numbers]
            batches = self._each_part(rows, numbers, learnt)
            parts = [[intervals(p, learnt, units, each, at).cpu() for each in levels] for at, p in batches]
        else:
            ends = [((1 - each) / 2, (1 + each) / 2) for each in levels]
            parts = [
                [torch.stack([p.quantile(low), p.quantile(high)]).cpu() for low, high in ends]
                for p in self._continuous(X)
            ]
        every = torch.stack([torch.cat(of_level, 1) for of_level in zip(*parts, strict=True)]).double().numpy()
        low, high = (np.stack([self._shaped(pair[end]) for pair in every]) for end in (0, 1))
        return (low, high) if np.ndim(level) else (low[0], high[0])

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
        predictive, _ = self._predictive(X)
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
        tags.regressor_tags.poor_score = self._is_poor()
        return tags
