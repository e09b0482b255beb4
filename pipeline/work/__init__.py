"""Run the tasks of a stage, in this process or on Ray: the executor that the settings name.

The settings are checked before any work starts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bdl_pipe.errors import UserError

from ..core import storage
from ..core.settings import Settings
from .nodes import require_head

if TYPE_CHECKING:
    from .executor import Executor  # it imports torch, which an up-to-date stage does not need


def choose(settings: Settings, head: Callable[[], str] | None = None, ships: Sequence[Path] = ()) -> "Executor":
    """Return the executor that the settings name. It connects and starts processes only when there is work.

    Args:
        head: returns host:port of a Ray head on this machine that several stages share, or "" if there is none.
        ships: files and packages of plugins, which are sent to a cluster's nodes with our own code.

    Raises:
        UserError: RAY_ADDRESS is a dashboard's address.
    """
    refuse_dashboard(settings)
    if settings.executor == "inline":
        from .executor import Inline

        return Inline(settings)
    from .cluster import Cluster

    return Cluster(settings, head, ships)


def preflight(settings: Settings) -> None:
    """Check that the cluster answers and that storage can be written.

    Raises:
        UserError: a check fails; the message has the variable, its value and the cause.
    """
    refuse_dashboard(settings)
    if settings.executor == "inline":
        return
    if settings.checkpoints:
        storage.require("BDL_CHECKPOINTS", settings.checkpoints)
    require_head(settings.address)


def refuse_dashboard(settings: Settings) -> None:
    """Refuse to run single stages at a dashboard's address, since a dashboard runs whole commands.

    Raises:
        UserError: RAY_ADDRESS is a dashboard's address, and BDL_EXECUTOR is ray.
    """
    if settings.jobs and settings.executor == "ray":
        raise UserError(
            f"RAY_ADDRESS={settings.jobs} takes whole commands as Ray jobs: give python -m pipeline repro, or "
            "python -m pipeline job -- COMMAND (such as dvc repro)"
        )
