"""The one window out of a long computation: progress, metrics, checkpoints.

A fit calls ``report(step, total, metrics)`` and, where it can be resumed, ``report.save`` whenever
``report.due()``; it starts from ``report.load()``. Who listens (a progress bar, MLflow, Ray Tune, a
file) is not its business. Checkpoint files are deleted by whoever runs the fit, once its result is safe.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from torch import Tensor

from .artifacts import State


class Report(ABC):
    """The window of a fit to the outside: what it may tell, and where it may leave a checkpoint."""

    @abstractmethod
    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        """Tell that step ``step`` of ``total`` is done; ``metrics`` are worth recording."""

    def due(self) -> bool:
        """Say whether it is time to save a checkpoint."""
        return False

    def save(self, state: State) -> None:  # noqa: B027 — listening to nothing is a valid report
        """Keep ``state`` so that a later ``load`` returns it, also after a kill."""

    def load(self) -> State | None:
        """Return the last checkpoint that was saved whole, if any."""
        return None


@final
class Silent(Report):
    """A report that listens to nothing and keeps nothing."""

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        pass


@final
class Phase(Report):
    """A report for one of the parts of a fit: its place among all steps, and its checkpoints by name."""

    def __init__(
        self, report: Report, name: str, done: int, total: int, carried: Mapping[str, Tensor] | None = None
    ) -> None:
        """Report the part ``name`` of a fit to ``report``.

        Args:
            done: steps of the fit before this part, of ``total`` in all.
            carried: what earlier parts found, kept in the checkpoints of this one; no names of its own tensors.
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
