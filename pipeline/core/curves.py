"""Curves: a stage's metrics by step, in ``.state/curves/<kind>/<key>.jsonl``.

The stage's process appends lines; the process that tracks stages reads them during or after the stage. No result
depends on this file, and DVC does not track it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdl_pipe.files import sha256

from . import places, provenance


@dataclass(frozen=True)
class Point:
    """Values that a stage measured at one step.

    Attributes:
        time: seconds since 1970.
    """

    time: float
    step: int
    metrics: Mapping[str, float]


class Curve:
    """The file of a new run of a stage, which replaces the last run's file."""

    def __init__(self, kind: str, key: str) -> None:
        self._place = places.curve(kind, key)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._place.write_text(_line({"started": time.time(), "commit": provenance.commit()}), encoding="utf-8")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Append the values of a step."""
        point = {"time": time.time(), "step": step, "metrics": {name: float(value) for name, value in values.items()}}
        with self._place.open("a") as file:
            file.write(_line(point))


def read(place: Path, since: float = 0.0) -> list[Point]:
    """Read the points that were measured after ``since``, in seconds since 1970."""
    return [Point(**line) for line in _lines(place) if line.get("time", 0.0) > since]


def finish(kind: str, key: str) -> None:
    """Append the hash of the stage's identity file, which says whose curve this is: DVC may restore another result."""
    place = places.curve(kind, key)
    if place.is_file():
        with place.open("a") as file:
            file.write(_line({"identity": sha256(places.identity(kind, key))}))


def begun(place: Path, identity: str) -> Mapping[str, Any]:
    """Return ``started`` (seconds since 1970) and ``commit`` of a result's run; {} if the curve is of another result.

    Args:
        identity: the hash of the result's identity file.
    """
    lines = _lines(place)
    return lines[0] if lines and lines[-1].get("identity") == identity else {}


def _line(facts: Mapping[str, object]) -> str:
    return json.dumps(facts) + "\n"


def _lines(place: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a file; an unfinished line is skipped."""
    try:
        text = place.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
