"""The common base of both estimators: parameters, a fit from rows in memory, and predictives of new rows."""

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from .. import config, offers
from ..data.config import DatasetConfig
from ..data.split_rows import schema
from ..data.tables.columns import ColumnKind
from ..errors import ArtifactError, DataError, require, short
from ..fitting import FittedRuns, address
from ..joint_predictive import DRAWS, Joint
from ..method import Task
from ..posterior_protocols import OnlinePosterior
from ..predictive import Predictive
from ..recalibration import Recalibration
from ..registry import METHODS
from ..seeds import own_settings
from .fitted import Fitted, fit_parts, place_of, warn_of_few
from .given import TakesRows, units_of
from .plan import DATASET, RandomState, about, check_parameters, known, plan, root_of
from .targets import sample


def online(task: Task) -> Callable[["BayesianEstimator"], bool]:
    """Return whether an estimator's method learns further rows in closed form, for ``available_if``.

    Raises:
        AttributeError: it does not, or there is no such method.
    """

    def check(estimator: "BayesianEstimator") -> bool:
        name = estimator.method
        if name in METHODS and task in METHODS[name].online:
            return True
        can = ", ".join(name for name in METHODS if task in METHODS[name].online)
        raise AttributeError(f"{name} cannot learn further rows in closed form ({can} can): call fit with all rows")

    return check


T = TypeVar("T", bound="BayesianEstimator")
_SPLIT_SHARE: Final = 0.2  # share of the rows that split conformal leaves out
_MOST: Final = 10_000_000  # the most values, row × score, that cross-conformal holds in memory


class BayesianEstimator(TakesRows):
    """A registered method behind ``fit`` and ``predict``.

    Args:
        method: a name of ``bdl_pipe.METHODS``; plugins add names.
        override: hyperparameters that replace the method's, as in ``override`` of a run in ``params.yaml``.
            scikit-learn's searches set one hyperparameter as ``override__training__epochs``.
        made_from: the upstream run of the method: its key (``sgd``, ``iterates``, ``sgmcmc``, ``vbpc``, …), another
            method, or ``data`` for the data alone. None means the choice of ``python -m pipeline add``.
        upstream: key or method of an upstream run -> hyperparameters that replace that run's own.
        columns: name of a column of a frame -> ``number``, ``category`` or ``date``, to correct the inspection.
        conformal: ``split`` calibrates intervals or sets on a fifth of the rows, which are left out of the fit.
            ``cross`` calibrates them on all rows, with five further fits. None calibrates nothing.
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

    def __init__(
        self,
        method: str,
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
    ) -> None:
        """Fit the method; an estimator whose fit fails stays as it was.

        Args:
            fitted: split -> runs that were already fitted on the same rows.
        """
        before = dict(vars(self))
        try:
            self._fit_rows(x, y, {} if fitted is None else fitted, groups, dates)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit_rows(self, x: object, y: object, fitted: dict[int, FittedRuns], groups: object, dates: object) -> None:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        check_parameters(self)
        profile, names = self._profile(x, y)
        raw, classes = profile.raw, profile.raw.task == "classification"
        units, ordered = units_of(len(raw.train), groups, dates)
        raw = replace(raw, train=replace(raw.train, units=units), ordered=ordered)
        grouped_by = place_of(self.groups, profile.raw.columns, names, classes=classes)
        seed = root_of(self.random_state)
        share = _SPLIT_SHARE if self.conformal == "split" else 0.0
        # all rows but the share that no fit uses are training rows
        size = replace(profile.size(share), has_test=True, pace=float(self.pace))
        if self.minutes is not None:
            timing = offers.timing([known(self.method, size.task)], size, 60 * float(self.minutes), splits=1)
            size = replace(size, pace=size.pace * min(timing.paces.values(), default=1.0))
        runs = plan(self.method, size, override=self.override, made_from=self.made_from, upstream=self.upstream)
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
        self.made_from_ = {run.key.removeprefix(f"{DATASET}-"): fitted[0][address(run, seed)][0] for run in runs[:-1]}
        facts = {**schema(profile.raw, typed), "names": names}
        self.fitted_ = Fitted(parts, about(runs, self.method, seed), facts, self.device)
        self.left_out_ = dict(profile.left_out)
        self.remarks_ = list(profile.remarks)

    def _partial_fit(self: T, X: object, y: object, keep: float) -> T:
        """Learn further rows; see :meth:`.regressor.BayesianRegressor.partial_fit`."""
        if not hasattr(self, "fitted_"):
            return self.fit(X, y)
        require(0 < keep <= 1, "keep", "must be in (0, 1]", keep)
        require(self.conformal is None, "conformal", "must be None for partial_fit", self.conformal)
        predictor = self.fitted_.predictor()
        assert isinstance(predictor.posterior, OnlinePosterior), self.method
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

    def _batches(self, x: object) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of new rows, in the targets' own units."""
        rows = self._rows(x)
        with own_settings(self.threads), torch.no_grad():
            for at, predictive in self.fitted_.batches(rows):
                yield at, self.fitted_.predictor().final(predictive)

    def predict_dist(self, X: object) -> Predictive:
        """Return the predictive of all rows of ``X``, with its draws, in the targets' own units.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: the rows differ in form from the rows of ``fit``.
        """
        rows = self._rows(X)
        with own_settings(self.threads), torch.no_grad():
            fitted, address = self.fitted_.predictor(), self.fitted_.address().fold("predict")
            return fitted.predict(rows, rng=address, device=self.device)

    def joint(self, X: object, rows: int | None = None, *, draws: int = DRAWS) -> Joint:
        """Return the joint distribution of the targets of several rows, which share a function.

        Args:
            rows: the number of consecutive rows in a group; each group has its own joint. None puts all rows in one
                group.
            draws: number of functions to draw if the posterior has no draws of its own.

        Returns:
            A joint; its ``log_prob`` takes targets as tensors of shape ``target_shape``: indices into ``classes_``
            [group, row], or values [group, row, output].

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the rows are not whole groups.
        """
        raw = self._rows(X)
        many = len(raw) if rows is None else rows
        require(many > 0 and len(raw) % many == 0, "rows", f"must divide the {len(raw)} rows of X", many)
        grouped = raw.reshape(len(raw) // many, many, *raw.shape[1:])
        with own_settings(self.threads), torch.no_grad():
            return self.fitted_.predictor().joint(grouped, rng=self.fitted_.address(), device=self.device, draws=draws)

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
            "feature_names_in_": None if names is None else [str(name) for name in names],
            "left_out_": self.left_out_,
            "remarks_": self.remarks_,
        }

    def _set_facts(self, facts: Mapping[str, Any]) -> None:
        self.n_features_in_ = facts["n_features_in_"]
        self.left_out_, self.remarks_ = facts["left_out_"], facts["remarks_"]
        if facts["feature_names_in_"] is not None:
            self.feature_names_in_ = np.array(facts["feature_names_in_"], dtype=object)

    def _calibrated(self, x: object, level: float) -> tuple[np.ndarray, list[int], list[Recalibration]]:
        """Return new rows, and the numbers of the fits that have left-out rows with what is learnt from these rows.

        They are the split fit, or the fits of cross-conformal.

        Raises:
            ValueError: no fit has left-out rows.
        """
        check_is_fitted(self, "fitted_")
        numbers = [i for i, part in enumerate(self.fitted_.parts) if part.recalibration is not None]
        if not numbers:
            name = type(self).__name__
            raise ValueError(
                f"conformal intervals and sets need calibration data: create {name}(…, conformal='split') or 'cross', "
                "and fit again"
            )
        rows, learnt = self._rows(x), [r for i in numbers if (r := self.fitted_.predictor(i).recalibration)]
        warn_of_few(learnt, rows, level, self.fitted_)
        return rows, numbers, learnt

    def _each_part(
        self, rows: np.ndarray, numbers: list[int], learnt: list[Recalibration]
    ) -> Iterator[tuple[np.ndarray, list[Predictive]]]:
        """Yield batches of raw rows with each fit's predictive, in transformed units."""
        batch = max(1, min(1000, _MOST // max(1, sum(len(each.scores) for each in learnt))))
        with own_settings(self.threads), torch.no_grad():
            for many in zip(*(self.fitted_.batches(rows, i, batch) for i in numbers), strict=True):
                yield rows[many[0][0]], [predictive for _, predictive in many]

    def _samples(self, x: object, draws: int) -> np.ndarray:
        """Draw the targets of each row independently, as :func:`.targets.sample`."""
        require(draws > 0, "draws", "must be > 0", draws)
        check_is_fitted(self, "fitted_")
        rng, batches = self.fitted_.address().fold("sample"), self._batches(x)
        return np.concatenate([sample(part, draws, rng.fold(at.start)).numpy() for at, part in batches], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags
