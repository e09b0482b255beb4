"""``python -m benchmarks.decisions tables | tune | gather | page``.

``tables`` and ``tune`` make the files that tasks read (:mod:`.tables`); ``gather`` stores the runs' curves, and
``page`` writes results/decisions from the stored curves.
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
    elif what == ["gather"]:
        gather.store(Path("work/decide"), PLACE)
    elif what == ["page"]:
        page.write(PLACE)
    else:
        sys.exit(__doc__)
