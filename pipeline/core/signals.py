"""Signals that end a command: Ctrl-C, SIGTERM, and a terminal that closes."""

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl


def interruptible() -> None:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt in this process.

    A shell without job control starts background processes with SIGINT ignored, and Python then installs no handler:
    Ctrl-C and ``kill -INT`` would do nothing.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL))


@contextlib.contextmanager
def noted() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and a closing terminal set, so that they do not interrupt the block."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
