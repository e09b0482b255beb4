"""The iterates of a trajectory: the choice of snapshots, and the running moments of their weights.

Snapshots and moments are counted from the end, so that they mean the same with early stopping. A trajectory's state
holds its snapshots under the network's own names, [snapshot, ...], and optionally the moments in float64 under
``iterates.mean.…`` and ``iterates.variance.…``. If the weights before the first step are the first snapshot,
``snapshots_at`` in the config has the epoch of each snapshot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from ..artifacts import State, rows, under
from ..errors import require

_MEAN: Final = "iterates.mean."
_VARIANCE: Final = "iterates.variance."


@dataclass(frozen=True)
class MomentsConfig:
    """The settings of running moments of the weights over iterates at the ends of epochs.

    Attributes:
        count: the number of iterates, up to the last epoch; fewer if there are fewer epochs.
        every: the number of epochs between iterates.
    """

    count: int
    every: int

    def __post_init__(self) -> None:
        require(self.count > 1, "count", "must be > 1", self.count)
        require(self.every > 0, "every", "must be > 0", self.every)


@dataclass(frozen=True)
class SnapshotPolicy:
    """The settings of the snapshots and moments that a fit keeps.

    Attributes:
        snapshots: the number of snapshots, the last at the end of the last epoch.
        every: the number of parts of epochs between snapshots.
        extra_epochs: the number of epochs to run beyond the chosen number or, without early stopping, beyond all
            epochs.
        moments: the running moments of the weights. null: no moments.
        parts_per_epoch: the number of equal parts of an epoch; a snapshot may be at the end of each.
        start: whether the first snapshot is the weights before the first step.
    """

    snapshots: int = 1
    every: int = 1
    extra_epochs: int = 0
    moments: MomentsConfig | None = None
    parts_per_epoch: int = 1
    start: bool = False

    def ends(self, steps: int) -> dict[int, int]:
        """Return, for an epoch of ``steps`` steps, the steps at which a part ends -> the number of finished parts.

        Raises:
            ConfigError: there are more parts than steps.
        """
        parts, rule = self.parts_per_epoch, f"must be <= the steps of an epoch ({steps})"
        require(parts <= steps, "snapshots_per_epoch", rule, parts)
        return {steps * part // parts: part for part in range(1, parts + 1)}

    def snapshot(self, remaining: int) -> bool:
        """Return whether a snapshot is taken when ``remaining`` parts remain."""
        return _wanted(remaining, self.snapshots, self.every)

    def at(self, epochs: int) -> list[float]:
        """Return the epoch of each snapshot of a fit of ``epochs``, oldest first."""
        total = epochs * self.parts_per_epoch
        done = [part for part in range(1, total + 1) if self.snapshot(total - part)]
        return [part / self.parts_per_epoch for part in [0] * self.start + done]

    def counts(self, remaining: int) -> bool:
        """Return whether the moments include the iterate before the last ``remaining`` epochs."""
        return self.moments is not None and _wanted(remaining, self.moments.count, self.moments.every)


def _wanted(remaining: int, count: int, every: int) -> bool:
    return 0 <= remaining < count * every and remaining % every == 0


@final
class RunningMoments:
    """The mean and population variance of named weights over iterates, in float64 (Welford 1962).

    E[w²] − E[w]² cancels if a weight is much larger than its changes; the centred sum does not.

    Attributes:
        count: the number of iterates so far.
        mean: the means by name, in the weights' shapes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self._centred: dict[str, Tensor] = {}  # Σ (w − mean)²

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Add an iterate, of any floating type."""
        self.count += 1
        for name, value in weights.items():
            old = self.mean.get(name, torch.zeros_like(value, dtype=torch.float64))
            delta = value.double() - old
            self.mean[name] = old + delta / self.count
            grown = delta.square() * ((self.count - 1) / self.count)  # δ(w − new mean), never below 0
            self._centred[name] = self._centred.get(name, torch.zeros_like(old)) + grown

    @property
    def variance(self) -> dict[str, Tensor]:
        """Return the mean squared deviation from the mean."""
        return {name: value / self.count for name, value in self._centred.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that later updates depend on."""
        mean = {f"mean.{name}": value for name, value in self.mean.items()}
        centred = {f"centred.{name}": value for name, value in self._centred.items()}
        return mean | centred | {"count": torch.tensor(self.count)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of :meth:`state`."""
        self.count = int(state["count"])
        self.mean, self._centred = under("mean.", state), under("centred.", state)


def with_moments(trajectory: State, iterates: RunningMoments, prefix: str) -> State:
    """Add moments, if any, to a trajectory; ``prefix`` is removed from their names."""
    if iterates.count == 0:
        return trajectory
    mean = {_MEAN + name.removeprefix(prefix): value for name, value in iterates.mean.items()}
    variance = {_VARIANCE + name.removeprefix(prefix): value for name, value in iterates.variance.items()}
    return State({**trajectory.tensors, **mean, **variance}, trajectory.config | {"iterates": iterates.count})


def epochs(trajectory: State) -> list[float] | None:
    """Return the epoch of each snapshot, 0 at the start; None if the start was not kept."""
    return trajectory.config.get("snapshots_at")


def snapshots(trajectory: State) -> dict[str, Tensor]:
    """Return every entry of the network's ``state_dict``, stacked [snapshot, ...], oldest first.

    The first snapshot is the start, if it was kept.
    """
    return {name: trajectory.tensors[name] for name in _names(trajectory)}


def trained(trajectory: State) -> dict[str, Tensor]:
    """Return the snapshots without the start."""
    first = int(epochs(trajectory) is not None)
    return {name: rows(trajectory.tensors, name, first, None) for name in _names(trajectory)}


def snapshot(trajectory: State, number: int) -> dict[str, Tensor]:
    """Return one snapshot; negative numbers count from the last. Only this snapshot of a stored trajectory is read."""
    stop = number + 1 or None
    return {name: rows(trajectory.tensors, name, number, stop)[0] for name in _names(trajectory)}


def _names(trajectory: State) -> list[str]:
    return [name for name in trajectory.tensors if not name.startswith((_MEAN, _VARIANCE))]


def moments(trajectory: State) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """Return the mean and population variance of each parameter over the iterates; None if they were not kept."""
    mean = under(_MEAN, trajectory.tensors)
    return (mean, under(_VARIANCE, trajectory.tensors)) if mean else None
