"""Following a job: its output is read line by line, and its results are fetched and verified."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from bdl_pipe.errors import UserError

from . import calls
from .dashboard import UNDER_WAY, Cut, Dashboard, Patient, bottom, is_half, reason

AGAIN: Final = ": run the command once more"
_SILENCE_SECONDS: Final = 12.0  # after which a line is taken to be cut: a job speaks every five
_AGAIN_SECONDS: Final = 1.0
_FETCHES: Final = 3
_WORDS: Final = 8  # last lines of a job that are looked at when it fails
_LONGEST: Final = 2**20  # bytes of an unfinished line that are kept of somebody's words


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
    heard, words, patient = 0, list[str](), Patient(board.url, title)
    while True:
        known = patient.ask(board.job, job)  # before the lines, so that none is missed of a job that has ended
        if known is None:
            raise Gone(f"the cluster at {board.url} has forgotten {job}{AGAIN}")
        for number, line in enumerate(_lines(board, job, known)):
            if number < heard:
                continue
            heard = number + 1
            event = calls.event(line)
            if event is None:
                words = [*words, line][-_WORDS:]
            elif _ended(event, title):
                return _require_all(job, listener)
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
    import requests

    path, known, said = event["path"], board.job(job) or {}, ""
    for attempt in range(_FETCHES):
        if attempt:
            time.sleep(_AGAIN_SECONDS)
        answer = board.get(
            "api/v0/logs/file", stream=True, node_id=known.get("driver_node_id"), filename=path, lines=-1
        )
        if answer.status_code != 200:
            said = f"{path} is not there any more (status {answer.status_code})"
            continue
        try:
            blob = b"".join(answer.iter_content(2**20))
        except requests.RequestException as error:
            raise Cut(reason(error)) from None
        if hashlib.sha256(blob).hexdigest() == event["sha256"]:
            return blob
        said = f"{path} came altered {_FETCHES} times ({len(blob)} of {event['bytes']} bytes)"
    kind = UserError if known.get("status") in UNDER_WAY else Gone
    raise kind(f"{board.url}: {said}{AGAIN}")


def _lines(board: Dashboard, job: str, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield all lines of a job's output from the first on: up to the end of one that has ended, else until silence."""
    import requests

    node, name, rest = known.get("driver_node_id"), f"job-driver-{job}.log", bytearray()
    if not node:  # it waits for its start
        return
    how: dict[str, Any] = {"interval": 0.5} if known["status"] in UNDER_WAY else {}
    kind = "stream" if how else "file"
    try:
        answer = board.get(
            f"api/v0/logs/{kind}", stream=True, seconds=_SILENCE_SECONDS, node_id=node, filename=name, lines=-1, **how
        )
        if answer.status_code != 200:
            return
        with answer:
            for chunk in answer.iter_content(None):
                rest += chunk
                if b"\n" in chunk:
                    *whole, rest = rest.split(b"\n")
                    for line in whole:
                        yield line.decode(errors="replace")
                elif len(rest) > _LONGEST and calls.MARK.encode() not in rest:
                    del rest[:-_LONGEST]
    except (Cut, requests.RequestException):
        return  # whoever asks next hears why
    if rest:
        yield rest.decode(errors="replace")
