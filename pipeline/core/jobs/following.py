"""Following a job: its output is read line by line, and its results are fetched and verified."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from bdl_pipe.errors import UserError

from . import calls
from .dashboard import UNDER_WAY, Cut, Dashboard, Patient, bottom, is_half, reason

AGAIN: Final = ": run the command once more"
_AGAIN_SECONDS: Final = 1.0
_FETCHES: Final = 3
_WORDS: Final = 8  # last lines of a job that are looked at when it fails
_FEW: Final = 200  # lines that are asked for at a time: a job writes about one a second


class Listener(Protocol):
    """Whoever wants what a job sends home."""

    def event(self, event: Mapping[str, Any]) -> None: ...

    def file(self, name: str, blob: bytes) -> None: ...

    def missing(self) -> list[str]:
        """List what has not come home, of all that is wanted."""
        ...


class Gone(UserError):
    """A job, or what it has made, is not on the cluster any more: whoever wants it sends a new one."""


def follow(board: Dashboard, job: str, title: str, listener: Listener) -> None:
    """Pass on a job's events and files up to its end.

    Raises:
        Gone: the cluster has forgotten the job, or what it made.
        UserError: what the call raised, or the job ended before its time.
        RuntimeError: the call failed otherwise; with its traceback as a note.
    """
    heard, patient = 0, Patient(board.url, title)
    while True:
        known = patient.ask(board.job, job)  # before the lines, so that none is missed of a job that has ended
        if known is None:
            raise Gone(f"the cluster at {board.url} has forgotten {job}{AGAIN}")
        events, words = patient.ask(_said, board, job, known, heard)
        for event in events:
            heard = event["n"]
            if _ended(event, title):
                return _require_all(job, listener)
            if "said" in event:
                print(f"{title}: {event['said']}", flush=True)
            elif "file" in event:
                listener.file(event["file"], patient.ask(_fetch, board, job, event))
            else:
                listener.event(event)
        if known["status"] == "SUCCEEDED":
            raise Gone(f"the output of its job {job} is not there any more{AGAIN}")
        if known["status"] not in UNDER_WAY:
            said = bottom("\n".join((known.get("message") or "", *words)))
            raise UserError(f"its job {job} ended as {known['status']} ({said})")
        time.sleep(_AGAIN_SECONDS)


def _require_all(job: str, listener: Listener) -> None:
    """Refuse the end of a job that an earlier command has sent with a part of the work.

    Raises:
        Gone: naming what is missing.
    """
    if missing := listener.missing():
        raise Gone(f"its job {job} has ended without {', '.join(missing)}{AGAIN}")


def _ended(event: Mapping[str, Any], title: str) -> bool:
    if "refused" in event:
        raise UserError(event["refused"])
    if "failed" in event:
        if is_half(event["failed"]):
            raise UserError(f"{title}: {bottom(event['failed'])}")
        error = RuntimeError(f"{title}: {event['failed']}")
        error.add_note(event["trace"])
        raise error
    return "ended" in event


def _fetch(board: Dashboard, job: str, event: Mapping[str, Any]) -> bytes:
    """Fetch a result, and make sure that it is what the job wrote."""
    path, known, said = event["path"], board.job(job) or {}, ""
    for attempt in range(_FETCHES):
        if attempt:
            time.sleep(_AGAIN_SECONDS)
        answer = board.log(path, known.get("driver_node_id"), -1)
        if answer.status_code != 200:
            said = f"{path} is not there any more (status {answer.status_code})"
            continue
        blob = _read(answer)
        if hashlib.sha256(blob).hexdigest() == event["sha256"]:
            return blob
        said = f"{path} came altered {_FETCHES} times ({len(blob)} of {event['bytes']} bytes)"
    kind = UserError if known.get("status") in UNDER_WAY else Gone
    raise kind(f"{board.url}: {said}{AGAIN}")


def _said(board: Dashboard, job: str, known: Mapping[str, Any], heard: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the events of a job after the one of number ``heard``, and the last of its other words.

    Few lines are asked for, all where an event before them is missing. No request outlasts its answer: Ray's dashboard
    goes on following the log of a job that has ended, long after its reader has left, and of such it has room for 100.
    """
    events, words = list[dict[str, Any]](), list[str]()
    for most in (_FEW, -1):
        lines = _lines(board, job, known, most)
        read = [(calls.event(line), line) for line in lines]
        events = [event for event, _ in read if event is not None]
        words = [line for event, line in read if event is None][-_WORDS:]
        if len(lines) < _FEW or (events and events[0]["n"] <= heard + 1):
            break
    return [event for event in events if event["n"] > heard], words


def _lines(board: Dashboard, job: str, known: Mapping[str, Any], most: int) -> list[str]:
    """Return the last lines of a job's output, -1: all; none where there is no output yet, or no more."""
    node = known.get("driver_node_id")
    if not node:  # it waits for its start
        return []
    answer = board.log(f"job-driver-{job}.log", node, most)
    if answer.status_code != 200:
        return []
    *whole, rest = _read(answer).decode(errors="replace").split("\n")
    return whole if known["status"] in UNDER_WAY else [*whole, rest]


def _read(answer: Any) -> bytes:
    import requests

    try:
        return b"".join(answer.iter_content(2**20))
    except requests.RequestException as error:
        raise Cut(reason(error)) from None
