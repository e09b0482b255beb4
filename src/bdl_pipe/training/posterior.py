"""Posteriors that predict with a fitted learner: their fit, their state, and how they are loaded."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, final, runtime_checkable

import torch
from torch import Tensor

from ..artifacts import State
from ..config import read, to_mapping
from ..data.fitdata import FitData
from ..method import Inputs, StageSpec, Task
from ..networks import NetworkConfig, fastest_order
from ..networks.base import Replicas
from ..posterior_protocols import grad_of_inputs
from ..predictive import Predictive
from ..progress import Report
from ..seeds import Seed
from .fit import fit_epochs, last_snapshot
from .learner import FitResult, Learner, TrainingConfig, Weights

C = TypeVar("C")
L = TypeVar("L", bound=Learner)


@runtime_checkable
class TrainedConfig(Protocol):
    """The config fields that all methods that train one network share."""

    @property
    def network(self) -> NetworkConfig: ...

    @property
    def training(self) -> TrainingConfig: ...


@dataclass(frozen=True)
class LearnerSpec(Generic[C]):
    """The description from which a learner is built.

    A subclass fixes the type of the config, so that a stored description can be read.

    Attributes:
        config: the method's config.
        input_shape: the shape of one transformed row.
        outputs: the number of classes or target columns.
        task: classification or regression.
    """

    config: C
    input_shape: tuple[int, ...]
    outputs: int
    task: Task


class LearnerPosterior(Generic[L]):
    """A posterior that predicts with a fitted learner.

    Its state has the tensors of the learner's ``state_dict``, and a config with ``spec``, ``epochs`` and ``loss``.

    Attributes:
        key: the posterior's key in ``registry.POSTERIORS``.
        spec_class: the dataclass of ``spec``.
        learner_class: the learner's class, which is called with a spec, the seed address of the weights and, in a fit,
            initial weights.
    """

    key: ClassVar[str]
    spec_class: ClassVar[Any]
    learner_class: ClassVar[Any]

    @classmethod
    def spec(cls, config: Any, data: FitData) -> Any:
        """Return the spec of a learner for ``data`` with the method's ``config``."""
        return cls.spec_class(config, data.input_shape, data.outputs, data.task)

    @classmethod
    def build(cls, spec: Any, data: FitData, rng: Seed, start: Weights | None) -> L:
        """Return a learner for ``data`` to train, with the weights ``start``, or new weights if it is None."""
        learner: L = cls.learner_class(spec, rng, start)
        return learner

    @classmethod
    def skeleton(cls, spec: Any) -> L:
        """Return a learner of the fitted shape, with arbitrary weights."""
        learner: L = cls.learner_class(spec, Seed(0))
        return learner

    @staticmethod
    def finish(spec: Any, fitted: FitResult, data: FitData, rng: Seed) -> Mapping[str, Tensor]:
        """Return the tensors of the state. The default is the trained weights; a subclass may compute more."""
        return fitted.state

    @final
    def __init__(self, learner: L, config: Mapping[str, Any]) -> None:
        """Create the posterior from a learner and the ``config`` of the posterior's state."""
        self.learner, self._config = learner.eval(), dict(config)
        self.learner.to(memory_format=fastest_order(learner))  # type: ignore[call-overload]
        self._learners = Replicas(self.learner)

    @final
    @classmethod
    def fit(
        cls,
        data: Sequence[FitData],
        inputs: Sequence[Inputs],
        config: TrainedConfig,
        *,
        rngs: Sequence[Seed],
        report: Report,
    ) -> list[State]:
        """Fit a posterior to each of ``data``, from the last snapshot of a trajectory in its ``inputs``, if any.

        Raises:
            ConfigError: the trajectory has another network, ``training.early_stopping`` is set together with a
                trajectory, or the learner cannot be built on this network.
        """
        spec = cls.spec(config, data[0])

        def build(start: Weights | None, rows: FitData, rng: Seed) -> L:
            return cls.build(spec, rows, rng, start)

        starts = [last_snapshot(i, config.network, config.training, d) for i, d in zip(inputs, data, strict=True)]
        builds = [partial(build, start) for start in starts]
        fitted = fit_epochs(builds, data, config.training, rngs=rngs, report=report)
        return [cls.fitted_state(spec, *member) for member in zip(fitted, data, rngs, strict=True)]

    @final
    @classmethod
    def stage(cls) -> StageSpec:
        """Return the stage of :meth:`fit`, which may start from a trajectory and may be data-parallel."""
        return StageSpec(fit_many=cls.fit, needs={"trajectory": "one_to_one"}, input_optional=True, data_parallel=True)

    @final
    @classmethod
    def fitted_state(cls, spec: Any, fitted: FitResult, data: FitData, rng: Seed) -> State:
        """Return the posterior's state for a learner of ``spec`` that was fitted to ``data`` with the seed ``rng``."""
        about = {"epochs": fitted.epochs, "loss": fitted.loss, "spec": to_mapping(spec)}
        return State(dict(cls.finish(spec, fitted, data, rng)), {"posterior": cls.key, **about})

    @final
    def lent(self) -> AbstractContextManager[L]:
        """Return a context with the learner for one call; some learners put drawn weights into themselves."""
        return self._learners.one()

    @grad_of_inputs
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Predict. Draws, if any, depend on ``rng`` alone and not on the batch."""
        with self.lent() as learner:
            return learner.predict(inputs, rng=rng)

    @final
    def state(self) -> State:
        return State(dict(self.learner.state_dict()), dict(self._config))

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> Self:
        learner = cls.skeleton(read(cls.spec_class, state.config["spec"], "spec")).to(device)
        learner.load_state_dict(state.tensors)
        return cls(learner, state.config)
