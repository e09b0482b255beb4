"""What is trained by gradients: a module that is its own training loss and has a predictive."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from torch import Tensor, nn

from ..config import LATER
from ..data.augment import AugmentConfig
from ..errors import require
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
        """Return the scalar training loss of a batch; without side effects where many are trained as one."""

    @abstractmethod
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive of transformed inputs."""

    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return what validation scores are taken of: the predictive, or a cheaper form of it."""
        return self.predict(inputs, rng=rng)

    def held_out(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the mean negative log-likelihood of rows that were not trained on, and what these rows fit better.

        Args:
            predicted: what :meth:`validate` says of each part of the rows, with its targets.

        Returns:
            The score under what was found, and that, by name, for :meth:`with_held_out`: nothing, or the noise.
        """
        return nll(predicted), {}

    def with_held_out(self, weights: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return fitted weights with what :meth:`held_out` found: parameters in place of those that training left."""
        return {**weights, **found}

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the random numbers of ``steps`` steps of ``batch`` rows, each [steps, ...]; drawn once an epoch."""
        return {}

    def undecayed(self) -> set[str]:
        """Return names of the parameters that weight decay leaves alone."""
        return set()

    @final
    def draw(self, rng: Seed, device: torch.device) -> dict[str, Tensor]:
        """Return the noise of one draw that all rows share: that of a step of one row."""
        return {name: v[0].to(device) for name, v in self.noise(1, 1, rng.generator()).items()}


class NoisyLearner(Learner):
    """A learner whose noise is more than numbers that all rows and ranks share, drawn an epoch at a time."""

    @abstractmethod
    def share(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's part of a step's noise (:mod:`bdl_pipe.distributed`): of what belongs to rows its own."""

    def noise_steps(self, batch: int) -> int | None:
        """Return how many steps' noise is drawn at once (None: an epoch's); where it differs, so do the numbers."""
        return None

    def scheduled(self, epochs: Tensor) -> dict[str, Tensor]:
        """Return numbers that follow a schedule, [step] each; ``epochs`` [step]: those done before each step."""
        return {}


def nll(predicted: Sequence[tuple[Predictive, Tensor]]) -> float:
    """Return the mean negative log-likelihood of all rows of several parts, each with its predictive."""
    return -float(torch.cat([of.log_prob(targets).double() for of, targets in predicted]).mean())


@dataclass(frozen=True)
class EarlyStopping:
    """The settings of how the number of epochs is chosen on validation rows.

    Attributes:
        every: epochs between scores.
        patience: epochs without a better score after which the search ends; null: none.
        noise: of regression: ``trained``; or ``validation``, as the validation rows of the best epoch say, which no
            step was trained for: one learned variance (``bnn``, ``dropout``, inducing weights) is the one of their
            largest likelihood, and a network's own of each row (``sgd``) are moved along a line:
            made larger, and alike as far as these rows do not show that they differ.
    """

    every: int
    patience: int | None
    noise: Literal["trained", "validation"] = field(default="trained", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.every > 0, "every", "must be > 0", self.every)
        enough = self.patience is None or self.patience >= self.every
        require(enough, "patience", f"must be >= every ({self.every}) or null", self.patience)


def require_constant_lr(early_stopping: EarlyStopping | None, optimiser: OptimiserConfig) -> None:
    """Refuse a schedule where epochs are chosen: over the most epochs there may be it is not that of the chosen number.

    Raises:
        ConfigError: epochs are chosen under a schedule that is not constant.
    """
    fits = early_stopping is None or optimiser.schedule == "constant"
    require(fits, "optimiser.schedule", "must be constant where epochs are chosen", optimiser.schedule)


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a learner's fit.

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
    """The result of one model's fit.

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
        """Return the fit's last weights."""
        return self.snapshots[-1]
