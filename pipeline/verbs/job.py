"""``python -m pipeline job -- COMMAND`` and ``attach``: commands as Ray jobs on a cluster behind a dashboard."""

from collections.abc import Sequence

from .. import job
from ..core.settings import Settings
from ..run import dvc


def send(command: Sequence[str]) -> int:
    """Run a command of this project as a Ray job; see :func:`pipeline.job.send`."""
    return job.send(Settings.read(), command, dvc.take)


def attach() -> int:
    """Follow this project's job; see :func:`pipeline.job.attach`."""
    return job.attach(Settings.read(), dvc.take)
