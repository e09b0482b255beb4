"""Learners: modules that are trained by gradients, with their own training loss and predictive."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, final

import torch
from torch import Tensor, nn

from ..config import LATER
from ..data.augment import AugmentConfig
from ..errors import require, require_positive
from ..networks import Network
from ..predictive import Predictive
from ..seeds import Seed
from .loop import OptimiserConfig
from .snapshots import RunningMoments

Weights = dict[str, Tensor]
ROW_WEIGHTS: Final = "row_weights"  # key of the weights of a batch's rows among a step's numbers, 1 in the mean
TOTAL_WEIGHT: Final = "total_weight"  # key of the sum of the weights of all rows, before they became 1 in the mean


class Learner(nn.Module, ABC):
    """A network with a training loss and a predictive."""

    @abstractmethod
    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        """Return the scalar training loss of a batch. Several learners trained as one model allow no side effects.

        Args:
            inputs: the batch's transformed inputs.
            targets: the batch's transformed targets.
            num_train: the number of training rows.
            noise: the random numbers that :meth:`noise` drew for this step.
        """

    @abstractmethod
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive of transformed inputs."""

    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive used for validation scores; may be a cheaper approximation."""
        return self.predict(inputs, rng=rng)

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score of rows, and parameters that are estimated on these rows by maximum likelihood.

        Args:
            predicted: the predictive of each part of the rows, with its targets.

        Returns:
            The mean negative log-likelihood under the estimated parameters, and these parameters by name, for
                :meth:`with_estimated`: no parameters, or the noise.
        """
        return nll(predicted), {}

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        """Replace fitted weights by the parameters that :meth:`estimated` estimated."""
        return {**weights, **estimates}

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of ``steps`` steps of ``batch`` rows, each [steps, ...]; called once an epoch."""
        return {}

    def undecayed(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return set()

    @final
    def draw(self, rng: Seed, device: torch.device) -> dict[str, Tensor]:
        """Return the noise of one draw that all rows share: the noise of a step of one row."""
        return {name: v[0].to(device) for name, v in self.noise(1, 1, rng.generator()).items()}


class WeightedLearner(Learner):
    """A learner whose loss is −(1/B) Σ_i w_i log p(y_i | x_i) if rows have weights w_i, which are 1 in the mean.

    Its ``forward`` finds the weights of the batch in ``noise`` under :data:`ROW_WEIGHTS`, and under
    :data:`TOTAL_WEIGHT` the sum T of all weights, by which a loss with the KL of a posterior divides this KL.
    """

    def estimated(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Return :meth:`Learner.estimated` under the weighted log-likelihood; ``weights`` are of all rows [row]."""
        return nll(predicted, weights), {}


class NoisyLearner(Learner):
    """A learner with noise for each row, with blocks of noise shorter than an epoch, or with scheduled numbers."""

    @abstractmethod
    def share(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's part of a step's noise: the noise of its own rows, and the noise that all rows share.

        See :mod:`bdl_pipe.distributed`.
        """

    def noise_steps(self, batch: int) -> int | None:
        """Return the number of steps that draw their noise together; None: an epoch. This number changes the noise."""
        return None

    def scheduled(self, epochs: Tensor) -> dict[str, Tensor]:
        """Return numbers that follow a schedule, [step] each; ``epochs`` [step] counts the epochs before each step."""
        return {}


def nll(predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None) -> float:
    """Return the mean negative log-likelihood over the rows of several parts, given as (predictive, targets).

    With the rows' weights [row] the mean is weighted.
    """
    each = torch.cat([of.log_prob(targets).double() for of, targets in predicted])
    return -float(each.mean() if weights is None else (weights * each).sum() / weights.sum())


def begin(network: Network, start: Weights | None) -> Network:
    """Return ``network``, with the weights ``start`` if they are given."""
    if start is not None:
        network.load_state_dict(start)
    return network


@dataclass(frozen=True)
class EarlyStopping:
    """Settings that choose the number of epochs on validation rows.

    At a constant learning rate one fit is scored during training. With a schedule, which ends at a low rate, several
    fits are scored at their ends: each has the whole schedule and one of the :meth:`lengths`. If the longest length has
    the best score, all epochs are run.

    Attributes:
        every: the number of epochs between scores; with a schedule, the shortest length.
        patience: the number of epochs without a better score after which training stops. null: it never stops early.
            With a schedule it must be null: the first length with a worse score is the last that is tried.
        averaged: whether the scores are of the mean of the epoch's iterates, which are the weights at the ends of its
            parts (a trajectory's ``snapshots_per_epoch``). At a constant rate the last iterate's score varies from
            epoch to epoch, whereas methods that average iterates do not. An epoch of one part has only its last
            weights. Must be false with a schedule.
    """

    every: int
    patience: int | None
    averaged: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        require(self.every > 0, "every", "must be > 0", self.every)
        enough = self.patience is None or self.patience >= self.every
        require(enough, "patience", f"must be >= every ({self.every}) or null", self.patience)

    def lengths(self, epochs: int) -> list[int]:
        """Return the lengths of the fits with a schedule that are scored, the shortest first.

        They are a half of ``epochs``, a quarter, … down to ``every``, rounded up. If these are fewer than two,
        ``epochs`` is added.
        """
        lengths = [epochs]
        while (half := -(-lengths[-1] // 2)) >= self.every and half < lengths[-1]:
            lengths.append(half)
        return lengths[:0:-1] if len(lengths) > 2 else lengths[::-1]


NoiseRule = Literal["learned", "validation", "training"]


def require_fits(early_stopping: EarlyStopping | None, optimiser: OptimiserConfig) -> None:
    """Require that the settings of early stopping fit the learning rate.

    Raises:
        ConfigError: ``patience`` or ``averaged`` is set and the learning rate has a schedule.
    """
    if early_stopping is not None and optimiser.schedule != "constant":
        schedule = f"with optimiser.schedule {optimiser.schedule}"
        patience, averaged = early_stopping.patience, early_stopping.averaged
        require(patience is None, "early_stopping.patience", f"must be null {schedule}", patience)
        rule = f"must be false {schedule}, whose last rate is low"
        require(not averaged, "early_stopping.averaged", rule, averaged)


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a learner's fit.

    Attributes:
        epochs: the number of passes over the training rows; with ``early_stopping`` the largest number.
        batch: the number of rows of a step. A last, partial batch is dropped unless it is the only one, so that all
            steps have equal weight.
        optimiser: the update rule and its schedule over all ``epochs``.
        early_stopping: how the number of epochs is chosen. null, or a data set without validation rows: all epochs are
            run.
        augmentation: the augmentation of training images. null: no augmentation.
        noise: the rule for the noise of regression. ``learned``: by the training loss. ``validation``: by maximum
            likelihood on validation rows, at the best epoch of early stopping; without early stopping, as ``learned``.
            ``training``: by maximum likelihood on 5,000 training rows after the fit, if the network cannot memorise its
            rows: the likelihood is of the predictive, whereas a variational loss counts the draws' disagreement as
            noise. An estimate replaces a single learned variance (``bnn``, ``dropout``, ``sngp``, inducing weights,
            ``map_blr``, ``svgp``) and scales the covariance of ``vbll``. A network's variances of each row (``sgd``)
            are shifted, and shrunk towards a common value unless the rows show that they differ
            (:func:`~bdl_pipe.training.likelihood.least_head_nll`).
    """

    epochs: int
    batch: int
    optimiser: OptimiserConfig
    early_stopping: EarlyStopping | None = None
    augmentation: AugmentConfig | None = None
    noise: NoiseRule = field(default="learned", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch")
        require_fits(self.early_stopping, self.optimiser)


@dataclass(frozen=True)
class FitResult:
    """The result of one model's fit.

    Attributes:
        snapshots: the ``state_dict`` at the ends of the last epochs, oldest first; the last is the fitted model.
        epochs: the number of epochs that were run.
        loss: the mean training loss of the last epoch.
        moments: the moments of the parameters over the iterates of the snapshot policy; their count may be 0.
    """

    snapshots: list[dict[str, Tensor]]
    epochs: int
    loss: float
    moments: RunningMoments = field(default_factory=RunningMoments)

    @property
    def state(self) -> dict[str, Tensor]:
        """Return the fit's last weights."""
        return self.snapshots[-1]
