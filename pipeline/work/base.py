"""Who runs the tasks of a stage: this process, Ray inside it, a Ray cluster, or its jobs. Chosen by the environment.

A task is a pure function of its payload, of shared read-only data, and of the seed addresses in
them, on one thread: every executor gives the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .display import Display
from .store import Store

if TYPE_CHECKING:
    from bdl_pipe.progress import Report  # brings torch, which the hub of a stage does without

Work = Callable[[Any, Mapping[str, Any], "Report"], Any]  # (payload, shared, report) -> result


@dataclass(frozen=True)
class Task:
    """A unit of work.

    Attributes:
        name: unique within a call; it names the task's checkpoint.
        payload: small, sent with the task.
        needs: keys of the shared data that it reads.
        data_parallel: its work may be run by several processes that share its batches.
        size: how much work it is, beside the other tasks of the call.
    """

    name: str
    payload: Any
    needs: tuple[str, ...] = ()
    data_parallel: bool = False
    size: float = 1.0


@dataclass(frozen=True)
class Done:
    """A task's result and what it cost, over all its attempts.

    Attributes:
        seconds: by ``bdl_pipe.metrics.cost.clock``: of the processor for one thread of a CPU, else of the wall.
        peak_bytes: the largest resident memory of the process that ran it, up to its end.
    """

    result: Any
    seconds: float
    peak_bytes: int


class Executor(Protocol):
    """A way to run the tasks of a stage."""

    def map(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        shared: Mapping[str, Any],
        display: Display,
        store: Store | None = None,
        light: bool | None = False,
    ) -> list[Done]:
        """Run the tasks, and return their results in the same order.

        Args:
            work: an importable function.
            shared: read-only; sent to each worker at most once.
            display: told of every step.
            store: with it, results are States, checkpoints are kept and gone on from.
            light: the work is worth no worker's start: do it in this process, on the CPU; None: find out, by
                trying the smallest task here, for ten seconds where it can be gone on with elsewhere.

        Raises:
            UserError: no node can ever run such a task, or the cluster does not answer.
            Exception: what a task raised, as it is; the others are cancelled.
        """
        ...

    def close(self) -> None:
        """Leave no process behind."""
