"""Classification with any registered method, in the interface of scikit-learn's estimators.

model = BayesianClassifier().fit(X, y)
model.predict(X_new), model.predict_proba(X_new), model.predict_set(X_new, level=0.9)
"""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if

from ..conformal import class_sets, likely_classes
from ..distribution import ClassDistribution, levels_of
from ..errors import DataError, require, short
from ..predictive import Categorical
from . import given
from .base import BayesianEstimator, online
from .row_facts import weighing
from .targets import Targets, classes_of, labels_of, values_of


@final
class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """A Bayesian classifier: a registered method, with its defaults for data of this size.

    ``X`` is an array [n, column], a frame (pandas, polars, Arrow) with numbers, categories, dates and gaps, or images
    of whole numbers from 0 to 255: [n, height, width], [n, height, width, channel] or [n, channel, height, width] with
    1 or 3 channels. ``y`` are labels [n].

    Attributes:
        classes_: the sorted labels; probabilities have this order.
        method_: the name of the fitted method.
        choice_: this name, and why the method was taken.
        n_features_in_: the number of columns of ``X``.
        feature_names_in_: the names of the columns of ``X``, if they are texts.
        left_out_: column -> the reason why it is not a feature.
        remarks_: notes on the columns, one line each.
        fit_seconds_: seconds of all fits, including the upstream runs.
        fitted_: the posterior's state, a :class:`.fitted.Fitted`.
        made_from_: upstream run -> its states, see :class:`.regressor.BayesianRegressor`.
    """

    classes_: np.ndarray

    @weighing
    def fit(
        self, X: object, y: object, *, groups: object = None, dates: object = None, sample_weight: object = None
    ) -> "BayesianClassifier":
        """Fit to all rows. Early stopping is first tuned on a random 20 % of them.

        Args:
            groups: a value for each row, such as a patient. Rows of one value are never on two sides of a split of this
                fit: validation, calibration, folds. (The parameter ``groups`` calibrates the values of a column apart.)
            dates: a date or a number for each row: held-out rows are the latest. Not together with ``groups``.
            sample_weight: the weight of each row's log-likelihood, see :meth:`.regressor.BayesianRegressor.fit`.

        Raises:
            ValueError: the rows, the labels or a parameter break a rule; the message has the rule and the value.
            TypeError: ``X`` is sparse.
        """
        self._fit(X, y, groups=groups, dates=dates, weights=sample_weight)
        return self

    @available_if(online("classification"))
    def partial_fit(self, X: object, y: object, classes: object = None, *, keep: float = 1.0) -> "BayesianClassifier":
        """Learn further rows in closed form, without another fit; the first call on a new estimator is :meth:`fit`.

        Features, noise and the scales of columns stay those of ``fit``; the posterior of the last layer becomes that of
        all rows. ``g_vbll`` can do it.

        Args:
            X, y: the rows, the oldest first, in the form of ``fit``.
            classes: all classes; each needs a row in the first call. None takes those of the first call.
            keep: the weight of all earlier rows, and of the prior, after each new row, in (0, 1]; .999 halves it in 693
                rows, for data that drift.

        Raises:
            ValueError: the rows differ in form from the rows of ``fit``, ``keep`` is out of range, the method has no
                closed form, or the estimator has the parameter ``conformal``, whose promise is for the rows of ``fit``.
        """
        if classes is not None and not hasattr(self, "fitted_"):
            here, every = np.unique(values_of(y)), np.unique(values_of(classes))
            require(set(here.tolist()) == set(every.tolist()), "y", "must have each of classes", here.tolist())
        return self._partial_fit(X, y, keep)

    def predict(self, X: object) -> np.ndarray:
        """Return the most probable class of each row [n].

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        places = self.predict_proba(X).argmax(axis=1)  # before the classes, which only a fitted estimator has
        return self.classes_[places]

    def predict_proba(self, X: object) -> np.ndarray:
        """Return the class probabilities, float64 [n, class]; each row sums to 1.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        probs, _ = self._means(X)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: object) -> np.ndarray:
        """Return the natural logarithms of the class probabilities, float64 [n, class].

        They are the predictive's own, so that a probability too small for :meth:`predict_proba` has a finite one.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        logs = torch.cat([p.log_probs.double().cpu() for _, p in self._batches(X) if isinstance(p, Categorical)])
        return logs.log_softmax(-1).numpy()

    def predict_dist(self, X: object) -> ClassDistribution:
        """Return the distribution of each row's class.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: the rows differ in form from the rows of ``fit``.
        """
        predictive, rng = self._predictive(X)
        assert isinstance(predictive, Categorical)
        return ClassDistribution(predictive, rng, self.classes_)

    def score(self, X: object, y: object, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows whose most probable class is ``y``; labels may have any type that ``fit`` takes.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`.
        """
        given.warn_of_another_order(X, y)
        return float(super().score(X, labels_of(y), sample_weight))

    def predict_set(self, X: object, level: ArrayLike = 0.9, *, conformal: bool | None = None) -> np.ndarray:
        """Return each row's set of classes, bool [n, class].

        Args:
            level: the total probability of a set; each set has the fewest classes that reach it. Several in a list give
                sets [level, n, class].
            conformal: return calibrated sets, which contain the class of a new row with this probability whatever the
                posterior is (:mod:`bdl_pipe.conformal`), and may be empty. The estimator then needs the parameter
                ``conformal``. None calibrates them if the estimator has this parameter. With the parameter ``groups``
                the probability holds within each group; if a group has too few calibration rows for the level, its rows
                have all classes, or its class is in every set.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the level is not in (0, 1), or the fit has no
                calibration rows or too few for the level.
        """
        levels = levels_of(level)
        if self._is_calibrated(conformal):
            rows, numbers, learnt = self._calibrated(X, levels)
            batches = self._each_part(rows, numbers, learnt)
            parts = [[class_sets(p, learnt, each, at).cpu().numpy() for each in levels] for at, p in batches]
        else:
            parts = [[likely_classes(p, each).numpy() for each in levels] for _, p in self._batches(X)]
        sets = np.stack([np.concatenate(of_level) for of_level in zip(*parts, strict=True)])
        return sets if np.ndim(level) else sets[0]

    def sample(self, X: object, draws: int = 1) -> np.ndarray:
        """Draw a class for each row independently [draw, n]; every call returns the same draws.

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or ``draws`` is not above 0.
        """
        numbers = self._samples(X, draws)  # before the names, which only a fitted estimator has
        return self.classes_[numbers]

    def log_prob(self, X: object, y: object) -> np.ndarray:
        """Return log p(y | x) of each row, natural logarithm, float64 [n].

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or a label is not in ``classes_``.
        """
        given.warn_of_another_order(X, y)
        predictive, _ = self._predictive(X)
        places = torch.tensor(self._places(y, len(predictive.mean)), device=predictive.mean.device)
        return predictive.log_prob(places).double().cpu().numpy()

    def _places(self, y: object, rows: int) -> np.ndarray:
        """Return the indices of labels among the classes.

        Raises:
            DataError: a label is not among the classes, or the numbers of labels and rows differ.
        """
        labels = labels_of(y).reshape(-1)
        require(len(labels) == rows, "y", f"must have as many rows as X ({rows:,})", len(labels))
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        for row, label in enumerate(labels.tolist(), 1):
            if label not in places:
                raise DataError(f"y: must be classes of fit, got {short(label)} in row {row}")
        return np.array([places[label] for label in labels.tolist()], np.int64)

    def _further(self, y: object, rows: int) -> np.ndarray:
        return self._places(y, rows)

    def _targets(self, y: object, rows: int) -> Targets:
        self.classes_, labels = classes_of(y, rows)
        return Targets(labels, tuple(map(str, self.classes_.tolist())))

    def _facts(self) -> dict[str, object]:
        kind = "O" if self.classes_.dtype.kind == "O" else self.classes_.dtype.str
        return {**super()._facts(), "classes_": self.classes_.tolist(), "classes_dtype": kind}

    def _set_facts(self, facts: Mapping[str, Any]) -> None:
        super()._set_facts(facts)
        self.classes_ = np.array(facts["classes_"], dtype=facts["classes_dtype"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self._is_poor()
        return tags
