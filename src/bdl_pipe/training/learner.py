"""What is trained by gradients: a module that is its own training loss and has a predictive; it as a posterior."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from ..artifacts import State
from ..data.augment import AugmentConfig
from ..errors import require
from ..networks import fastest_order
from ..predictive import Predictive
from ..seeds import Seed
from .loop import OptimiserConfig
from .snapshots import RunningMoments


class Learner(nn.Module, ABC):
    """A network with a training loss and a predictive.

    ``num_train`` is the number of rows that are trained on; ``noise`` is what :meth:`noise` drew for this step.
    """

    @abstractmethod
    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        """The scalar training loss of a batch; without side effects where many are trained as one."""

    @abstractmethod
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """The predictive of transformed inputs."""

    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """What validation scores are taken of: the predictive, or a cheaper form of it."""
        return self.predict(inputs, rng=rng)

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of ``steps`` steps of ``batch`` rows, each [steps, ...]; drawn once an epoch."""
        return {}

    def noise_steps(self, batch: int) -> int | None:
        """How many steps' noise is drawn at once; None: an epoch's. Other numbers are drawn where it differs."""
        return None

    def scheduled(self, epochs: Tensor) -> dict[str, Tensor]:
        """Numbers that follow a schedule, beside the noise: [step] each; ``epochs`` [step]: done before each step."""
        return {}

    def share(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's part of a step's noise (``parallel``): all of it, where it does not belong to rows."""
        return noise

    def undecayed(self) -> set[str]:
        """Names of the parameters that weight decay leaves alone."""
        return set()

    @final
    def draw(self, rng: Seed, device: torch.device) -> dict[str, Tensor]:
        """The noise of one draw that all rows share: that of a step of one row."""
        return {name: v[0].to(device) for name, v in self.noise(1, 1, rng.generator()).items()}


@dataclass(frozen=True)
class EarlyStopping:
    """How the number of epochs is chosen on validation rows.

    Attributes:
        every: epochs between scores.
        patience: epochs without a better score after which the search ends; null: none.
    """

    every: int
    patience: int | None

    def __post_init__(self) -> None:
        require(self.every > 0, "every", "must be > 0", self.every)
        enough = self.patience is None or self.patience >= self.every
        require(enough, "patience", f"must be >= every ({self.every}) or null", self.patience)


def require_constant_lr(early_stopping: EarlyStopping | None, optimiser: OptimiserConfig) -> None:
    """A schedule over the most epochs there may be is not that of the chosen number: what was scored is not refitted.

    Raises:
        ConfigError: epochs are chosen under a schedule that is not constant.
    """
    fits = early_stopping is None or optimiser.schedule == "constant"
    require(fits, "optimiser.schedule", "must be constant where epochs are chosen", optimiser.schedule)


@dataclass(frozen=True)
class TrainingConfig:
    """How a learner is fitted.

    Attributes:
        epochs: passes over the rows; with ``early_stopping`` the most there may be. batch: rows a step; a last partial
        batch is dropped where there are others, so that all steps weigh the same. optimiser: the update rule and its
        schedule over all ``epochs``. early_stopping: how the number of epochs is chosen, at a constant rate; null, or
        without validation rows: all of them. augmentation: of training images; null: none.
    """

    epochs: int
    batch: int
    optimiser: OptimiserConfig
    early_stopping: EarlyStopping | None = None
    augmentation: AugmentConfig | None = None

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", "must be > 0", self.epochs)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require_constant_lr(self.early_stopping, self.optimiser)


@dataclass(frozen=True)
class FitResult:
    """A fitted member.

    Attributes:
        snapshots: the ``state_dict`` at the ends of the last epochs, oldest first; the last is the fit.
        epochs: how many were run.
        loss: the mean training loss of the last epoch.
        moments: of the parameters over the iterates that counted; of count 0 where none did.
    """

    snapshots: list[dict[str, Tensor]]
    epochs: int
    loss: float
    moments: RunningMoments = field(default_factory=RunningMoments)

    @property
    def state(self) -> dict[str, Tensor]:
        return self.snapshots[-1]


L = TypeVar("L", bound=Learner)


class LearnerPosterior(ABC, Generic[L]):
    """A fitted learner, predicting as it does itself.

    State: the learner's ``state_dict``; config ``spec``, that :meth:`skeleton` reads, and facts of the fit.
    """

    key: ClassVar[str]

    @staticmethod
    @abstractmethod
    def skeleton(spec: Mapping[str, Any]) -> L:
        """A learner of the shape of the fitted one, whose weights do not matter."""

    @final
    def __init__(self, learner: L, config: Mapping[str, Any]) -> None:
        """``config``: that of its state."""
        self.learner, self._config = learner.eval(), dict(config)
        self.learner.to(memory_format=fastest_order(learner))  # type: ignore[call-overload]

    @final
    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Draws, where there are any, are at ``rng``: equal ones for equal ``rng``, whatever the batch."""
        return self.learner.predict(inputs, rng=rng)

    @final
    def state(self) -> State:
        return State(dict(self.learner.state_dict()), dict(self._config))

    @final
    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "LearnerPosterior[L]":
        learner = cls.skeleton(state.config["spec"]).to(device)
        learner.load_state_dict(state.tensors)
        return cls(learner, state.config)


def posterior_state(key: str, learned: FitResult, about: Mapping[str, Any]) -> State:
    """A posterior's state: the fitted tensors, its class's key and what its skeleton is built from."""
    return State(learned.state, {"posterior": key, "epochs": learned.epochs, "loss": learned.loss, **about})
