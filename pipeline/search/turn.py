"""One process at a time goes on with a search: another one would mix its trials into the same storage.

On one machine a lock on a file says so, which ends with its process, however that ends. In storage that machines share
a file is written every few seconds by whoever is at it: who finds one there waits to see whether it still changes.
Clocks are not compared, and a process that was killed needs no manual step.
"""

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from bdl_pipe.errors import UserError

from ..core import provenance
from ..core.storage import Place

BEAT: Final = 5.0  # seconds between signs of life
PATIENCE: Final = 20.0  # seconds without one, after which a process counts as dead
_SETTLE: Final = 1.0  # in which one of two that begin at once finds the other's sign
_SIGN: Final = "turn.json"


@contextlib.contextmanager
def taken(folder: Path, away: Place | None) -> Iterator[None]:
    """Be the one process that runs the search of ``folder``, and of its place ``away``, within the block.

    Raises:
        UserError: another one is at it.
        KeyboardInterrupt: another one took it, since this one gave no sign of life for too long.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder.with_name(f"{folder.name}.lock")).acquire(timeout=0))
        except Timeout:
            raise UserError(f"{folder}: another process is at this search; wait for it, or stop it") from None
        if away is not None:
            stack.enter_context(_shared(away))
        yield


@contextlib.contextmanager
def _shared(away: Place) -> Iterator[None]:
    place = Place(away.files, f"{away.path}-turn")  # beside what a new search clears
    mine = {"process": provenance.process(os.getpid()), "token": secrets.token_hex(6)}
    _wait_for(place)
    place.write(_SIGN, {**mine, "beat": 0})
    time.sleep(_SETTLE)
    if not _is_mine(place, mine):
        raise UserError(f"{away.path}: another process has begun this search at the same moment; wait for it")
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(place, mine, ended), daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join()
        with contextlib.suppress(OSError):
            if _is_mine(place, mine):
                place.remove(_SIGN)


def _wait_for(place: Place) -> None:
    """Return when nobody is at the search; a dead process of this machine is known at once."""
    first = place.read(_SIGN)
    if first is None or provenance.is_dead(first["process"]):
        return
    print(f"waiting up to {PATIENCE:g} s: whether {first['process']} is still at this search", flush=True)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(_SETTLE)
        if (sign := place.read(_SIGN)) is None:
            return
        if sign != first:
            raise UserError(f"{place.path}: {sign['process']} is at this search; wait for it, or stop it")


def _beat(place: Place, mine: dict[str, Any], ended: threading.Event) -> None:
    beat = 0
    while not ended.wait(BEAT):
        beat += 1
        with contextlib.suppress(OSError):  # storage that is out of reach for a while; Tune says what it misses
            if not _is_mine(place, mine):
                print("another process has taken this search: stopping", file=sys.stderr, flush=True)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # whatever it waits for
                return
            place.write(_SIGN, {**mine, "beat": beat})


def _is_mine(place: Place, mine: dict[str, Any]) -> bool:
    sign = place.read(_SIGN)
    return sign is None or sign["token"] == mine["token"]
