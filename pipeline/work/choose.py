"""Choose the executor that the settings name, and check its address before any work starts."""

from collections.abc import Callable

from ..core import storage
from ..core.settings import Settings
from .base import Executor


def choose(settings: Settings, head: Callable[[], str] | None = None) -> Executor:
    """Return the executor that the settings name. Nothing is started, and no connection made, before there is work.

    Args:
        head: returns the address of a Ray head that several stages share; without it a stage starts its own.
    """
    from .inline import Inline

    if settings.executor == "inline":
        return Inline(settings)
    if settings.jobs:
        from .jobs import Jobs

        return Jobs(settings)
    from .cluster import Cluster

    return Cluster(settings, head)


def preflight(settings: Settings) -> None:
    """Refuse an address where no cluster answers, or one that cannot run our work, and storage that cannot be written.

    Raises:
        UserError: naming the address and what is wrong.
    """
    if settings.executor == "inline":
        return
    if settings.checkpoints and not settings.jobs:
        storage.require("BDL_CHECKPOINTS", settings.checkpoints)
    if settings.jobs:
        from ..core.jobs.dashboard import preflight as reach

        reach(settings.jobs)
    else:
        from .cluster import preflight as meet

        meet(settings.address)
