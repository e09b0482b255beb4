"""The progress of a stage's tasks, with their metrics for the stage's curve."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

from bdl_pipe import display

_METRICS_SECONDS: Final = 2.0
Sink = Callable[[Mapping[str, float], int], None]


class Display(display.Display):
    """A display that sends metrics to a sink every few seconds and at the end."""

    def __init__(self, label: str, sink: Sink | None = None) -> None:
        """Create a display with the stage's label; ``sink`` receives (metrics by ``<task>/<name>``, step)."""
        super().__init__(label)
        self._sink, self._sunk = sink, time.monotonic()
        self._latest: dict[str, tuple[dict[str, float], int]] = {}
        self._losses: dict[int, dict[str, tuple[int, float]]] = {}  # fiftieth of a task's steps -> task -> step, loss

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._flush()

    def step(self, task: str, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        if metrics:
            earlier, _ = self._latest.get(task, ({}, step))
            self._latest[task] = ({**earlier, **metrics}, step)
            if total and "loss" in metrics and math.isfinite(loss := float(metrics["loss"])):
                self._losses.setdefault(display.PARTS * step // total, {}).setdefault(task, (step, loss))
        if time.monotonic() - self._sunk >= _METRICS_SECONDS:
            self._flush()
        super().step(task, step, total, metrics)

    def curve(self) -> list[tuple[float, float]]:
        """Return step and loss at the first report in each fiftieth of the steps, means over the tasks with a report.

        Equal fits in this process have equal points. The points of workers may be fewer, and a continued fit has none of
        its earlier steps.
        """
        parts = [self._losses[part].values() for part in sorted(self._losses)]
        return [(sum(s for s, _ in of) / len(of), float(f"{sum(x for _, x in of) / len(of):.6g}")) for of in parts]

    def _flush(self) -> None:
        self._sunk = time.monotonic()
        for task, (metrics, step) in self._latest.items():
            if self._sink is not None:
                self._sink({f"{task}/{name}": value for name, value in metrics.items()}, step)
        self._latest.clear()
