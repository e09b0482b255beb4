"""The shell of a stage: checked params, an executor that is always closed, user errors as one line."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from bdl_pipe.errors import UserError

from .executors import Executor, choose
from .params import Params, load
from .settings import Settings


@contextmanager
def opened(executor: str | None = None, params: Params | None = None) -> Iterator[tuple[Params, Executor, Settings]]:
    """What a stage needs: checked params (those of params.yaml), an executor that is closed at the end, settings."""
    settings = Settings.read(executor=executor)
    params = load() if params is None else params
    running = choose(settings)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield params, running, settings
    finally:
        running.close()


def main(kind: str, run: Callable[..., None], arguments: Sequence[str]) -> int:
    """The body of ``python -m stages.<kind> [KEY]``: user errors are one line and exit code 2."""
    try:
        with opened() as (params, executor, settings):
            run(*arguments, params, executor, settings)
    except UserError as error:
        print(f"{' '.join([kind, *arguments])}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{' '.join([kind, *arguments])}: interrupted", file=sys.stderr)
        return 130
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
