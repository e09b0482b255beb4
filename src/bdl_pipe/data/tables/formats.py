"""Recognition, by its first bytes, of a file that is not a table or image as expected.

The error names the format and a command that helps. A workbook, an archive or a Git LFS pointer parsed as CSV would
give a column of garbage at best. Nothing is unpacked or converted automatically, so that the user sees the result.
"""

from pathlib import Path
from typing import Final

from ...errors import DataError

LONGEST: Final = 512  # the most bytes of a file that are checked
_PANDAS: Final = "make it Parquet: python -c \"import pandas; pandas.read_{}('{{}}').to_parquet('new.parquet')\""
_CSV: Final = "save the sheet as CSV"
_PICKLE: Final = "is a pickle, which is never read, since it may run any code; write it as CSV or Parquet"
_TEXT: Final = "must be UTF-8 text, got {0}; save it as UTF-8 (iconv -f {0} -t UTF-8 {{}} > new)"

_OTHERS: Final = (
    (b"\x1f\x8b", "is compressed with gzip; unpack it first: gunzip -k {}"),
    (b"BZh9", "is compressed with bzip2; unpack it first: bunzip2 -k {}"),
    (b"\xfd7zXZ\0", "is compressed with xz; unpack it first: unxz -k {}"),
    (b"\x28\xb5\x2f\xfd", "is compressed with Zstandard; unpack it first: unzstd {}"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive; unpack it first: 7z x {}"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", f"is an Excel workbook; {_CSV}"),
    (b"ARROW1\0", f"is an Arrow (Feather) file; {_PANDAS.format('feather')}"),
    (b"FEA1\0", f"is an Arrow (Feather) file; {_PANDAS.format('feather')}"),
    (b"\xff\xff\xff\xff", "is a stream of Arrow; read it with pyarrow.ipc.open_stream, and write it as Parquet"),
    (b"Obj\x01", "is an Avro file; write it as CSV or Parquet"),
    (b"<stata_dta>", f"is a data set of Stata; {_PANDAS.format('stata')}"),
    (b"$FL2", f"is a data set of SPSS; {_PANDAS.format('spss')}"),
    (b"MATLAB 5.0 MAT-file", "is a file of MATLAB; write its table as CSV or Parquet"),
    (
        b"\x93NUMPY",
        "is an array of NumPy; write np.savez('new.npz', x=…, y=…) for images, or a table as CSV or Parquet",
    ),
    (b"\x89HDF\r\n", f"is an HDF5 file; {_PANDAS.format('hdf')}"),
    (b"SQLite format 3\0", "is a database of SQLite; write its table as CSV or Parquet"),
    (b"%PDF", "is a PDF document; tables are CSV or Parquet"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
    (b"\xff\xfe\0\0", _TEXT.format("UTF-32")),
    (b"\0\0\xfe\xff", _TEXT.format("UTF-32")),
    (b"\xff\xfe", _TEXT.format("UTF-16")),
    (b"\xfe\xff", _TEXT.format("UTF-16")),
)
_TEXTS: Final = (  # beginnings of texts, compared in lower case without leading blanks
    (b"version https://git-lfs", "is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"),
    (b"outs:", "is a pointer of DVC, not the file itself; fetch it: dvc pull"),
    (b"<!doctype", "is a web page, perhaps one that asks to sign in; fetch the file itself"),
    (b"<html", "is a web page, perhaps one that asks to sign in; fetch the file itself"),
    (b"<?xml", "is XML; write it as CSV or Parquet"),
    (b"@relation", "is an ARFF file; write it as CSV with a header line"),
    (b"<table", "is a web page, perhaps named .xls by a program that exports tables; save it as CSV"),
    (b"sep=", "begins with Excel's line sep=; delete it: tail -n +2 {} > new.csv"),
)


def beginning(path: Path) -> bytes:
    """Return the first bytes of an existing file."""
    with path.open("rb") as file:
        return file.read(LONGEST)


def other_kind(start: bytes, name: str) -> str:
    """Return the format of a file and a command that helps; empty if the first bytes may start a CSV file."""
    if start.startswith(b"PK\x03\x04"):
        office = b"[Content_Types].xml" in start or b"xl/" in start or name.lower().endswith((".xlsx", ".xlsm", ".ods"))
        if name.lower().endswith(".npz"):
            return "is an archive of NumPy's arrays; write the table as CSV or Parquet"
        return f"is an Excel workbook; {_CSV}" if office else f"is a zip archive; unpack it first: unzip {name}"
    if start.startswith(b"ORC") and b"\0" in start:  # a CSV file may begin with ORCID
        return f"is an ORC file; {_PANDAS.format('orc')}".replace("{}", name)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    kinds = [kind for first, kind in _OTHERS if start.startswith(first)]
    kinds += [kind for first, kind in _TEXTS if text.startswith(first)]
    json = b"".join(text.split())
    if json.startswith(b"[["):
        kinds.append("is JSON with a list for each row; write it as CSV")
    if json.startswith((b'{"', b"[{")):
        an_object_a_line = json.startswith(b"{") and b'}{"' in json
        options = "dtype=False" + (", lines=True" if an_object_a_line else "")  # texts such as 00501 stay texts
        command = _PANDAS.replace("('{{}}')", f"('{{{{}}}}', {options})")
        kinds.append(f"is JSON; {command.format('json')}")
    return kinds[0].replace("{}", name) if kinds else ""


def require_table(path: Path, parquet: bool) -> None:
    """Raise DataError if a file does not have the format that its name says.

    Args:
        parquet: whether the name says Parquet; otherwise the file must be CSV.
    """
    start = beginning(path)
    is_parquet, kind = start.startswith(b"PAR1"), other_kind(start, path.name)
    if parquet and not is_parquet:
        raise DataError(f"{path}: {kind or 'is named as a Parquet file and is none; name a CSV file .csv'}")
    if not parquet and is_parquet:
        raise DataError(f"{path}: is a Parquet file; name it so: mv {path.name} {path.stem}.parquet")
    if not parquet and kind:
        raise DataError(f"{path}: {kind}")
