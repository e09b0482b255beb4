"""What a method is: the protocol that every family fills and the registry lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from .artifacts import State
from .data.fitdata import FitData
from .progress import Report
from .seeds import Seed

Kind = Literal["trajectory", "teacher", "coreset", "student"]
Task = Literal["classification", "regression"]
Takes = Literal["each", "turn", "all"]
Inputs = Mapping[str, Sequence[State]]  # stage kind -> the members that are taken, in order; tensors are read on demand


@runtime_checkable
class Make(Protocol):
    """Makes one member of a stage's artifact: a trajectory, a chain, a coreset, a fitted posterior.

    ``config`` is the method's config; ``inputs`` are the members of the artifacts that it needs;
    ``rng`` is this member's own address. A student's state is a posterior's (``config["posterior"]``
    names its class in ``registry.POSTERIORS``).
    """

    def __call__(self, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State: ...


@runtime_checkable
class MakeTogether(Protocol):
    """Makes several members at once, each as :class:`Make` would, up to rounding: member i from ``data[i]``,
    ``inputs[i]`` and ``rngs[i]``. All data are of one shape and equally many rows."""

    def __call__(
        self, data: Sequence[FitData], inputs: Sequence[Inputs], config: Any, *, rngs: Sequence[Seed], report: Report
    ) -> list[State]: ...


@runtime_checkable
class Peek(Protocol):
    """Reads what a make saved by ``report.save`` as a result; the arguments are that make's."""

    def __call__(self, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State: ...


@dataclass(frozen=True)
class Room:
    """What a method does in one stage kind.

    Attributes:
        make: makes one member.
        needs: the stage kinds whose artifacts it is made from, beside the data: all of these; and which members of each
            it takes (:func:`taken`).
        summarise: scores of all members together (R-hat of chains, …), for tracking and warnings:
            (members' states, data, config) -> (metrics, warnings).
        peek: a checkpoint of ``make`` -> what ``make`` would return had it stopped there; with it a
            search can give up a bad trial early.
        together: makes many small members at once, where that is much faster; used for tables, where members are not
            made from posteriors, whose shapes may differ.
        optional: a member may be made from some of ``needs``, or from the data alone: they are places to start from.
        shares: several processes may make one member together, each with a share of every batch
            (``parallel``); without, each member is made by one.
        fits: checks a config against those of the artifacts that it is made from, by stage kind; raises ConfigError
            with the key in its own config, or ``input``.
        light: a member takes less time than a worker process takes to start: do not start one.
    """

    make: Make
    needs: Mapping[Kind, Takes] = field(default_factory=dict)
    summarise: Callable[[list[State], FitData, Any], tuple[dict[str, float], list[str]]] | None = None
    peek: Peek | None = None
    light: bool = False
    together: MakeTogether | None = None
    optional: bool = False
    shares: bool = False
    fits: Callable[[Any, Mapping[Kind, Any]], None] | None = None


def taken(takes: Takes, member: int, count: int) -> Sequence[int]:
    """Which of an artifact's ``count`` members one is made from.

    ``each``: the one of its own number; ``turn``: the same, from the first again after the last; ``all``.
    """
    if takes == "all":
        return range(count)
    return [member if takes == "each" else member % count]


def alone(together: MakeTogether) -> Make:
    """Makes one member by a function that makes several."""
    return partial(_alone, together)


def _alone(together: MakeTogether, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    (state,) = together([data], [inputs], config, rngs=[rng], report=report)
    return state


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    Attributes:
        name: its key under ``methods`` in params.yaml, and in every table.
        config: the frozen dataclass that reads ``methods.<name>``.
        tasks: what it can predict.
        rooms: stage kind -> what it does there.
        search: dotted config keys that Ray Tune may vary -> (low, high, "log" or "linear").
    """

    name: str
    config: type
    tasks: tuple[Task, ...]
    rooms: Mapping[Kind, Room]
    search: Mapping[str, tuple[float, float, Literal["log", "linear"]]] = field(default_factory=dict)
