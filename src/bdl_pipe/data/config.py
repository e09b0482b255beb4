"""The sections of ``datasets`` in params.yaml: the source of rows, their splits and their transform."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np

from ..config import LATER
from ..errors import ConfigError, require
from . import catalog
from .catalog import CATALOG, HELD_OUT, Named, Noise
from .raw import Source, Task

# keys of additional scored sets, which fits do not depend on
_TESTED: Final = frozenset({"ood", "corrupted_images", "corruptions", "transfer", "transfer_names"})


@dataclass(frozen=True)
class IncrementConfig:
    """The section ``increment`` of a data set: one step of class-incremental learning.

    The classes arrive in steps, in the random order ``numpy.random.RandomState(order).permutation(k)``, which for
    CIFAR-100 and the orders 0 to 4 gives the lists of the published code of Zhou et al. 2022 (FRePo).

    Attributes:
        order: the seed of the order of classes.
        classes: the number of new classes in each step. It must divide the number of all classes.
        step: the number of the step, from 0. Fits use rows of its new classes; tests use rows of all classes so far.
    """

    order: int
    classes: int
    step: int

    def __post_init__(self) -> None:
        require(0 <= self.order < 2**32, "order", "must be in [0, 2^32)", self.order)
        require(self.classes > 0, "classes", "must be > 0", self.classes)
        require(self.step >= 0, "step", "must be >= 0", self.step)

    def check(self, total: int) -> None:
        """Raise ConfigError unless the step is valid for ``total`` classes."""
        require(total % self.classes == 0, "classes", f"must divide the {total} classes", self.classes)
        steps = total // self.classes
        require(self.step < steps, "step", f"must be < {steps}: each adds {self.classes} of {total} classes", self.step)

    def new(self, total: int) -> list[int]:
        """List the new classes of this step, in their order; ``total`` is the number of all classes."""
        return self.seen(total)[self.step * self.classes :]

    def seen(self, total: int) -> list[int]:
        """List the classes up to this step, in their order."""
        # the published orders come from this legacy generator
        order: list[int] = np.random.RandomState(self.order).permutation(total).tolist()
        return order[: (self.step + 1) * self.classes]


@dataclass(frozen=True)
class DatasetConfig:
    """The section of one data set in params.yaml.

    Attributes:
        source: the source of the raw rows.
        normalise: how inputs are scaled. ``published`` uses published constants per channel; ``train`` uses the mean
            and standard deviation of the training rows; ``robust``, for tables, uses the median and interquartile range
            and then maps values smoothly into (−3, 3); ``none`` divides images by 255 and leaves tables unchanged.
        whiten: whether images are ZCA-whitened after standardisation.
        validation: the number (an integer) or share (< 1) of the training rows to hold out as validation rows.
        fit_rows: the rows of a final fit. A search always fits the training rows without the validation rows.
        splits: the number of splits. It must be 1 for a set with its own test rows; other sets use the first N
            standard UCI splits.
        ood: the out-of-distribution sets: other entries of ``datasets``, names of sources without options, or
            ``noise``.
        corrupted_images: how many of the first test images get 19 corruptions × 5 severities; 0 disables corruptions.
        corruptions: ``made`` computes the corrupted images; ``published`` reads them from the set's published -C
            release.
        targets: the transform of regression targets. ``standardise``: subtract the mean and divide by the standard
            deviation of the training rows; ``log``: standardise the logarithms, which requires targets > 0; ``auto``:
            one of these two, chosen by ridge regression on the split's training rows, and logarithms
            only if they gain more than a standard error; ``centre``: subtract the mean
            (Harrison et al., 2023, G.2); ``none``: unchanged. Class labels are not transformed.
        held_out: indices of image classes to remove from training, validation and test rows; the test rows of these
            classes become the out-of-distribution set ``held_out``.
        transfer: labelled sets that share classes with this set, named as in ``ood`` (without ``noise``); posteriors
            are scored on their test rows of the shared classes.
        transfer_names: class of a ``transfer`` set -> class of this set, for names that differ and that
            ``data/transfer.py`` does not list. null: no such names.
        calibration: the number (an integer) or share (< 1) of training rows to exclude from all fits, for the
            recalibration of posteriors. 0 disables it.
        increment: one step of class-incremental learning. Training and validation rows are of the step's new classes;
            scored rows are of all classes so far. Outputs cover all classes and the transform is fitted to all training
            rows, so both are the same at every step. null: all classes are learned together.
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
        """Return the task: classification or regression."""
        return self.source.task

    def comes_after(self, other: "DatasetConfig") -> bool:
        """Return True if this is the next step after ``other``, with the same rows, transform and order of classes."""
        if self.increment is None or self.increment.step == 0:
            return False
        before = replace(self.increment, step=self.increment.step - 1)
        return self.fitted() | {"increment": before} == other.fitted()

    def fitted(self) -> dict[str, Any]:
        """Return the keys that a fit's rows and transform depend on, as key -> value."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _TESTED}

    def __post_init__(self) -> None:
        rule = "must be a whole number of rows >= 0, or a share in [0, 1)"
        for key, rows in (("validation", self.validation), ("calibration", self.calibration)):
            require(0 <= rows < 1 if isinstance(rows, float) else rows >= 0, key, rule, rows)
        apart = self.increment is None or not self.calibration
        require(apart, "calibration", "must be 0 with increment", self.calibration)
        require(self.splits >= 1, "splits", "must be >= 1", self.splits)
        require(self.corrupted_images >= 0, "corrupted_images", "must be >= 0", self.corrupted_images)
        for key, names in (("ood", self.ood), ("transfer", self.transfer)):
            require(len(set(names)) == len(names), key, "must not name a set twice", list(names))
        idle = self.transfer_names and not self.transfer
        require(not idle, "transfer_names", "must be empty without transfer", self.transfer_names)
        meant = self.task == "regression" or self.targets not in ("centre", "log", "auto")
        require(meant, "targets", "must be standardise or none for classes", self.targets)
        held = list(self.held_out)
        different = len({*held}) == len(held) and all(label >= 0 for label in held)
        require(different, "held_out", "must be different class indices >= 0", held)
        # a release has the images of every class, in the order of the whole test set
        computed = not self.corrupted_images or self.corruptions == "made"
        if held:
            require(self.source.kind == "image", "held_out", "must be empty for a table", held)
            rule = f"must not name {HELD_OUT} if classes are held out"
            require(HELD_OUT not in self.ood, "ood", rule, list(self.ood))
            require(computed, "corruptions", "must be made if classes are held out", self.corruptions)
        if self.increment is not None:
            require(self.task == "classification", "increment", "must be null for regression", self.source.name)
            require(computed, "corruptions", "must be made with increment", self.corruptions)
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


def ood_source(name: str, datasets: dict[str, DatasetConfig], path: str) -> Source | Noise:
    """Return the source that ``ood`` names: an entry of ``datasets``, a source without options, or noise.

    Raises:
        ConfigError: the name is none of these, or not a set of images.
    """
    if name == Noise.name and name not in datasets:
        return Noise()
    return _images(name, datasets, {*datasets, *CATALOG, Noise.name}, path)


def transfer_source(name: str, fitted: str, datasets: dict[str, DatasetConfig], path: str) -> Source:
    """Return the source that ``transfer`` of the set ``fitted`` names, as in ``ood`` but without noise.

    Raises:
        ConfigError: the name is none of these, not a set of images, or the fitted set.
    """
    source = _images(name, datasets, {*datasets, *CATALOG}, path)
    require(source != datasets[fitted].source, path, "must name another set than the fitted one", name)
    return source


def _images(name: str, datasets: dict[str, DatasetConfig], names: set[str], path: str) -> Source:
    if name not in datasets and name not in CATALOG:
        raise ConfigError(path, f"must name a data set (known: {', '.join(sorted(names))})", name)
    source = datasets[name].source if name in datasets else Named(name)
    if source.kind == "table":
        raise ConfigError(path, "must name a set of images", name)
    return source
