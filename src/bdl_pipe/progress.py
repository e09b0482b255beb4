"""Reports of a long computation: progress, metrics, checkpoints.

A fit calls ``report(step, total, metrics)`` after each step. A fit that can be resumed starts from ``report.load()``
and calls ``report.save`` whenever ``report.due()``. The caller of the fit chooses the report (a progress bar, MLflow,
Ray Tune, a file), and deletes the checkpoints once the result is safe.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from torch import Tensor

from .artifacts import State


class Report(ABC):
    """Receives a fit's progress and metrics, and stores its checkpoints."""

    @abstractmethod
    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        """Record that step ``step`` of ``total`` is done, with its ``metrics``."""

    def due(self) -> bool:
        """Return whether it is time to save a checkpoint."""
        return False

    def save(self, state: State) -> None:  # noqa: B027 — a report may store nothing
        """Store ``state`` so that a later ``load`` returns it, even after the process was killed."""

    def load(self) -> State | None:
        """Return the last checkpoint that was saved completely, if any."""
        return None


@final
class Silent(Report):
    """A report that records and stores nothing."""

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        pass


@final
class Phase(Report):
    """The report of one part of a fit. It counts steps over the whole fit, and names its own checkpoints."""

    def __init__(
        self, report: Report, name: str, done: int, total: int, carried: Mapping[str, Tensor] | None = None
    ) -> None:
        """Report the part ``name`` of a fit to ``report``.

        Args:
            done: the number of steps before this part.
            total: the number of steps of the whole fit.
            carried: tensors of earlier parts to store in this part's checkpoints; their names must differ from its own.
        """
        self._report, self._name, self._done, self._total = report, name, done, total
        self._carried = dict(carried or {})

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._report(self._done + step, self._total, metrics)

    def due(self) -> bool:
        return self._report.due()

    def save(self, state: State) -> None:
        self._report.save(State({**state.tensors, **self._carried}, state.config | {"phase": self._name}))

    def load(self) -> State | None:
        last = self._report.load()
        if last is None or last.config["phase"] != self._name:
            return None
        return State({k: v for k, v in last.tensors.items() if k not in self._carried}, last.config)
