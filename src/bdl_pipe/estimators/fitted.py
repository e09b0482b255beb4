"""A fit of an estimator: posterior states with the data's transform, for all rows and for each part of cross-conformal.

Intervals and sets are calibrated on left-out rows, or by further fits that leave out parts.

Groups of rows may be calibrated apart (:mod:`bdl_pipe.conformal`): the values of a column, or the classes. A group is a
number: a cell of the column as rows of a fit store it, so that NaN is the group of gaps, or the index of a class.

A saved fit is a student artifact as in the pipeline: ``bdl_pipe.load_predictor`` also reads it. Nothing is unpickled.
"""

import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import artifacts, conformal, recalibration
from ..artifacts import State
from ..conformal import OF_CLASSES
from ..data import units
from ..data.config import DatasetConfig
from ..data.examples import Examples
from ..data.raw import FEWEST_ROWS, Raw
from ..data.split_rows import FEWEST_CALIBRATION, fit_data, take
from ..data.tables.columns import UNSEEN, Column
from ..data.tables.forms import clean, listed
from ..data.transform import Transform
from ..errors import ArtifactError, require
from ..files import write_bytes
from ..fitting import FittedRuns, Run, fit_runs
from ..posterior import Predictor, prediction_address
from ..predictive import Predictive
from ..recalibration import Recalibration
from ..registry import RECALIBRATION, load_plugins_of, posterior_of
from ..seeds import Seed
from .plan import DATASET

PARTS: Final = 5  # the folds of cross-conformal
KIND: Final = "student"
SCHEMA: Final = "schema.json"
_ESTIMATOR: Final = "estimator.json"
_CLASS: Final = "class"


@dataclass(frozen=True)
class Part:
    """One fitted posterior.

    Attributes:
        split: the number of the split in seed addresses: 0 for all rows, 1 and above for the parts of cross-conformal.
        recalibration: learnt from rows that this fit left out. None if it left out no rows.
    """

    split: int
    posterior: State
    transform: State
    recalibration: State | None = None


@dataclass(eq=False)
class Fitted:
    """The parts of a fit; the first part was fitted to all rows.

    Attributes:
        about: the manifest's facts: the root seed, the run, the method, its hyperparameters.
        schema: the required columns or shape of new rows.
    """

    parts: Sequence[Part]
    about: Mapping[str, Any]
    schema: Mapping[str, Any]
    device: str = "cpu"
    _ready: dict[int, Predictor] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the posteriors, which are rebuilt from the states."""
        return {**{k: v for k, v in self.__dict__.items() if k != "columns"}, "_ready": {}}

    def group(self, place: int, value: float) -> str:
        """Return the name of a group of the column ``place``, or of the class ``value``."""
        if place == OF_CLASSES:
            return str(self.schema["classes"][int(value)])
        column = self.columns[place]
        if math.isnan(value):
            return "a gap"
        if column.kind != "category":
            return f"{value:g}"
        return "an unseen value" if value == UNSEEN else column.values[int(value)]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a table's rows; empty for images."""
        return tuple(map(Column.of, self.schema.get("columns", ())))

    def predictor(self, part: int = 0) -> Predictor:
        """Return the posterior of a part with its transform."""
        if part not in self._ready:
            states, classes = self.parts[part], tuple(self.schema["classes"])
            learnt = None if states.recalibration is None else Recalibration.from_state(states.recalibration)
            posterior, transform = posterior_of(states.posterior, self.device), Transform.from_state(states.transform)
            self._ready[part] = Predictor(posterior, transform, classes, learnt)
        return self._ready[part]

    def address(self, part: int = 0) -> Seed:
        """Return the seed address of a part's draws; the pipeline uses the same address for scores."""
        return prediction_address(self.about["seed"], self.about["run"], self.parts[part].split, 0)

    def batches(self, rows: np.ndarray, part: int = 0, batch: int = 1000) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of raw rows, in transformed units."""
        return self.predictor(part).transformed_batches(rows, batch, rng=self.address(part), device=self.device)

    def save(self, path: Path, estimator: Mapping[str, object]) -> None:
        """Write the artifact.

        Args:
            estimator: the estimator's own entries, as JSON values.
        """
        with artifacts.publish(path, KIND, about=self.about) as folder:
            for part in self.parts:
                name = f"{part.split}-0"
                artifacts.write_state(folder / name, part.posterior)
                artifacts.write_state(folder / f"transform-{part.split}", part.transform)
                if part.recalibration is not None:
                    artifacts.write_state(folder / f"{RECALIBRATION}-{name}", part.recalibration)
            write_bytes(folder / SCHEMA, json.dumps(self.schema, sort_keys=True, indent=1).encode())
            write_bytes(folder / _ESTIMATOR, json.dumps(estimator, sort_keys=True, indent=1).encode())

    @classmethod
    def load(cls, path: Path, device: str) -> "tuple[Fitted, dict[str, Any]]":
        """Read an artifact that :meth:`save` wrote.

        Raises:
            ArtifactError: the artifact is incomplete, or no estimator saved it.
        """
        artifact = artifacts.load(path, KIND)
        if _ESTIMATOR not in artifact.manifest["files"]:
            raise ArtifactError(f"{path}: was saved by no estimator; read it with bdl_pipe.load_predictor")
        about, names = artifact.manifest["about"], artifact.names()
        load_plugins_of(path, about)
        splits = sorted(int(name.removeprefix("transform-")) for name in names if name.startswith("transform-"))
        parts = [
            Part(
                split,
                artifact.state(f"{split}-0"),
                artifact.state(f"transform-{split}"),
                artifact.state(of_rows) if (of_rows := f"{RECALIBRATION}-{split}-0") in names else None,
            )
            for split in splits
        ]
        return cls(parts, about, artifact.json(SCHEMA), device), artifact.json(_ESTIMATOR)


def fit_parts(
    raw: Raw,
    dataset: DatasetConfig,
    runs: Sequence[Run],
    seed: int,
    *,
    cross: bool,
    grouped_by: int | None = None,
    device: str,
    fitted: dict[int, FittedRuns] | None = None,
) -> tuple[list[Part], float]:
    """Fit the rows of ``raw``; return the parts, with the part of all rows first, and the seconds of the fits.

    Args:
        seed: the root seed.
        cross: whether further fits, each without a part of the rows, calibrate the result (:mod:`bdl_pipe.conformal`).
        grouped_by: the column whose values are calibrated apart, see :func:`bdl_pipe.recalibration.fit`.
        fitted: split -> runs that were already fitted on these rows and are not fitted again.

    Raises:
        ConfigError: there are too few rows for ``cross``, or for the calibration rows of ``dataset``.
        DataError: there are too few groups or dates for the calibration rows of ``dataset``, or a target is constant.
        Diverged: a fit diverged even at its smallest rates.
    """
    fitted = {} if fitted is None else fitted
    _require_rows(raw, dataset.calibration, cross)
    rule = "must be split or None with dates, since the parts of cross are fitted to later rows, too"
    require(not (cross and raw.ordered), "conformal", rule, "cross")
    address = Seed(seed).fold("prepare", DATASET)

    def fit(rows: Raw, split: int, held: Examples | None) -> tuple[Part, float]:
        data, apart = fit_data(rows, dataset, rng=address, split=split)
        state, seconds = fit_runs(runs, data.on(device), seed, split, fitted.setdefault(split, {}))
        part, calibration = Part(split, state, data.transform.state()), apart if held is None else held
        if calibration is not None:
            alone = Fitted([part], {"seed": seed, "run": runs[-1].key}, {"classes": ()}, device)
            batches, transform = alone.batches(calibration.inputs), alone.predictor().transform
            learnt = recalibration.fit(batches, calibration, transform, grouped_by)
            part = replace(part, recalibration=learnt.state())
        return part, seconds

    parts, rows = [fit(raw, 0, None)], raw.train
    for split, held in enumerate(drawn(len(rows), address.fold("conformal"), rows.units) if cross else (), 1):
        rest = np.setdiff1d(np.arange(len(rows)), held)
        kept, left_out = (take(rows, index) for index in (rest, held))
        parts.append(fit(replace(raw, train=kept), split, left_out))
    return [part for part, _ in parts], sum(seconds for _, seconds in parts)


def _require_rows(raw: Raw, share: float, cross: bool) -> None:
    """Raise ConfigError if there are too few rows for ``cross``, or for calibration rows of this share."""
    rows, of_cross = len(raw.train), PARTS * FEWEST_ROWS
    of_split = next(count for count in itertools.count() if round(share * count) >= FEWEST_CALIBRATION) if share else 0
    require(not cross or rows >= of_cross, "conformal", f"must be None with fewer than {of_cross} rows", "cross")
    others = "cross or None" if rows >= of_cross and not raw.ordered else "None"
    require(rows >= of_split, "conformal", f"must be {others} with fewer than {of_split} rows", "split")


def drawn(rows: int, rng: Seed, of: np.ndarray | None = None, count: int = PARTS) -> list[np.ndarray]:
    """Draw the sorted row numbers of each part; the parts' sizes differ by at most one.

    With the rows' groups ``of``, no part divides a group; the sizes then differ by more, and few groups make few parts.
    """
    if of is not None:
        return [held for _, held in units.left_out(units.folds(of, count, ordered=False, rng=rng), ordered=False)]
    return [np.sort(part) for part in np.array_split(rng.numpy().permutation(rows), count)]


def place_of(groups: str | int | None, columns: Sequence[Column], names: Sequence[str], *, classes: bool) -> int | None:
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
    features = [column.name for column in columns]
    if classes and groups == _CLASS:
        require(_CLASS not in features, "groups", "must not be class if X has a column class: rename it", groups)
        return OF_CLASSES
    number = isinstance(groups, int | np.integer) and not isinstance(groups, bool) and 0 <= groups < len(names)
    name = names[int(groups)] if number else clean(str(groups))
    rule = f"must be a column of X that the fit uses ({listed(features)}), or class with BayesianClassifier"
    require(name in features, "groups", rule, groups)
    return features.index(name)


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
        warnings.warn(f"groups: {listed([fitted.group(place, group) for group in few])}: {rule}", stacklevel=4)
