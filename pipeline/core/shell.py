"""What a stage runs in: checked params, an executor that is always closed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..work.base import Executor
from ..work.choose import choose
from .params import Params, load
from .settings import Settings


@contextmanager
def opened(
    executor: str | None = None, params: Params | None = None, *, kind: str = "", method: str = ""
) -> Iterator[tuple[Params, Executor, Settings]]:
    """Open what a stage needs: checked params, an executor, settings. The executor is closed at the end.

    The params are those of params.yaml, unless others are given; the settings are those of tasks of a stage kind and a
    method, where these are.
    """
    settings = Settings.read(executor=executor)
    params = load() if params is None else params
    settings.machine.check_methods({*params.raw["methods"], *(run.method.name for run in params.runs.values())})
    settings = settings.of(kind, method)
    running = choose(settings)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield params, running, settings
    finally:
        running.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
