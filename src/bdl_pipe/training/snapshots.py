"""The iterates of a trajectory: which of them leave a snapshot, and the running moments of their weights.

Both are counted from the end, so that they mean the same where the number of epochs is chosen on validation rows.
A trajectory's state holds its snapshots as tensors of the network's own names, [snapshot, ...], and beside them, where
they were asked for, the moments in float64 under the names ``iterates.mean.…`` and ``iterates.variance.…``. Where the
weights before the first step are the first snapshot, ``snapshots_at`` in its config says of which epoch each one is.
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
    """The settings of running moments of the weights over the iterates at the ends of epochs.

    Attributes:
        count: how many iterates, the last one that of the last epoch; fewer where there are fewer epochs.
        every: epochs from one to the next.
    """

    count: int
    every: int

    def __post_init__(self) -> None:
        require(self.count > 1, "count", "must be > 1", self.count)
        require(self.every > 0, "every", "must be > 0", self.every)


@dataclass(frozen=True)
class SnapshotPolicy:
    """The settings of what a fit leaves beside its last weights.

    Attributes:
        snapshots: how many, the last one at the end of the last epoch.
        every: parts from one to the next.
        extra_epochs: epochs run beyond the chosen number, or beyond all where none is chosen.
        moments: of the weights; null: none.
        parts_per_epoch: equal parts of an epoch; there may be a snapshot at the end of each.
        start: keep the weights before the first step, too, as the first snapshot.
    """

    snapshots: int = 1
    every: int = 1
    extra_epochs: int = 0
    moments: MomentsConfig | None = None
    parts_per_epoch: int = 1
    start: bool = False

    def ends(self, steps: int) -> dict[int, int]:
        """Return the steps of an epoch of ``steps`` at which a part ends -> the parts that are then done.

        Raises:
            ConfigError: there are more parts than steps.
        """
        require(
            self.parts_per_epoch <= steps,
            "snapshots_per_epoch",
            f"must be <= the steps of an epoch ({steps})",
            self.parts_per_epoch,
        )
        return {steps * part // self.parts_per_epoch: part for part in range(1, self.parts_per_epoch + 1)}

    def snapshot(self, left: int) -> bool:
        """Say whether there is one with ``left`` parts to go."""
        return _wanted(left, self.snapshots, self.every)

    def at(self, epochs: int) -> list[float]:
        """Return the epochs that have passed at each snapshot of a fit of ``epochs``, oldest first."""
        total = epochs * self.parts_per_epoch
        done = [part for part in range(1, total + 1) if self.snapshot(total - part)]
        return [part / self.parts_per_epoch for part in [0] * self.start + done]

    def counts(self, left: int) -> bool:
        """Say whether the moments take the iterate with ``left`` epochs to go."""
        return self.moments is not None and _wanted(left, self.moments.count, self.moments.every)


def _wanted(left: int, count: int, every: int) -> bool:
    return 0 <= left < count * every and left % every == 0


@final
class RunningMoments:
    """The mean and population variance of named weights over iterates, in float64 (Welford 1962).

    E[w²] − E[w]² would cancel where a weight is far larger than it moves; the centred sum does not.

    Attributes:
        count: iterates so far.
        mean: by name, in the weights' shapes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self._centred: dict[str, Tensor] = {}  # Σ (w − mean)²

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Take one more iterate, of any floating type."""
        self.count += 1
        for name, value in weights.items():
            old = self.mean.get(name, torch.zeros_like(value, dtype=torch.float64))
            delta = value.double() - old
            self.mean[name] = old + delta / self.count
            grown = delta.square() * ((self.count - 1) / self.count)  # δ(w − new mean), never below 0
            self._centred[name] = self._centred.get(name, torch.zeros_like(old)) + grown

    @property
    def variance(self) -> dict[str, Tensor]:
        """Return the mean square deviation from the mean."""
        return {name: value / self.count for name, value in self._centred.items()}

    def state(self) -> dict[str, Tensor]:
        """Return all that a later update depends on."""
        mean = {f"mean.{name}": value for name, value in self.mean.items()}
        centred = {f"centred.{name}": value for name, value in self._centred.items()}
        return mean | centred | {"count": torch.tensor(self.count)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`state` returned."""
        self.count = int(state["count"])
        self.mean, self._centred = under("mean.", state), under("centred.", state)


def with_moments(trajectory: State, found: RunningMoments, prefix: str) -> State:
    """Return a trajectory with its moments, where there are any; ``prefix`` is taken off their names."""
    if found.count == 0:
        return trajectory
    mean = {_MEAN + name.removeprefix(prefix): value for name, value in found.mean.items()}
    variance = {_VARIANCE + name.removeprefix(prefix): value for name, value in found.variance.items()}
    return State({**trajectory.tensors, **mean, **variance}, trajectory.config | {"iterates": found.count})


def with_epochs(trajectory: State, keep: SnapshotPolicy) -> State:
    """Return a trajectory that says at which epochs its snapshots are, where its start is one of them."""
    if not keep.start:
        return trajectory
    return State(trajectory.tensors, trajectory.config | {"snapshots_at": keep.at(trajectory.config["epochs"])})


def epochs(trajectory: State) -> list[float] | None:
    """Return the epochs that have passed at each snapshot, 0 at the start; None where that was not kept."""
    return trajectory.config.get("snapshots_at")


def snapshots(trajectory: State) -> dict[str, Tensor]:
    """Return every entry of the network's ``state_dict``, stacked [snapshot, ...], oldest first.

    The first is the start, if it was kept.
    """
    return {name: trajectory.tensors[name] for name in _names(trajectory)}


def trained(trajectory: State) -> dict[str, Tensor]:
    """Return the snapshots without the start."""
    first = int(epochs(trajectory) is not None)
    return {name: rows(trajectory.tensors, name, first, None) for name in _names(trajectory)}


def snapshot(trajectory: State, number: int) -> dict[str, Tensor]:
    """Return one snapshot; negative numbers count from the last. Of a stored trajectory nothing else is read."""
    stop = number + 1 or None
    return {name: rows(trajectory.tensors, name, number, stop)[0] for name in _names(trajectory)}


def _names(trajectory: State) -> list[str]:
    return [name for name in trajectory.tensors if not name.startswith((_MEAN, _VARIANCE))]


def moments(trajectory: State) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """Return mean and population variance of each parameter over the iterates that counted.

    It is None where none were kept.
    """
    mean = under(_MEAN, trajectory.tensors)
    return (mean, under(_VARIANCE, trajectory.tensors)) if mean else None
