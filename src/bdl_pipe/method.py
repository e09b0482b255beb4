"""The interface of a method, which each family implements and the registry lists."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
Inputs = Mapping[str, Sequence[State]]  # stage kind -> the input states, in order; tensors are read on demand


@runtime_checkable
class Fit(Protocol):
    """A function that fits one seed of a stage's artifact: a trajectory, a chain, a coreset, a posterior.

    ``config`` is the method's config; ``inputs`` are the states of the artifacts that the fit needs; ``rng`` is the
    address of this seed. A student's state is a posterior's (``config["posterior"]`` names its class in
    ``registry.POSTERIORS``).

    Raises:
        UserError: the data, the inputs or the config do not suit the method; a fit's docstring names its own rules.
        Diverged: a loss, a weight or an image became NaN or infinite.
    """

    def __call__(self, data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State: ...


@runtime_checkable
class FitMany(Protocol):
    """A function that fits several seeds at once. Up to rounding, each result equals the result of :class:`Fit`.

    Seed i is fitted from ``data[i]``, ``inputs[i]`` and ``rngs[i]``. All data have the same shape and number of rows.
    """

    def __call__(
        self, data: Sequence[FitData], inputs: Sequence[Inputs], config: Any, *, rngs: Sequence[Seed], report: Report
    ) -> list[State]: ...


@runtime_checkable
class FromCheckpoint(Protocol):
    """A function that turns a checkpoint (saved by ``report.save``) into a result, given the arguments of ``fit``."""

    def __call__(self, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State: ...


@dataclass(frozen=True)
class Summary:
    """Diagnostics over all seeds of a fit, for tracking, warnings and the report.

    Attributes:
        metrics: name -> value, such as the R-hat of chains; one value for all splits together.
        warnings: lines for the user.
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
        fit_many: fits several seeds at once, if that is much faster for small models. It fits several seeds if the data
            are tables and the inputs are no posteriors (their shapes may differ), and otherwise one seed at a time.
        needs: stage kind of an input artifact -> the rule that picks a seed's states (:func:`fan_in`). All kinds are
            required, except kinds with ``earlier``: these are optional and come from the data set one step before
            (``data.increment``). All others come from the run's own data set.
        input_optional: whether each of ``needs`` may be omitted, because the fit can start from the data alone.
        data_parallel: whether several processes can fit one seed, each with a share of every batch
            (:mod:`bdl_pipe.distributed`). Otherwise one process fits a seed.
        random: whether the result depends on the seed, given the inputs.
        in_driver: whether a fit takes less time than starting a worker process, so that the driver process runs it.
        from_checkpoint: turns a checkpoint into the result that the fit would have returned if it had stopped there.
            Searches need it to stop bad trials early.
        validate_sources: checks the method's config against the configs of the input artifacts, by stage kind. It
            raises ConfigError with a key of the method's config, or ``input``.
        summarise: computes the :class:`Summary` of all seeds from (states [split][seed], data [split], config).
    """

    fit: Fit | None = None
    fit_many: FitMany | None = None
    needs: Mapping[Kind, FanIn] = field(default_factory=dict)
    input_optional: bool = False
    data_parallel: bool = False
    random: bool = True
    in_driver: bool = False
    from_checkpoint: FromCheckpoint | None = None
    validate_sources: Callable[[Any, Mapping[Kind, Any]], None] | None = None
    summarise: Callable[[Sequence[Sequence[State]], Sequence[FitData], Any], Summary] | None = None

    def __post_init__(self) -> None:
        require((self.fit is None) != (self.fit_many is None), "stages", "must have fit or fit_many, and not both")

    @property
    def required(self) -> set[Kind]:
        """Return the stage kinds whose artifacts the stage requires."""
        return set() if self.input_optional else {kind for kind, rule in self.needs.items() if rule != "earlier"}

    @property
    def fit_one(self) -> Fit:
        """Return a function that fits one seed, by ``fit`` or ``fit_many``."""
        if self.fit_many is None:
            assert self.fit is not None
            return self.fit
        return partial(_one_of_many, self.fit_many)


def fan_in(rule: FanIn, number: int, count: int, seeds: int = 1) -> Sequence[int]:
    """Return the numbers of the states that seed ``number`` of ``seeds`` takes from an artifact's ``count`` states.

    ``one_to_one``: the state of the same number. ``cyclic`` and ``earlier``: ``number`` modulo ``count``. ``all``: all
    states; several seeds get equal shares of them, since seeds with states in common would not be repeats.
    """
    if rule == "all":
        share = count // seeds
        return range(number * share, (number + 1) * share)
    return [number if rule == "one_to_one" else number % count]


def _one_of_many(
    fit_many: FitMany, data: FitData, inputs: Inputs, config: object, *, rng: Seed, report: Report
) -> State:
    (state,) = fit_many([data], [inputs], config, rngs=[rng], report=report)
    return state


@dataclass(frozen=True)
class Default:
    """The settings of a method's run in a comparison on a data set; they follow from the data set's size.

    Attributes:
        cost: the measured time of a fit, in units of 2,000 steps of a plain network.
        upstream: the key, in a method's ``upstream``, of the run that a fit takes as its input; empty if a fit
            needs only the data.
        override: returns the hyperparameters that differ from ``methods.<name>``, for a size.
        suits: returns whether the method is affordable and defined at a size; its task is checked separately.
        automatic: returns why an estimator takes the method at a size if none is named (``method="auto"``); empty if it
            takes another one.
    """

    cost: float
    upstream: str = ""
    override: Callable[[Size], Section] = lambda size: {}
    suits: Callable[[Size], bool] = lambda size: True
    automatic: Callable[[Size], str] = lambda size: ""


@dataclass(frozen=True)
class Upstream:
    """A run in a comparison that makes an input artifact for the runs of several methods.

    Attributes:
        kind: the stage kind of the run.
        seeds: the number of seeds if a method takes all of them; otherwise the run has one seed.
        cost: the cost of all seeds, see :attr:`Default.cost`.
        override: returns the hyperparameters that differ from ``methods.<name>``, for a size.
    """

    kind: Kind
    seeds: int
    cost: float
    override: Callable[[Size], Section]

    def of(self, stages: Iterable[StageSpec]) -> "Upstream":
        """Return the run for ``stages``, each of which fits one seed: it has one seed if none of them takes all."""
        if any(stage.needs.get(self.kind) == "all" for stage in stages):
            return self
        return replace(self, seeds=1, cost=self.cost / self.seeds)


@dataclass(frozen=True)
class ModelFit:
    """A fit that starts at a user's model (:func:`bdl_pipe.bayesianise`): the facts that its hyperparameters follow.

    Attributes:
        network: the section ``network``.
        rows, batch: the number of training rows, and of rows in a step.
        epochs: the number of additional epochs. None adds no epoch.
        lr: the learning rate. None takes the method's rate.
        precision: λ_n of a chain's targets; None for classes.
        points: for inducing weights, patterns of layers that keep point weights.
        snapshots: the number of snapshots of the trajectory.
        config: the hyperparameters that the user gives.
        draws: the number of networks in a predictive.
    """

    network: Section
    task: Task
    rows: int
    batch: int
    epochs: int | None
    lr: float | None
    precision: float | None = None
    points: Mapping[str, None] | None = None
    snapshots: int = 1
    config: Mapping[str, object] = field(default_factory=dict)
    draws: int = 20

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of whole batches in an epoch."""
        return max(1, self.rows // self.batch)

    @property
    def steps(self) -> int:
        """Return the number of steps of all epochs."""
        return (self.epochs or 1) * self.steps_per_epoch

    def training(self, lr: float, **optimiser: object) -> Section:
        """Return the section ``training``, with the user's learning rate or else the method's rate ``lr``."""
        rule = {"name": "adamw", "lr": self.lr or lr, "schedule": "cosine", "weight_decay": 0.01, "grad_clip_norm": 1.0}
        return {"epochs": self.epochs or 1, "batch": self.batch, "optimiser": {**rule, **optimiser}}


@dataclass(frozen=True)
class FromModel:
    """The declaration that a method can start at a user's model.

    Attributes:
        section: returns the hyperparameters; the user's replace them.
        needs_epochs: whether the fit needs a number of epochs. A method that requires a trajectory gets one of further
            epochs of SGD; other methods train for these epochs.
    """

    section: Callable[[ModelFit], Section] = lambda fit: {}
    needs_epochs: bool = True


@dataclass(frozen=True)
class Method:
    """A method: its name, its config and its stages. The registry lists all methods.

    Attributes:
        name: the method's key under ``methods`` in params.yaml, and its name in tables.
        family: figures show the methods of a family in shades of one colour; empty for a method without relatives.
        config: the frozen dataclass of the section ``methods.<name>``.
        tasks: the tasks that the method supports.
        stages: stage kind -> the method's stage of this kind.
        search: dotted config key that Ray Tune may vary -> (low, high, scale). Scales: ``log``, ``linear``, ``integer``
            (an integer on a log scale).
        settings: the hyperparameters that do not follow from a data set's size, for fits without a params file. With
            ``default`` they and its ``override`` are the whole section; params.yaml has the same values.
        few_rows: the settings of an agent (:class:`bdl_decisions.agents.Agent`) that searches by a few evaluations
            without noise: ``override``, ``region``.
        default: the settings of its run in a comparison. Comparisons omit a method with None.
        upstream: key -> a run of this method that makes an input artifact for other methods' runs; keys are unique
            among all methods.
        from_model: how it starts at a user's model; None if it cannot.
        imitates: whether a run imitates a posterior: the run that it takes as input, the run with the same teacher or
            coreset, or its own posterior that is not stored. The report then shows the loss against this posterior.
        bayesian: whether it predicts by a posterior over the weights of a network, or of its last layer: by draws, in
            closed form, or distilled. One value of the weights (``swa``) and networks without a prior and a likelihood
            (``ensemble``, ``tabm``) are none.
        rival: whether verdicts compare the best Bayesian network with it, since it needs no network.
        optimal: whether its fit ends at an optimum, whatever the seed and the time.
        online: the tasks for which its posterior learns further rows in closed form (``partial_fit``).
        program: whether its posterior becomes a program of torch.export: it predicts without drawing.
        weighs_rows: whether a fit with ``Examples.weights``, its upstream runs included, maximises or is conditioned on
            the weighted log-likelihood Σ w_i log p(y_i | x_i), in which a weight of 2 counts as two equal rows.
        ignores_inputs: whether its predictions are the same for all inputs.
    """

    name: str
    config: type
    tasks: tuple[Task, ...]
    stages: Mapping[Kind, StageSpec]
    search: Mapping[str, tuple[float, float, Literal["log", "linear", "integer"]]] = field(default_factory=dict)
    settings: Section = field(default_factory=dict)
    few_rows: Section = field(default_factory=dict)
    default: Default | None = None
    upstream: Mapping[str, Upstream] = field(default_factory=dict)
    from_model: FromModel | None = None
    imitates: bool = False
    bayesian: bool = False
    rival: bool = False
    optimal: bool = False
    online: tuple[Task, ...] = ()
    program: bool = False
    weighs_rows: bool = False
    ignores_inputs: bool = False
    family: str = ""
