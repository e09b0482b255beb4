"""Fit and score several methods on the same folds, in this process."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from .. import evaluation, scores
from ..data.examples import Examples, Task
from ..data.tables.cells import Cells
from ..data.tables.kinds import task_of
from ..data.units import folds as of_units
from ..data.units import left_out
from ..errors import require, short
from ..fitting import FittedRuns
from ..metrics import stored, table
from ..scores import Quantity, RunScores, Score
from ..seeds import Seed, own_settings
from . import given, row_facts
from .classifier import BayesianClassifier
from .comparison import Comparison, Line
from .plan import DATASET, RandomState, root_of
from .regressor import BayesianRegressor
from .targets import targets_of, values_of, without_masks

Estimator = BayesianClassifier | BayesianRegressor
_LEVELS: Final = np.linspace(0.05, 0.95, 19)


def compare(
    X: object,
    y: object,
    methods: "Sequence[str | Estimator] | Mapping[str, str | Estimator]",
    *,
    cv: object = 5,
    task: str | None = None,
    random_state: RandomState = None,
    groups: object = None,
    dates: object = None,
    **params: Any,
) -> Comparison:
    """Compare methods by cross-validation: each is fitted and scored on the same folds.

    An upstream run of several methods, such as a trajectory, is fitted once per fold, or once for the methods that take
    one of its seeds and once for the methods that take all.

    Args:
        X, y: as in ``fit`` of :class:`.BayesianRegressor` and :class:`.BayesianClassifier`.
        methods: names of ``bdl_pipe.METHODS``, or estimators; or a mapping from names in the table to methods or
            estimators.
        cv: the number of shuffled folds, stratified for classes; or any value of scikit-learn's ``cv``.
        task: ``classification`` or ``regression``. None chooses it from the targets, as ``add`` does.
        random_state: the seed of the folds, and of the methods that are given by name.
        groups, dates: as in ``fit``, which gets their values of the training rows. A number of folds ``cv`` then means
            that many folds that divide no group, or that many windows of dates, each predicted from all earlier rows.
        params: parameters of the methods that are given by name, such as ``pace``.

    Raises:
        ValueError: the rows, the targets, a method or a parameter break a rule; or there are fewer than two folds.
    """
    given.warn_of_another_order(X, y)
    named = _named(methods)
    require(task in (None, "classification", "regression"), "task", "must be classification, regression or None", task)
    chosen = cast(Task, task) if task else _task(y)
    kind = BayesianClassifier if chosen == "classification" else BayesianRegressor
    estimators = dict[str, Estimator]()
    for name, of in named.items():
        estimators[name] = kind(of, random_state=random_state, **params) if isinstance(of, str) else clone(of)
    for name, estimator in estimators.items():
        rule = f"must be a name or a {kind.__name__}"
        require(isinstance(estimator, kind), f"methods.{name}", rule, short(estimator))
    x = given.as_table(X) if given.is_frame(X) else np.asarray(without_masks(X))
    units, ordered = row_facts.units_of(x.shape[0], groups, dates)
    pairs = _folds(x.shape[0], y, cv, chosen, random_state, units, ordered)
    folds = [(_numbers(train), _numbers(test)) for train, test in pairs]
    require(len(folds) > 1, "cv", "must be at least 2 folds", len(folds))
    if chosen == "classification":
        _require_all_classes(folds, values_of(y))
    figures, drawn = {name: list[Score]() for name in estimators}, Seed(root_of(random_state)).fold("scores")
    stated = {name: list[np.ndarray]() for name in estimators}
    for number, (train, test) in enumerate(folds):
        shared = dict[str, dict[int, FittedRuns]]()
        for name, estimator in estimators.items():
            model = clone(estimator)
            # models with an equal key fit the same rows under the same seeds
            key = repr((model.conformal, model.columns, model.random_state, model.device, model.threads))
            kept = {"dates" if ordered else "groups": None if units is None else units[train]}
            model._fit(given.taken(x, train), given.taken(y, train), shared.setdefault(key, {}), **kept)
            values, probabilities = _scored(model, given.taken(x, test), given.taken(y, test), drawn.fold(number))
            figures[name] += [Score(number, 0, of, *value) for of, value in values.items()]
            stated[name].append(probabilities)
    tables = {name: RunScores(scores.table(DATASET, name, "", values)) for name, values in figures.items()}
    ratio = float(np.mean([len(test) / len(train) for train, test in folds]))
    return Comparison(chosen, tables, {name: _line(parts, chosen) for name, parts in stated.items()}, ratio)


def _named(methods: "Sequence[str | Estimator] | Mapping[str, str | Estimator]") -> dict[str, str | Estimator]:
    if isinstance(methods, Mapping):
        named = dict(methods)
    else:
        good = isinstance(methods, Iterable) and not isinstance(methods, str)
        require(good, "methods", "must be names of methods or estimators", methods)
        names = [of if isinstance(of, str) else getattr(of, "method", short(of)) for of in methods]
        doubled = [name for name in names if names.count(name) > 1]
        require(not doubled, "methods", "must not have a method twice; give a mapping name -> estimator", doubled[:1])
        named = dict(zip(names, methods, strict=True))
    require(len(named) > 1, "methods", "must be at least 2", list(named))
    return named


def _task(y: object) -> Task:
    """Choose the task from the targets, as ``add`` does."""
    values = values_of(y)
    table = given.table_of(values.reshape(len(values), -1), [f"y{i}" for i in range(values[0].size)])
    return task_of([Cells.of(table, name, "y") for name in table.column_names])


def _folds(
    rows: int, y: object, cv: object, task: Task, random_state: RandomState, units: np.ndarray | None, ordered: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if isinstance(cv, int) and not isinstance(cv, bool):
        require(cv > 1, "cv", "must be at least 2 folds", cv)
        rng = Seed(root_of(random_state)).fold("folds")
        if units is not None:
            return left_out(of_units(units, cv, ordered=ordered, rng=rng), ordered=ordered)
        state = rng.integer() % 2**32
        kind = StratifiedKFold if task == "classification" else KFold
        cv = kind(cv, shuffle=True, random_state=state)
    labels = values_of(y)
    return check_cv(cv, labels, classifier=task == "classification").split(np.zeros((rows, 1)), labels, units)


def _numbers(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of rows, which may be given as a mask; a mask's length is not their count."""
    rows = np.asarray(rows)
    return np.flatnonzero(rows) if rows.dtype == bool else rows


def _require_all_classes(folds: Sequence[tuple[np.ndarray, np.ndarray]], labels: np.ndarray) -> None:
    for number, (train, test) in enumerate(folds):
        seen = set(labels[train].tolist())
        new = [label for label in labels[test].tolist() if label not in seen]
        rule = "must leave rows of each class for training, as StratifiedKFold does"
        require(not new, "cv", rule, f"fold {number} without class {new[0] if new else ''}")


def _scored(
    model: Estimator, x: object, y: object, drawn: Seed
) -> tuple[dict[Quantity, tuple[float, int]], np.ndarray]:
    """Score a fitted model on test rows; also return the data of its reliability line.

    Args:
        drawn: the address of the metrics' random numbers, the same for all methods.
    """
    rows, fitted = model._rows(x), model.fitted_
    classes = isinstance(model, BayesianClassifier)
    targets = model._places(y, len(rows)) if isinstance(model, BayesianClassifier) else targets_of(y, len(rows))[0]
    with own_settings(model.threads):
        predictor, test, settings = fitted.predictor(), Examples(rows, targets), evaluation.USUAL
        at = (fitted.address(), model.device)
        figures, clean = evaluation.score_all(predictor, test, settings, *at, ood={}, transfer={})
    more = table.scores(stored.of_table(clean.predictions, drawn, clean.draws))
    figures |= {Quantity(name): figure for name, figure in more.items()}
    return {**figures, Quantity("fit_seconds", "cost"): (model.fit_seconds_, 1)}, _stated(clean.predictions, classes)


def _stated(predictions: pa.Table, classes: bool) -> np.ndarray:
    """Return each row's confidence and correctness [n, 2], or the level of the central interval up to each target."""
    columns = {name: predictions[name].to_numpy().astype(np.float64) for name in predictions.column_names}
    if not classes:
        below = [column for name, column in columns.items() if name.startswith("pit")]
        return np.abs(2 * np.concatenate(below) - 1)
    probs = np.stack([column for name, column in columns.items() if name.startswith("p_")], axis=1)
    return np.stack([probs.max(1), probs.argmax(1) == columns["target"]], axis=1)


def _line(parts: Sequence[np.ndarray], task: Task) -> Line:
    values = np.concatenate(parts)
    if task == "regression":
        return Line(_LEVELS, np.array([(values <= level).mean() for level in _LEVELS]))
    count = evaluation.USUAL.calibration_bins
    bins = np.minimum((values[:, 0] * count).astype(int), count - 1)
    return Line(*(np.array([values[bins == number, column].mean() for number in np.unique(bins)]) for column in (0, 1)))
