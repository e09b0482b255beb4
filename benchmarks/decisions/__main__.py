"""``python -m benchmarks.decisions tables | tune | gather [DEVICE] | page``.

``tables`` and ``tune`` make the files that tasks read (:mod:`.tables`); ``gather`` stores the runs' curves with the
machine's name (DEVICE, if another machine made them), and ``page`` writes results/decisions from the stored curves.
"""

import sys
from pathlib import Path

from . import gather, page, tables

PLACE = Path("results/decisions")

if __name__ == "__main__":
    what = sys.argv[1:]
    if what == ["tables"]:
        tables.write(Path("work/tables"))
    elif what == ["tune"]:
        tables.tune(PLACE / "tuning.csv")
    elif what[:1] == ["gather"] and len(what) < 3:
        gather.store(Path("work/decide"), PLACE, *what[1:])
    elif what == ["page"]:
        page.write(PLACE)
    else:
        sys.exit(__doc__)
