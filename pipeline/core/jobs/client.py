"""This machine's end of a job: it sends a call, follows the job's output, fetches results, and stops it.

The dashboard's port is all that it needs. A job has a name that follows from its work, so whoever asks for the same
work again finds it: at work, done, or lost, in which case it is sent anew. A line that is cut is waited for.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from .. import places
from . import sending
from .calls import Call
from .dashboard import UNDER_WAY, Cut, Dashboard, Patient
from .following import AGAIN, Gone, Listener, follow

_STOP_SECONDS: Final = 4.0  # a stage that is interrupted has eight


def folder() -> Path:
    """Return where this clone keeps a file for each of its jobs that have not ended."""
    return places.STATE / "jobs"


def perform(url: str, call: Call, listener: Listener, remote: str = "") -> None:
    """Have a call made, by a job that is at it already or by a new one, and pass on what it sends home.

    On an interrupt the job is stopped, if it is of this clone.

    Args:
        remote: a DVC remote, for values that are too large to travel with a job; empty: none.

    Raises:
        UserError: what the call raises, or the cluster does not take the job.
        RuntimeError: the call failed otherwise; with its traceback as a note.
    """
    board = Dashboard(url)
    job = _under_way(board, call)
    try:
        _follow(board, job or _send(board, call, remote), call, listener)
    except Gone as error:
        print(f"{call.title}: {str(error).removesuffix(AGAIN)}; it is sent anew", flush=True)
        _follow(board, _send(board, call, remote), call, listener)


def noted() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs of this clone whose end it has not seen: the name, and the title, stage and address of each."""
    for path in sorted(folder().glob("*.json")):
        if note := _read(path.stem):
            yield path.stem, note


def forget(job: str) -> None:
    """Remove the file of a job."""
    _note(job).unlink(missing_ok=True)


def status(url: str, job: str) -> str:
    """Return Ray's word for the state of a job; ``UNKNOWN`` to the cluster, or ``OUT OF REACH``."""
    try:
        return str((Dashboard(url).job(job) or {}).get("status", "UNKNOWN"))
    except Cut:
        return "OUT OF REACH"


def _follow(board: Dashboard, job: str, call: Call, listener: Listener) -> None:
    try:
        follow(board, job, call.title, listener)
    except KeyboardInterrupt:
        _stop(board, job, call.title)
        raise
    except (UserError, RuntimeError):
        forget(job)
        raise
    forget(job)


def _under_way(board: Dashboard, call: Call) -> str | None:
    """Find the last job of a call, if it is at work or has done it."""
    patient = Patient(board.url, call.title)
    number = _unused(board, call, patient) - 1
    if number == 0:
        return None
    last = patient.ask(board.job, f"{call.name}-{number}")
    is_there = last is not None and last["status"] in (*UNDER_WAY, "SUCCEEDED")
    return f"{call.name}-{number}" if is_there else None


def _unused(board: Dashboard, call: Call, patient: Patient) -> int:
    """Return the first number that no job of a call has."""
    number = 1
    while patient.ask(board.job, f"{call.name}-{number}") is not None:
        number += 1
    return number


def _send(board: Dashboard, call: Call, remote: str) -> str:
    """Submit a job, and return its name; where another clone has just sent the same, its job is taken.

    Raises:
        UserError: a value is too large and there is no remote, or the cluster does not take the job.
    """
    patient, sender = Patient(board.url, call.title), secrets.token_hex(8)
    job = f"{call.name}-{_unused(board, call, patient)}"
    note = {"title": call.title, "stage": call.stage, "url": board.url, "sender": sender}
    folder().mkdir(parents=True, exist_ok=True)
    write_bytes(_note(job), json.dumps(note).encode())

    def submit() -> str:
        try:
            sending.send(board, call, job, sender, folder() / "sent", remote)
        except UserError:
            if board.job(job) is None:
                raise
        return _sender(board.job(job)) or sender

    try:
        if patient.ask(submit) != sender:
            forget(job)
    except KeyboardInterrupt:
        _stop(board, job, call.title)
        raise
    except BaseException:
        forget(job)
        raise
    return job


def _stop(board: Dashboard, job: str, title: str) -> None:
    """Stop a job, unless another clone has sent it; where nobody answers, it stays noted."""
    note = _read(job)
    if note is None:
        return
    try:
        known = board.job(job, seconds=_STOP_SECONDS)
        if known is None:  # it may have been on its way
            time.sleep(1)
            known = board.job(job, seconds=_STOP_SECONDS)
        is_mine = _sender(known) == note["sender"] and known["status"] in UNDER_WAY if known else False
        if is_mine:
            board.stop(job, seconds=_STOP_SECONDS)
    except Cut as error:
        print(f"{title}: {job} goes on, since {board.url} does not answer ({error}); attach finds it", flush=True)
        return
    forget(job)


def _sender(known: dict[str, Any] | None) -> str:
    return str(((known or {}).get("metadata") or {}).get("sender", ""))


def _note(job: str) -> Path:
    return folder() / f"{job}.json"


def _read(job: str) -> dict[str, Any] | None:
    """Read a job's file; None: there is none, or not the whole of it."""
    with contextlib.suppress(OSError, ValueError):
        note = json.loads(_note(job).read_text())
        if isinstance(note, dict) and note.keys() >= {"title", "stage", "url", "sender"}:
            return note
    return None
