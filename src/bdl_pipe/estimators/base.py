"""The common base of both estimators: parameters, a fit from rows in memory, and predictives of new rows."""

import copy
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from .. import config, offers
from ..artifacts import State
from ..data.config import DatasetConfig
from ..data.split_rows import schema
from ..data.tables.columns import ColumnKind
from ..distribution import count_of, sample
from ..errors import ArtifactError, DataError, UserError, require, short
from ..fitting import FittedRuns, address
from ..joint_predictive import DRAWS, Joint
from ..method import Task
from ..posterior_protocols import OnlinePosterior
from ..predictive import Predictive
from ..recalibration import Recalibration
from ..registry import METHODS
from ..seeds import Seed, own_settings
from .fitted import Fitted, fit_parts, place_of, warn_of_few
from .given import TakesRows, units_of, with_weight
from .plan import AUTO, DATASET, RandomState, about, check_parameters, is_number, known, plan, root_of

T = TypeVar("T", bound="BayesianEstimator")
F = TypeVar("F", bound=Callable[..., Any])


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


def weighing(fit: F) -> F:
    """Give ``fit`` of an estimator the parameter ``sample_weight`` only if the estimator's method weighs rows.

    scikit-learn's tools, such as bagging, read the signature to know whether an estimator weighs rows.
    """
    return cast(F, _FitOfMethod(fit))


class _FitOfMethod:
    def __init__(self, fit: Callable[..., Any]) -> None:
        self._fit, self.__doc__ = fit, fit.__doc__

    def __get__(self, estimator: "BayesianEstimator | None", owner: type | None = None) -> Callable[..., Any]:
        if estimator is None:
            return self._fit
        name = estimator.method
        if name == AUTO or (isinstance(name, str) and name in METHODS and METHODS[name].weighs_rows):
            return MethodType(self._fit, estimator)

        @wraps(self._fit)
        def unweighted(X: object, y: object, *, sample_weight: object = None, **rows: object) -> object:
            if sample_weight is not None:
                can = ", ".join(name for name in METHODS if METHODS[name].weighs_rows)
                raise UserError(f"sample_weight: must be None for {name}, whose loss does not weigh rows ({can} do)")
            return self._fit(estimator, X, y, **rows)

        whole = inspect.signature(MethodType(self._fit, estimator))
        kept = [parameter for of, parameter in whole.parameters.items() if of != "sample_weight"]
        unweighted.__signature__ = whole.replace(parameters=kept)  # type: ignore[attr-defined]
        return unweighted


_TILE: Final = 16  # rows; products of matrices give a row the same bits in each number of rows that this divides
_SPLIT_SHARE: Final = 0.2  # share of the rows that split conformal leaves out
_MOST: Final = 10_000_000  # the most values, row × score, that cross-conformal holds in memory


class BayesianEstimator(TakesRows):
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
        self.made_from_ = {run.key.removeprefix(f"{DATASET}-"): fitted[0][address(run, seed)][0] for run in runs[:-1]}
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

    def _batches(self, x: object) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of new rows, in the targets' own units."""
        rows = self._rows(x)
        with own_settings(self.threads), torch.no_grad():
            for at, predictive in self.fitted_.batches(rows):
                yield at, self.fitted_.predictor().final(predictive)

    def _means(self, x: object, *, std: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictive's means [n, output or class] and, if asked for, standard deviations; float64.

        The last row is repeated up to a whole number of tiles, so that a row's answer is the same bits in any number of
        rows up to a batch.
        """
        rows, means, deviations = self._rows(x), list[torch.Tensor](), list[torch.Tensor]()
        count, padded = len(rows), np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % _TILE, axis=0)])
        with own_settings(self.threads), torch.no_grad():
            for _, predictive in self.fitted_.batches(padded):
                final = self.fitted_.predictor().final(predictive)
                means.append(final.mean.double().cpu())
                deviations += [final.variance.double().sqrt().cpu()] if std else []
        mean = torch.cat(means).numpy()[:count]
        return mean, torch.cat(deviations).numpy()[:count] if std else mean

    def _predictive(self, X: object) -> tuple[Predictive, Seed]:
        """Return the predictive of all rows, and the address of its samples."""
        rows = self._rows(X)
        with own_settings(self.threads), torch.no_grad():
            fitted, address = self.fitted_.predictor(), self.fitted_.address().fold("predict")
            predictive = fitted.predict(rows, rng=address, device=self.device)
        return predictive, self.fitted_.address().fold("sample")

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
        whole = is_number(many) and int(many) == many
        require(whole and many > 0 and len(raw) % many == 0, "rows", f"must divide the {len(raw)} rows of X", many)
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

    def _is_calibrated(self, conformal: bool | None) -> bool:
        """Return whether intervals and sets are calibrated: as asked for, or if the fit has calibration rows."""
        check_is_fitted(self, "fitted_")
        return any(part.recalibration is not None for part in self.fitted_.parts) if conformal is None else conformal

    def _calibrated(self, x: object, levels: list[float]) -> tuple[np.ndarray, list[int], list[Recalibration]]:
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
        warn_of_few(learnt, rows, max(levels), self.fitted_)
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
        draws = count_of(draws)
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

    def _is_poor(self) -> bool:
        """Return whether the method's scores are poor on any data, for scikit-learn's tag of this name."""
        return isinstance(self.method, str) and self.method in METHODS and METHODS[self.method].ignores_inputs
