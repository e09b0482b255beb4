"""Progress output of a stage: a bar on a terminal, occasional lines in a log file."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

_LINE_SECONDS: Final = 10.0
_METRICS_SECONDS: Final = 2.0
Sink = Callable[[Mapping[str, float], int], None]


class Display:
    """A display that counts the steps of a stage's tasks; a context manager."""

    def __init__(self, label: str, sink: Sink | None = None) -> None:
        """Take the stage's label, and a sink, which receives (metrics by ``<task>/<name>``, step) every few seconds."""
        self.label, self._sink = label, sink
        self._share: dict[str, float] = {}
        self._latest: dict[str, tuple[dict[str, float], int]] = {}
        self._total = self._done = 0
        self._start = self._lined = self._sunk = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._line_id = self._bar.add_task(self.label, total=1.0, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._flush()

    def expect(self, total: int) -> None:
        """Expect ``total`` more tasks."""
        self._total += total

    def step(self, task: str, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that ``task`` is at ``step`` of ``total``."""
        self._share[task] = step / max(total, 1)
        if metrics:
            kept, _ = self._latest.setdefault(task, ({}, step))
            kept.update(metrics)
            self._latest[task] = (kept, step)
        self._show()

    def done(self, task: str) -> None:
        """Show that ``task`` has ended."""
        self._share[task] = 1.0
        self._done += 1
        self._show()

    def say(self, text: str) -> None:
        """Print a line beside the progress."""
        if self._bar is not None:
            self._bar.console.print(f"{self.label}: {text}", markup=False, highlight=False)
        else:
            print(f"{self.label}: {text}", flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        if self._sink is not None and now - self._sunk >= _METRICS_SECONDS:
            self._flush()
        if self._bar is not None:
            self._bar.update(self._line_id, completed=self._fraction(), note=self._note())
        elif now - self._lined >= _LINE_SECONDS:
            self._lined = now
            print(f"{self.label}: {self._fraction():.0%}, {self._note()}", flush=True)

    def _flush(self) -> None:
        self._sunk = time.monotonic()
        for task, (metrics, step) in self._latest.items():
            if self._sink is not None:
                self._sink({f"{task}/{name}": value for name, value in metrics.items()}, step)
        self._latest.clear()

    def _fraction(self) -> float:
        return sum(self._share.values()) / max(self._total, 1)

    def _note(self) -> str:
        texts = [f"{self._done} of {self._total} done", f"{time.monotonic() - self._start:.0f} s"]
        for metrics, _ in self._latest.values():
            name, value = next(iter(metrics.items()))
            return ", ".join([*texts, f"{name} {value:.4g}"])
        return ", ".join(texts)
