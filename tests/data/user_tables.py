"""Columns and contents of files for test_tables.py, each with the name of its public report or of its kind."""

import datetime as dt
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tests.data.test_cells import ROWS, X, Y, cycle
from tests.tables import houses

PLAIN = "x,y\n" + "".join(f"{x},{y}\n" for x, y in zip(X, Y, strict=True))
SQUARES = [round(float(x * x), 4) for x in X]
DAYS = [dt.date(2023, 1, 1) + dt.timedelta(days=7 * i % 400) for i in range(ROWS)]
EPOCH = [1_680_000_000 + 86_400 * (7 * i % 400) for i in range(ROWS)]
SERIAL = [45_000 + 7 * i % 400 for i in range(ROWS)]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:6652\nsize 146946961\n"
ORDER = np.random.default_rng(1).permutation(ROWS).tolist()
NUMBERS = np.random.default_rng(1).permutation(900_000)[: 2 * ROWS].tolist()


CELLS: dict[str, Callable[[int], Any]] = {  # name -> the cell of row i
    "biolab/orange3#5172": lambda i: ("#VALUE!", "#DIV/0!")[i] if i < 2 else SQUARES[i],
    "tidyverse/readxl#62": lambda i: "#NV" if i < 2 else SQUARES[i],
    "Data-Centric-AI-Community/fg-data-profiling#675": lambda i: SQUARES[i] if i < ROWS - 1 else "Total",
    "ribbondz/rsv#8": lambda i: SERIAL[i],
    "eddelbuettel/anytime#17": lambda i: int(f"{DAYS[i]:%Y%m%d}"),
    "moment/luxon#345": lambda i: EPOCH[i],
    "postlight/parser#702": lambda i: 1000 * EPOCH[i],
    "Quartz/bad-data-guide#14": lambda i: -99999 if i < 2 else SQUARES[i],
    "dankelley/oce#983": lambda i: -999.0 if i < 2 else SQUARES[i],
    "a date for none": lambda i: "9999-12-31" if i < 2 else str(DAYS[i]),
    "numbers of Fortran": lambda i: f"{X[i]:.4f}D+02",
    "minus at the end": lambda i: f"{abs(X[i]):.4f}-" if X[i] < 0 else f"{X[i]:.4f}",
    "rows in another order": lambda i: ORDER[i],
    "comma": lambda i: f"{i + 1},234",
    "narrow blank": lambda i: f"{i + 1}\u202f234",
    "unit": lambda i: f"{0.5 * i} kg",
    "codes, each once": lambda i: f"{500 + i:05d}",
    "month first": lambda i: DAYS[i].strftime("%b %d, %Y"),
    "one day that does not exist": lambda i: "0000-00-00" if i == 7 else DAYS[i],
    "zones": lambda i: f"{DAYS[i]}T10:00:00{'Z' if i % 2 else ''}",
    "large whole numbers": lambda i: 10**17 + 7 * i,
    "larger ones": lambda i: 2**64 - 1 - i * i,
    "one word among percentages": lambda i: f"{i % 30}%" if i % 7 else "tbd",
    "free": lambda i: f"${i % 30}.99" if i % 7 else "Free",
    "quoted": lambda i: f"'{i % 30}'",
    "feet and inches": lambda i: f'''{i % 9}'{i % 12}"''',
    "underscores": lambda i: f"{i % 30 + 1}_000",
    "censored": lambda i: "<0.5" if i % 5 < 3 else i % 30,
    "a word among dates": lambda i: str(np.datetime64("2023-01-01") + i % 60) if i % 40 else "present",
    "a gap of pandas among dates": lambda i: str(np.datetime64("2023-01-01") + i % 60) if i % 40 else "NaT",
    "few words among few numbers": lambda i: "not recorded" if i % 5 < 3 else i % 30,
    "points for thousands": lambda i: f"{i % 90 + 10}.{i % 900 + 100}" if i % 3 else i % 90,
    "seconds after a day": lambda i: 20240101000000 + i % 28 * 1000000,
    "hours after a day": lambda i: 2024010100 + i % 28 * 100 + i % 24,
    "fractions of seconds": lambda i: 1700000000.0 + i * 1000 + 0.5,
    "nines beside amounts": lambda i: i * 40 if i % 10 else -999,
    "two fill values": lambda i: (-999, 9999)[i % 20] if i % 20 < 2 else i % 50,
    "a round fill value": lambda i: i % 97 / 10 if i % 10 else -200,
    "answers of surveys": lambda i: (98, 99)[i % 20] if i % 20 < 2 else i % 5 + 1,
    "negative answers": lambda i: (-8, -9)[i % 20] if i % 20 < 2 else i % 5 + 1,
    "usual numbers 2": lambda i: round(i * 1.37, 2),
    "usual numbers 3": lambda i: f"{i % 90 + 10}.{i % 900 + 100}",
    "usual numbers 4": lambda i: 1000 + i % 40,
    "usual numbers 5": lambda i: 100 * (i % 40) - 500,
    "usual numbers 6": lambda i: i % 70 * 5 if i % 10 else -200,
    "a number in each row": lambda i: NUMBERS[i],
    "percent of a target": lambda i: f"{Y[i]:.4f} %",
    "kilograms of a target": lambda i: f"{Y[i]:.4f} kg",
    "days of a target": lambda i: f"{i % 12 + 1}/{i % 7 + 1}/2024",
    "groups of ten rows": lambda i: f"p{i // 10}",
    "a class of groups": lambda i: "no" if i // 10 % 3 else "yes",
}


def cells_of(cells: str | list[Any] | dict[str, Any], rows: int) -> list[Any]:
    """Return cells by their name in CELLS, repeated values, or a pattern with the row's number modulo some numbers."""
    if isinstance(cells, str):
        return [CELLS[cells](i) for i in range(rows)]
    if isinstance(cells, list):
        return [cells[i % len(cells)] for i in range(rows)]
    return [cells["pattern"].format(*(i % number for number in cells["modulo"])) for i in range(rows)]


def zipped(member: str) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w") as archive:
        archive.writestr(member, PLAIN)
    return content.getvalue()


def lines_of(values: list[Any], separator: str = ",", names: str = "x,f,y") -> str:
    rows = zip(X, values, Y, strict=True)
    return names.replace(",", separator) + "\n" + "".join(separator.join(map(str, row)) + "\n" for row in rows)


CONTENTS: dict[str, Any] = {
    "houses": houses(),
    "few rows": houses(40),
    "a target that is a feature": houses().assign(cost=houses()["price"]),
    "a class under another name": houses().assign(size=(houses()["area"] > 120).astype(int)),
    "classes of one row": houses().assign(kind=["a", "b", *"cdefgh", *["x"] * 292]),
    "a class a row": houses().assign(kind=[f"k{i}" for i in range(300)]),
    "one class": houses().assign(kind="all"),
    "a constant target": houses().assign(price=3.5),
    "a target that counts": houses().assign(price=np.arange(300)),
    "thousands": houses().assign(price="1,234"),
    "a word among prices": houses().assign(price=[1.5, 2.5, "open", *houses()["price"][3:]]),
    "nothing but the target": houses()[["price"]].assign(one=1),
    "blanks": PLAIN.replace(",", " "),
    "carets": PLAIN.replace(",", "^"),
    "no names": PLAIN.partition("\n")[2],
    "a last line": PLAIN + "(60 rows)\n",
    "Shift-JIS": lines_of(cycle("東京", "大阪")).encode("shift-jis"),
    "skrub-data/skrub#636 (right before)": lines_of([1] * ROWS, names="x,x,y"),
    "metabase/metabase#72421": lines_of([1] * ROWS, names="x,x ,y"),
    "case of a name": lines_of([1] * ROWS, names="x,Z,Y"),
    "OPM/ResInsight#9611 (a row of units)": "\n".join(["x,y", *["m,kg", *PLAIN.split()[1:]]]),
    "two files in one, each with its names": "\n".join(["x,y", *[*PLAIN.split()[1:], *PLAIN.split()]]),
    "blanks before quotes": "\n".join(['"t", "x", "y"', *(f'"a", {i}, {i * i % 71}' for i in range(60))]),
    "a title above the names": "\n".join(["Report 2024,,", *(f"{i % 3},{i % 3},{i * i % 71}" for i in range(60))]),
    "numbers for names": "\n".join(["1,1,5", *(f"{i % 3},{i % 3},{i * i % 71}" for i in range(60))]),
    "decimal commas of a target": "\n".join(["x,y", *(f'{i},"0,{i:03d}"' for i in range(60))]),
    "infinity": "\n".join(["x,y", *(f"{'inf' if i == 3 else 0.5 * i},{i * i % 71}" for i in range(60))]),
    "a target whose squares underflow (scikit-learn/scikit-learn#19726)": pd.DataFrame({"x": X, "y": 1e-200 * Y}),
    "a target of dates": pd.DataFrame({"x": X, "y": DAYS}),
    "omossad/cmpt980#8": pd.DataFrame({"x": X, "f": [*SQUARES[:-1], "inf"], "y": Y}),
    "rqt_common_plugins#240": pd.DataFrame({"x": X, "f": [*SQUARES[:-1], "1e400"], "y": Y}),
    "shawshany/IMDB#1": pd.DataFrame({"x": X, "f": [*SQUARES[:-1], "-1e300"], "y": Y}),
    "SolarArbiter/solarforecastarbiter-dashboard#115": zipped("xl/workbook.xml"),
    "etalab/csvapi#7": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504),
    "cytomining/pycytominer#95": gzip.compress(PLAIN.replace(",", ";").encode()),
    "refinery-platform/heatmap-scatter-dash#161": zipped("t.csv"),
    "a pointer of Git LFS": POINTER,
    "SheetJS/sheetjs#575": PLAIN.encode("utf-16"),
    "rap2hpoutre/fast-excel#327": b"sep=;\n" + PLAIN.encode(),
    "nietras/Sep#274": b"# created 4/22/2025\n" + PLAIN.encode(),
    "ludwig-ai/ludwig#3396 (a Parquet file called CSV)": pd.DataFrame({"x": X, "y": Y}).to_parquet(),
    "a web page": b"<!DOCTYPE html>\n<html>Sign in</html>\n" * 60,
    "a pickle": pickle.dumps({"x": 1}),
    "JSON": b'[{"x": 1, "y": 2}]',
}
