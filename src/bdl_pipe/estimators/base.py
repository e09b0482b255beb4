"""The common base of both estimators: parameters, a fit from rows in memory, further rows, and a saved estimator."""

import copy
import json
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from .. import config, logged_artifact, offers
from ..artifacts import State
from ..data.config import DatasetConfig
from ..data.split_rows import schema
from ..data.tables.columns import ColumnKind
from ..errors import ArtifactError, DataError, require, short
from ..fitting import FittedRuns, address
from ..method import Task
from ..posterior_protocols import OnlinePosterior
from ..registry import METHODS
from ..seeds import own_settings
from .fitted import Fitted, fit_parts, place_of
from .plan import AUTO, DATASET, RandomState, about, check_parameters, is_number, known, plan, root_of
from .predicts import Predicts
from .row_facts import units_of, with_weight

T = TypeVar("T", bound="BayesianEstimator")


def online(task: Task) -> Callable[["BayesianEstimator"], bool]:
    """Return whether an estimator's method learns further rows in closed form, for ``available_if``.

    Raises:
        AttributeError: it does not, or there is no such method.
    """

    def check(estimator: "BayesianEstimator") -> bool:
        name = getattr(estimator, "method_", estimator.method)
        if name in METHODS and task in METHODS[name].online:
            return True
        can = ", ".join(name for name in METHODS if task in METHODS[name].online)
        raise AttributeError(f"{name} cannot learn further rows in closed form ({can} can): call fit with all rows")

    return check


_SPLIT_SHARE: Final = 0.2  # share of the rows that split conformal leaves out


class BayesianEstimator(Predicts):
    """A registered method behind ``fit`` and ``predict``.

    Args:
        method: a name of ``bdl_pipe.METHODS``; plugins add names. ``auto`` chooses by the rows; ``choice_`` says why.
        override: hyperparameters that replace the method's, as in ``override`` of a run in ``params.yaml``.
            scikit-learn's searches set one hyperparameter as ``override__training__epochs``.
        made_from: the upstream run of the method: its key (``sgd``, ``iterates``, ``sgmcmc``, ``vbpc``, …), another
            method, or ``data`` for the data alone. None means the choice of ``python -m pipeline add``.
        upstream: key or method of an upstream run -> hyperparameters that replace that run's own.
        columns: name of a column of a frame -> ``number``, ``category`` or ``date``, to correct the inspection.
        conformal: ``split`` calibrates intervals or sets on a fifth of the rows, which are left out of the fit.
            ``cross`` calibrates them on all rows, with five further fits. ``predict_interval`` and ``predict_set`` then
            are calibrated by default. None calibrates nothing.
        groups: a column of ``X``, by its name or its number: its values are groups of rows, each of which is calibrated
            by its own rows, so that calibrated intervals and sets contain the targets of each group with the level's
            probability. ``class`` does so for the classes. None means one group.
        pace: the factor that scales the number of steps of every fit.
        minutes: a limit of the fit's time on this machine: the result then depends on the machine. None sets no limit.
        random_state: the root seed of all random numbers. None means 0. A NumPy generator draws the root seed.
        device: the torch device of fits and predictions.
        threads: the number of torch's threads in fits and predictions; it may change the last bits. None keeps torch's
            setting.
    """

    method_: str
    choice_: str
    n_features_in_: int
    feature_names_in_: np.ndarray
    left_out_: dict[str, str]
    remarks_: list[str]
    fit_seconds_: float
    made_from_: dict[str, list[State]]

    def __init_subclass__(cls, **rest: Any) -> None:
        """Describe the parameters in the subclass's docstring, where ``help`` looks for them."""
        super().__init_subclass__(**rest)
        _, args, described = (BayesianEstimator.__doc__ or "").partition("Args:")  # empty under python -OO
        before, attributes, after = (cls.__doc__ or "").partition("Attributes:")
        if args and attributes:
            cls.__doc__ = f"{before}{args}{described.rstrip()}\n\n    {attributes}{after}"

    def __init__(
        self,
        method: str = "auto",
        *,
        override: Mapping[str, object] | None = None,
        made_from: str | None = None,
        upstream: Mapping[str, Mapping[str, object]] | None = None,
        columns: Mapping[str, ColumnKind] | None = None,
        conformal: Literal["split", "cross"] | None = None,
        groups: str | int | None = None,
        pace: float = 1.0,
        minutes: float | None = None,
        random_state: RandomState = None,
        device: str = "cpu",
        threads: int | None = 1,
    ) -> None:
        """Store the parameters unchanged; ``fit`` checks them, as in scikit-learn's estimators."""
        self.method = method
        self.override = override
        self.made_from = made_from
        self.upstream = upstream
        self.columns = columns
        self.conformal = conformal
        self.groups = groups
        self.pace = pace
        self.minutes = minutes
        self.random_state = random_state
        self.device = device
        self.threads = threads

    def set_params(self: T, **params: Any) -> T:
        """Set parameters; ``override__training__epochs`` sets one hyperparameter and keeps the others."""
        nested = {key: params.pop(key) for key in list(params) if key.startswith("override__")}
        if nested:
            changes = copy.deepcopy(dict(params.pop("override", self.override) or {}))
            for key, value in nested.items():
                *path, last = key.split("__")[1:]
                section = changes
                for name in path:
                    section = section.setdefault(name, {})
                section[last] = value
            params["override"] = changes
        super().set_params(**params)
        return self

    def _fit(
        self,
        x: object,
        y: object,
        fitted: dict[int, FittedRuns] | None = None,
        *,
        groups: object = None,
        dates: object = None,
        weights: object = None,
    ) -> None:
        """Fit the method; an estimator whose fit fails stays as it was.

        Args:
            fitted: split -> runs that were already fitted on the same rows.
        """
        before = dict(vars(self))
        try:
            self._fit_rows(x, y, {} if fitted is None else fitted, groups, dates, weights)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit_rows(
        self, x: object, y: object, fitted: dict[int, FittedRuns], groups: object, dates: object, weights: object
    ) -> None:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        check_parameters(self)
        if weights is not None:
            x, y, groups, dates, weights = with_weight(x, y, groups, dates, weights)
            self._targets(y, len(weights))  # before the number of rows: the rows that are left may have one class
        profile, names = self._profile(x, y)
        raw, classes = profile.raw, profile.raw.task == "classification"
        units, ordered = units_of(len(raw.train), groups, dates)
        of_rows = None if weights is None else np.asarray(weights)
        raw = replace(raw, train=replace(raw.train, units=units, weights=of_rows), ordered=ordered)
        grouped_by = place_of(self.groups, profile.raw.columns, names, classes=classes)
        seed = root_of(self.random_state)
        share = _SPLIT_SHARE if self.conformal == "split" else 0.0
        # all rows but the share that no fit uses are training rows
        size = replace(profile.size(share), has_test=True, pace=float(self.pace))
        method, self.choice_ = self.method, f"{self.method}: named by the parameter method"
        if method == AUTO:
            chosen, why = offers.automatic(size, weighted=weights is not None)
            method, self.choice_ = chosen.name, f"{chosen.name}: {why}"
        self.method_ = method
        if self.minutes is not None:
            timing = offers.timing([known(method, size.task)], size, 60 * float(self.minutes), splits=1)
            size = replace(size, pace=size.pace * min(timing.paces.values(), default=1.0))
        runs = plan(method, size, override=self.override, made_from=self.made_from, upstream=self.upstream)
        entry = size.dataset(profile.dataset(), splits=1)
        typed = config.read(DatasetConfig, entry, "data")
        with own_settings(self.threads):
            parts, self.fit_seconds_ = fit_parts(
                raw,
                typed,
                runs,
                seed,
                cross=self.conformal == "cross",
                grouped_by=grouped_by,
                device=self.device,
                fitted=fitted,
            )
        self.made_from_ = {
            run.key.removeprefix(f"{DATASET}-"): fitted[0][address(runs[:number], seed)][0]
            for number, run in enumerate(runs[:-1], 1)
        }
        facts = {**schema(profile.raw, typed), "names": names}
        self.fitted_ = Fitted(parts, about(runs, method, seed), facts, self.device)
        self.left_out_ = dict(profile.left_out)
        self.remarks_ = list(profile.remarks)

    def _partial_fit(self: T, X: object, y: object, keep: float) -> T:
        """Learn further rows; see :meth:`.regressor.BayesianRegressor.partial_fit`."""
        if not hasattr(self, "fitted_"):
            return self.fit(X, y)
        require(is_number(keep) and 0 < keep <= 1, "keep", "must be in (0, 1]", keep)
        require(self.conformal is None, "conformal", "must be None for partial_fit", self.conformal)
        predictor = self.fitted_.predictor()
        assert isinstance(predictor.posterior, OnlinePosterior), self.method_
        rows = self._rows(X)
        inputs, targets = predictor.transform.rows(rows, self._further(y, len(rows)), self.device)
        if not bool(torch.isfinite(targets).all()):
            raise DataError("y: must be > 0, since fit took logarithms of its targets")
        with own_settings(self.threads):
            state = predictor.posterior.learnt(inputs, targets, keep=keep)
        part = replace(self.fitted_.parts[0], posterior=state)
        self.fitted_ = Fitted([part], self.fitted_.about, self.fitted_.schema, self.device)
        return self

    @abstractmethod
    def _further(self, y: object, rows: int) -> np.ndarray:
        """Return targets as in ``fit``: numbers [n, output], or indices of classes [n]."""

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to the folder ``path``; ``bdl_pipe.load_predictor`` also reads it.

        Raises:
            NotFittedError: ``fit`` was not called.
            TypeError: JSON cannot represent a parameter.
        """
        check_is_fitted(self, "fitted_")
        params = {**self.get_params(deep=False), "random_state": self.fitted_.about["seed"]}
        entries = {"estimator": type(self).__name__, "params": params, "fitted": self._facts()}
        self.fitted_.save(Path(path), json.loads(json.dumps(entries)))

    def log_model(self, name: str = "model", **options: Any) -> Any:
        """Log the fitted estimator to MLflow as a pyfunc model, and return MLflow's description of it.

        The model loads :meth:`save`'s folder and no pickle. It takes rows with the fitted columns and answers with the
        columns of ``python -m pipeline predict``; the parameter ``conformal="split"`` adds ``conformal_lower`` and
        ``conformal_upper``, ``cross`` adds nothing.

        Args:
            name: the model's name in the active run, or in a new one.
            options: further arguments of ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

        Raises:
            NotFittedError: ``fit`` was not called.
            UserError: MLflow is not installed.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "student")
            return logged_artifact.log_model(name, lambda: logged_artifact.contents(Path(folder) / "student"), options)

    @classmethod
    def load(cls: type[T], path: str | Path, *, device: str = "cpu") -> T:
        """Read a folder that :meth:`save` wrote; nothing is unpickled.

        Raises:
            ArtifactError: the folder is not a complete artifact of such an estimator.
        """
        fitted, entries = Fitted.load(Path(path), device)
        if entries.get("estimator") != cls.__name__:
            raise ArtifactError(f"{path}: must be of a {cls.__name__}, got {short(entries.get('estimator'))}")
        estimator = cls(**{**entries["params"], "device": device})
        estimator.fitted_, estimator.made_from_ = fitted, {}
        estimator._set_facts(entries["fitted"])
        return estimator

    def _facts(self) -> dict[str, object]:
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features_in_": int(self.n_features_in_),
            "method_": self.method_,
            "choice_": self.choice_,
            "feature_names_in_": None if names is None else [str(name) for name in names],
            "left_out_": self.left_out_,
            "remarks_": self.remarks_,
        }

    def _set_facts(self, facts: Mapping[str, Any]) -> None:
        self.n_features_in_ = facts["n_features_in_"]
        self.method_ = facts.get("method_", self.method)  # artifacts of earlier versions have none
        self.choice_ = facts.get("choice_", f"{self.method}: named by the parameter method")
        self.left_out_, self.remarks_ = facts["left_out_"], facts["remarks_"]
        if facts["feature_names_in_"] is not None:
            self.feature_names_in_ = np.array(facts["feature_names_in_"], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags

    def _is_poor(self) -> bool:
        """Return whether the method's scores are poor on any data, for scikit-learn's tag of this name."""
        return isinstance(self.method, str) and self.method in METHODS and METHODS[self.method].ignores_inputs
