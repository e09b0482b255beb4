"""``python -m pipeline status``: which stages are out of date, and why; nothing is run."""

from ..core.load import load
from ..plan import plan
from ..run import pool


def status(every: bool = False) -> None:
    """Print a line for each stage that is out of date; with ``every`` the others, too."""
    stages = plan.plan(load())
    why = pool.stale(stages)
    for name in stages:
        if name in why or every:
            print(f"{name}: {why.get(name, 'is up to date')}")
    print(f"{len(why)} of {len(stages)} stages are out of date" if why else f"all {len(stages)} are up to date")
