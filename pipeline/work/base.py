"""What a stage hands to an executor, and what it gets back.

A task is a pure function of its payload, of shared read-only data, and of the seeds in them, on one thread: every
executor gives the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .display import Display
from .store import Store

if TYPE_CHECKING:
    from bdl_pipe.progress import Report  # it imports torch, which the driver's actor does without

Work = Callable[[Any, Mapping[str, Any], "Report"], Any]  # (payload, shared, report) -> result
Where = Literal["here", "workers", "try"]


@dataclass(frozen=True)
class Task:
    """A unit of work.

    Attributes:
        name: unique within a call; it names the task's checkpoint.
        payload: small, sent with the task.
        needs: keys of the shared data that it reads.
        data_parallel: several processes may share its batches.
        size: the amount of work, relative to the other tasks of the call.
    """

    name: str
    payload: Any
    needs: tuple[str, ...] = ()
    data_parallel: bool = False
    size: float = 1.0


@dataclass(frozen=True)
class Done:
    """A task's result and its cost, over all its attempts.

    Attributes:
        seconds: by ``bdl_pipe.metrics.cost.clock``: on a CPU the processor time of one thread, else wall time.
        peak_bytes: the largest resident memory of the process that ran it, up to its end.
    """

    result: Any
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Batch:
    """What the tasks of one call have in common.

    Attributes:
        work: an importable function.
        shared: read-only data; each worker receives it at most once.
        display: shows every step.
        store: keeps checkpoints and results, which are then States; None: nothing is kept.
    """

    work: Work
    shared: Mapping[str, Any]
    display: Display
    store: Store | None


class Executor(ABC):
    """A way to run the tasks of a stage."""

    def map(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        shared: Mapping[str, Any],
        display: Display,
        store: Store | None = None,
        where: Where = "workers",
    ) -> list[Done]:
        """Run the tasks, and return their results in the same order.

        Args:
            work, shared, display, store: as in :class:`Batch`.
            where: "here" runs the tasks in this process, on the CPU; "workers" sends them to workers; "try" runs the
                smallest task here for up to ten seconds, and sends the rest to workers if it takes long.

        Raises:
            UserError: no node can run such a task, or the cluster does not answer.
            Exception: the error of a task, as the task raised it; the other tasks are cancelled.
        """
        display.expect(len(tasks))
        results = self._run(Batch(work, shared, display, store), tasks, where)
        return [results[task.name] for task in tasks]

    def close(self) -> None:
        """Stop all worker processes."""

    @abstractmethod
    def _run(self, batch: Batch, tasks: Sequence[Task], where: Where) -> dict[str, Done]:
        """Run the tasks, and return their results by name."""
