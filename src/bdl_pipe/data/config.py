"""An entry of ``datasets`` in params.yaml: where rows come from, and how they are split and normalised."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from ..config import LATER
from ..errors import ConfigError, require
from . import catalog
from .catalog import CATALOG, HELD_OUT, Named, Noise
from .increment import IncrementConfig
from .raw import Source, Task

# what is scored beside the test rows, of which no fit knows
_TESTED: Final = frozenset({"ood", "corrupted_images", "corruptions", "transfer", "transfer_names"})


@dataclass(frozen=True)
class DatasetConfig:
    """The section of one data set in params.yaml.

    Attributes:
        source: where the raw rows come from.
        normalise: of inputs. ``published``: published constants per channel; ``train``: mean and
            deviation of the training rows; ``robust``: of tables, their median and interquartile range, and smoothly
            into (−3, 3); ``none``: images x/255, tables as they are.
        whiten: ZCA after standardisation, for images.
        validation: rows (a whole number) or a share (< 1) of the training rows held out for searches.
        fit_rows: what a final fit sees; a search always sees the training rows alone.
        splits: 1 for a set with its own test rows; else the first N standard UCI splits.
        ood: other entries of ``datasets``, names of sources without options, or ``noise``.
        corrupted_images: the first N test images under 19 corruptions × 5 severities; 0: none.
        corruptions: ``made``: computed here; ``published``: the set's published -C release.
        targets: of regression, what a network is fitted to. ``standardise``: less the mean and over
            the deviation of the training rows; ``log``: the same of their logarithms, where all are > 0; ``auto``: the
            one of these two that ridge regression of the split's training rows says (``target_scale``); ``centre``:
            less their mean alone (Harrison et al., 2023, G.2); ``none``: as they are. Classes have none of these.
        held_out: classes, by their index, that leave the training, validation and test rows; their
            test rows are the out-of-distribution set ``held_out``. Of images alone.
        transfer: labelled sets that share classes with this one, named as in ``ood`` (no ``noise``);
            their test rows of the shared classes are scored by the posteriors fitted here.
        transfer_names: classes of those sets -> the class of this set that they are, where the names
            differ and ``data/transfer.py`` does not know it; null: none.
        calibration: rows (a whole number) or a share (< 1) of the training rows that no fit sees: posteriors are
            recalibrated on them. 0: none.
        increment: one step of class-incremental learning: training and validation rows are those of the classes
            that are new in it, all that is scored with labels of this set those of all classes so far; the outputs
            stay those of all classes, and the transform that of all training rows, the same at every step. Null: all
            classes at once.
    """

    source: Source = field(metadata={"read": catalog.read})
    normalise: Literal["published", "train", "robust", "none"]
    whiten: bool
    validation: int | float
    fit_rows: Literal["train", "train_and_validation"]
    splits: int
    ood: tuple[str, ...]
    corrupted_images: int
    corruptions: Literal["made", "published"]
    targets: Literal["standardise", "log", "auto", "centre", "none"] = "standardise"
    held_out: tuple[int, ...] = ()
    transfer: tuple[str, ...] = field(default=(), metadata=LATER)
    transfer_names: dict[str, str] | None = field(default=None, metadata=LATER)
    increment: IncrementConfig | None = field(default=None, metadata=LATER)
    calibration: int | float = field(default=0, metadata=LATER)

    @property
    def task(self) -> Task:
        """Return what is predicted from the rows."""
        return self.source.task

    def comes_after(self, other: "DatasetConfig") -> bool:
        """Tell whether this is the step after that of ``other``, of the same rows, transform and order of classes."""
        if self.increment is None or self.increment.step == 0:
            return False
        before = replace(self.increment, step=self.increment.step - 1)
        return self.fitted() | {"increment": before} == other.fitted()

    def fitted(self) -> dict[str, Any]:
        """Return what rows and transform of a fit depend on: key -> value."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _TESTED}

    def __post_init__(self) -> None:
        rule = "must be a whole number of rows >= 0, or a share in [0, 1)"
        for key, rows in (("validation", self.validation), ("calibration", self.calibration)):
            require(0 <= rows < 1 if isinstance(rows, float) else rows >= 0, key, rule, rows)
        apart = self.increment is None or not self.calibration
        require(apart, "calibration", "must be 0 where classes come in steps", self.calibration)
        require(self.splits >= 1, "splits", "must be >= 1", self.splits)
        require(self.corrupted_images >= 0, "corrupted_images", "must be >= 0", self.corrupted_images)
        for key, names in (("ood", self.ood), ("transfer", self.transfer)):
            require(len(set(names)) == len(names), key, "must not name a set twice", list(names))
        idle = self.transfer_names and not self.transfer
        require(not idle, "transfer_names", "must be empty without transfer", self.transfer_names)
        meant = self.task == "regression" or self.targets not in ("centre", "log", "auto")
        require(meant, "targets", "must be standardise or none for classes", self.targets)
        self._check_held_out()
        self._check_increment()
        if self.source.kind == "table":
            require(
                self.normalise != "published", "normalise", "must be train, robust or none for a table", self.normalise
            )
            require(not self.whiten, "whiten", "must be false for a table", self.whiten)
            for key, names in (("ood", self.ood), ("transfer", self.transfer)):
                require(not names, key, "must be empty for a table", list(names))
            require(self.corrupted_images == 0, "corrupted_images", "must be 0 for a table", self.corrupted_images)
        else:
            rule = "must be published, train or none for images"
            require(self.normalise != "robust", "normalise", rule, self.normalise)
        there = self.normalise != "published" or catalog.published_constants(self.source) is not None
        rule = f"must be train or none: {self.source.name} has no published constants"
        require(there, "normalise", rule, self.normalise)

    def _check_held_out(self) -> None:
        held = list(self.held_out)
        good = len({*held}) == len(held) and all(label >= 0 for label in held)
        require(good, "held_out", "must be different class indices >= 0", held)
        if held:
            require(self.source.kind == "image", "held_out", "must be empty for a table", held)
            require(
                HELD_OUT not in self.ood, "ood", f"must not name {HELD_OUT} where classes are held out", list(self.ood)
            )
            # a release has the images of every class, in the order of the whole test set
            fits = not self.corrupted_images or self.corruptions == "made"
            require(fits, "corruptions", "must be made where classes are held out", self.corruptions)

    def _check_increment(self) -> None:
        if self.increment is not None:
            require(self.task == "classification", "increment", "must be null for regression", self.source.name)
            fits = not self.corrupted_images or self.corruptions == "made"
            require(fits, "corruptions", "must be made where classes come in steps", self.corruptions)


def ood_source(name: str, datasets: dict[str, DatasetConfig], path: str) -> Source | Noise:
    """Find the source behind an entry of ``ood``: an entry of ``datasets``, a source without options, or noise.

    Raises:
        ConfigError: it is none of these, or not a set of images.
    """
    if name == Noise.name and name not in datasets:
        return Noise()
    return _images(name, datasets, {*datasets, *CATALOG, Noise.name}, path)


def transfer_source(name: str, fitted: str, datasets: dict[str, DatasetConfig], path: str) -> Source:
    """Find the source behind an entry of ``transfer`` of the set ``fitted``: as in ``ood``, but for noise.

    Raises:
        ConfigError: it is none of these, not a set of images, or the fitted set itself.
    """
    source = _images(name, datasets, {*datasets, *CATALOG}, path)
    require(source != datasets[fitted].source, path, "must name another set than the fitted one", name)
    return source


def _images(name: str, datasets: dict[str, DatasetConfig], known: set[str], path: str) -> Source:
    if name not in datasets and name not in CATALOG:
        raise ConfigError(path, f"must name a data set (known: {', '.join(sorted(known))})", name)
    source = datasets[name].source if name in datasets else Named(name)
    if source.kind == "table":
        raise ConfigError(path, "must name a set of images", name)
    return source
