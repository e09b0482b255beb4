"""``python -m benchmarks.decisions tables | tune | page``: see :mod:`.tables` and :mod:`.page`."""

import sys
from pathlib import Path

from . import page, tables

if __name__ == "__main__":
    what = sys.argv[1:]
    if what == ["tables"]:
        tables.write(Path("work/tables"))
    elif what == ["tune"]:
        tables.tune(Path("results/decisions/tuning.csv"))
    elif what == ["page"]:
        page.write(Path("work/decide"), Path("results/decisions"))
    else:
        sys.exit(__doc__)
