"""Checkpoints of long fits: a fit that was killed continues from the last one, with the same bits.

``fit(data, inputs, config, rng=rng, report=Checkpointed("chain", CheckpointFiles(folder)))`` continues from the last
checkpoint of that name, if there is one. Remove the folder once the result is safe, see ``checkpoint_files``.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

from .artifacts import State, from_bytes, to_bytes
from .display import PARTS
from .errors import ArtifactError
from .metrics.cost import clock, peak_bytes
from .progress import Report

Send = Callable[[str, int, int, Mapping[str, float]], object]  # receives (name, step, total, metrics)
_SEND_SECONDS: Final = 0.5


@runtime_checkable
class Keeper(Protocol):
    """An object that stores checkpoints: bytes with a name."""

    def save(self, name: str, blob: bytes) -> None:
        """Keep a checkpoint in place of the last one of this name."""
        ...

    def load(self, name: str) -> bytes | None:
        """Return the last checkpoint of this name; None if there is none."""
        ...


@runtime_checkable
class Kept(Keeper, Protocol):
    """A keeper that stores results as well as checkpoints, such as ``checkpoint_files.CheckpointFiles``."""

    def finish(self, name: str, blob: bytes) -> None:
        """Keep a result, and remove the checkpoint of this name."""
        ...


@dataclass(frozen=True)
class Done:
    """The result of a fit and its cost, over all its attempts.

    Attributes:
        seconds: the time by ``metrics.cost.clock``: on a CPU the processor time of one thread, else wall time.
        peak_bytes: the peak memory of the fit, see :func:`bdl_pipe.metrics.cost.peak_bytes`.
    """

    result: Any
    seconds: float
    peak_bytes: int


class HandedOver(Exception):
    """Raised by a fit that has reached its time limit in this process and saved a checkpoint."""


@final
class Checkpointed(Report):
    """The report of one fit that keeps checkpoints, and sends progress twice a second and in each fiftieth of steps."""

    def __init__(
        self,
        name: str,
        keeper: Keeper | None,
        send: Send | None = None,
        *,
        every: float = 60.0,
        limit: float = math.inf,
        cost: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the report of the fit ``name``.

        Args:
            keeper: stores the checkpoints. None stores no checkpoint.
            send: receives (name, step, total, metrics).
            every: seconds between two checkpoints.
            limit: seconds after which the fit saves a last checkpoint and raises HandedOver.
            cost: the clock of :attr:`seconds`; all other times are wall time.
        """
        self._name, self._keeper, self._send, self._every, self._limit = name, keeper, send, every, limit
        self._cost, self._began = cost, cost()
        self._start = self._saved = time.monotonic()
        self._sent, self._part = -_SEND_SECONDS, -1
        self._before = 0.0
        self._metrics: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this fit, including earlier attempts up to their last checkpoint."""
        return self._before + self._cost() - self._began

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._metrics.update(metrics or {})
        now, part = time.monotonic(), PARTS * step // total if total else 0
        if self._send is not None and (now - self._sent >= _SEND_SECONDS or part != self._part or step == total):
            self._sent, self._part = now, part
            self._send(self._name, step, total, self._metrics)
            self._metrics = {}

    def due(self) -> bool:
        return self._keeper is not None and (time.monotonic() - self._saved >= self._every or self._is_over())

    def save(self, state: State) -> None:
        if self._keeper is not None:
            self._keeper.save(self._name, with_facts(state, seconds=self.seconds))
            self._saved = time.monotonic()
            if self._is_over():
                raise HandedOver(self._name)

    def load(self) -> State | None:
        stored = facts_of(self._keeper.load(self._name), self._name) if self._keeper is not None else None
        if stored is None:
            return None
        state, facts = stored
        self._before = facts["seconds"]
        return state

    def _is_over(self) -> bool:
        return time.monotonic() - self._start >= self._limit


def measured(
    fit: Callable[[Report], Any],
    name: str,
    keeper: Kept | None,
    send: Send | None = None,
    *,
    every: float = 60.0,
    limit: float = math.inf,
    device: str = "cpu",
) -> Done:
    """Run a fit from its last checkpoint if there is one, store its result, and return it with its cost.

    Args:
        fit: the fit, a function of the report; if there is a keeper, it must return a State.
        device: the device that the fit computes on; :class:`Checkpointed` describes the other arguments.

    Raises:
        HandedOver: the fit saved a checkpoint after ``limit`` seconds; another call continues from it.
    """
    report = Checkpointed(name, keeper, send, every=every, limit=limit, cost=clock(device))
    with peak_bytes(device) as peak:
        result = fit(report)
    done = Done(result, report.seconds, peak.bytes)
    if keeper is not None:
        keeper.finish(name, with_facts(result, seconds=done.seconds, peak_bytes=done.peak_bytes))
    return done


def kept(blob: bytes | None, name: str) -> Done | None:
    """Read a result that :func:`measured` stored; None if there is none or it is damaged."""
    stored = facts_of(blob, name)
    return None if stored is None else Done(stored[0], stored[1]["seconds"], stored[1]["peak_bytes"])


def with_facts(state: State, **facts: object) -> bytes:
    """Write a state and facts about it, such as its seconds, as bytes."""
    return to_bytes(State(state.tensors, {"state": state.config, **facts}))


def facts_of(blob: bytes | None, origin: str) -> tuple[State, dict[str, Any]] | None:
    """Undo :func:`with_facts`; None if there is no blob or it is damaged, so that the work starts over.

    Args:
        origin: the blob's name in errors.
    """
    try:
        stored = from_bytes(blob, origin) if blob else None
    except ArtifactError:
        return None
    return None if stored is None else (State(stored.tensors, stored.config["state"]), stored.config)
