"""What a method is: the protocol that every family fills and the registry lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from .artifacts import State
from .data.examples import Task as Task
from .data.fitdata import FitData
from .data.size import Section, Size
from .errors import require
from .progress import Report
from .seeds import Seed

Kind = Literal["trajectory", "teacher", "coreset", "student"]
FanIn = Literal["one_to_one", "cyclic", "all", "earlier"]
Inputs = Mapping[str, Sequence[State]]  # stage kind -> the states that are taken, in order; tensors are read on demand


@runtime_checkable
class Fit(Protocol):
    """A function that fits one seed of a stage's artifact: a trajectory, a chain, a coreset, a posterior.

    ``config`` is the method's config; ``inputs`` are the states of the artifacts that it needs; ``rng`` is this seed's
    own address. A student's state is a posterior's (``config["posterior"]`` names its class in
    ``registry.POSTERIORS``).
    """

    def __call__(self, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State: ...


@runtime_checkable
class FitMany(Protocol):
    """A function that fits several seeds at once, each as :class:`Fit` would, up to rounding.

    Seed i is fitted from ``data[i]``, ``inputs[i]`` and ``rngs[i]``. All data are of one shape and equally many rows.
    """

    def __call__(
        self, data: Sequence[FitData], inputs: Sequence[Inputs], config: Any, *, rngs: Sequence[Seed], report: Report
    ) -> list[State]: ...


@runtime_checkable
class FromCheckpoint(Protocol):
    """A function that reads what a fit saved by ``report.save`` as a result; the arguments are that fit's."""

    def __call__(self, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State: ...


@dataclass(frozen=True)
class Summary:
    """What all seeds of a fit say together, for tracking, warnings and the report.

    Attributes:
        metrics: such as R-hat of chains; of several splits, one figure of all.
        warnings: one line each.
        traces: functional -> its value at each draw of each chain of the first split [chain][draw].
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    traces: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class StageSpec:
    """The part of a method in one stage kind. It has ``fit`` or ``fit_many``, not both.

    Attributes:
        fit: fits one seed.
        fit_many: fits several small ones at once, where that is much faster; used for tables, where they are not made
            from posteriors, whose shapes may differ. One alone is fitted by it, too.
        needs: the stage kinds whose artifacts it is made from, beside the data: all of these; and which states of each
            a seed takes (:func:`fan_in`). Those with ``earlier`` may be left out, and are of the data set one step
            before (``data.increment``); all others are of the run's own.
        input_optional: it may be made from some of ``needs``, or from the data alone: they are places to start from.
        data_parallel: several processes may fit one seed together, each with a share of every batch
            (:mod:`bdl_pipe.distributed`); without, each seed is fitted by one.
        in_driver: a seed takes less time than a worker process takes to start: do not start one.
        from_checkpoint: a checkpoint of the fit -> what it would return had it stopped there; with it a search can give
            up a bad trial early.
        validate_sources: checks a config against those of the artifacts that it is made from, by stage kind; raises
            ConfigError with the key in its own config, or ``input``.
        summarise: what all seeds of all splits say together: (states [split][seed], data [split], config) ->
            :class:`Summary`.
    """

    fit: Fit | None = None
    fit_many: FitMany | None = None
    needs: Mapping[Kind, FanIn] = field(default_factory=dict)
    input_optional: bool = False
    data_parallel: bool = False
    in_driver: bool = False
    from_checkpoint: FromCheckpoint | None = None
    validate_sources: Callable[[Any, Mapping[Kind, Any]], None] | None = None
    summarise: Callable[[Sequence[Sequence[State]], Sequence[FitData], Any], Summary] | None = None

    def __post_init__(self) -> None:
        require((self.fit is None) != (self.fit_many is None), "stages", "must have fit or fit_many, and not both")

    @property
    def required(self) -> set[Kind]:
        """Return the stage kinds without whose artifacts it cannot be made."""
        return set() if self.input_optional else {kind for kind, rule in self.needs.items() if rule != "earlier"}

    @property
    def fit_one(self) -> Fit:
        """Return the function that fits one seed, whichever of the two there is."""
        if self.fit_many is None:
            assert self.fit is not None
            return self.fit
        return partial(_one_of_many, self.fit_many)


def fan_in(rule: FanIn, number: int, count: int) -> Sequence[int]:
    """Say which of an artifact's ``count`` states seed ``number`` is made from.

    ``one_to_one``: the one of its own number; ``cyclic``, ``earlier``: the same, from the first again after the last;
    ``all``.
    """
    if rule == "all":
        return range(count)
    return [number if rule == "one_to_one" else number % count]


def _one_of_many(fit_many: FitMany, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    (state,) = fit_many([data], [inputs], config, rngs=[rng], report=report)
    return state


@dataclass(frozen=True)
class Default:
    """A method's part in a comparison of methods on a data set, as it follows from the data set's size.

    Attributes:
        cost: its time, in units of 2,000 steps of a plain network; measured.
        upstream: the key in some method's ``upstream`` of the run that it is made from; empty: it is made from the
            data alone.
        override: the hyperparameters that differ from ``methods.<name>``.
        suits: whether it is affordable and defined at a size; tasks that the method cannot predict are left out anyway.
    """

    cost: float
    upstream: str = ""
    override: Callable[[Size], Section] = lambda size: {}
    suits: Callable[[Size], bool] = lambda size: True


@dataclass(frozen=True)
class Upstream:
    """A run in a comparison that runs of several methods are made from.

    Attributes:
        kind: the stage kind that makes it.
        seeds: the number of seeds.
        cost: as :attr:`Default.cost`.
        override: the hyperparameters that differ from ``methods.<name>``.
        start: the key of the upstream run that it starts from; empty: it starts from the data.
    """

    kind: Kind
    seeds: int
    cost: float
    override: Callable[[Size], Section]
    start: Callable[[Size], str] = lambda size: ""


@dataclass(frozen=True)
class Method:
    """An entry of the registry.

    Attributes:
        name: its key under ``methods`` in params.yaml, and in every table.
        config: the frozen dataclass that reads ``methods.<name>``.
        tasks: what it can predict.
        stages: stage kind -> what it does there.
        search: dotted config keys that Ray Tune may vary -> (low, high, scale); integers are on a log scale, too.
        default: its part in a comparison on a data set; None: it is part of none.
        upstream: key -> a run of it that other methods' runs in a comparison are made from; no two methods share a key.
        imitates: a run of it imitates a posterior: the run that it is made from, the one that has the same teacher or
            coreset, or one of its own that is not stored. The report shows what it loses.
    """

    name: str
    config: type
    tasks: tuple[Task, ...]
    stages: Mapping[Kind, StageSpec]
    search: Mapping[str, tuple[float, float, Literal["log", "linear", "integer"]]] = field(default_factory=dict)
    default: Default | None = None
    upstream: Mapping[str, Upstream] = field(default_factory=dict)
    imitates: bool = False
