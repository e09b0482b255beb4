"""Progress display of long fits: a bar on a terminal, occasional lines in a log file.

with Display("chains") as display:
    display.expect(1)
    fit(data, inputs, config, rng=rng, report=Checkpointed("chain", None, display.step))
    display.done("chain")
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

_LINE_SECONDS: Final = 10.0
PARTS: Final = 50  # of a fit's steps; the first report in each part is always sent
D = TypeVar("D", bound="Display")


class Display:
    """A display that counts the steps of several tasks; a context manager."""

    def __init__(self, label: str) -> None:
        """Create a display whose lines begin with ``label``."""
        self.label, self._metric = label, ""
        self._share: dict[str, float] = {}
        self._total = self._done = 0
        self._start = self._lined = time.monotonic()
        self._bar: Any = None

    def __enter__(self: D) -> D:
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

    def expect(self, total: int) -> None:
        """Expect ``total`` more tasks."""
        self._total += total

    def step(self, task: str, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that ``task`` is at ``step`` of ``total``, and the first of the metrics."""
        self._share[task] = step / max(total, 1)
        for name, value in (metrics or {}).items():
            self._metric = f"{name} {value:.4g}"
            break
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
        if self._bar is not None:
            self._bar.update(self._line_id, completed=self._fraction(), note=self._note())
        elif now - self._lined >= _LINE_SECONDS:
            self._lined = now
            self.say(f"{self._fraction():.0%}, {self._note()}")

    def _fraction(self) -> float:
        return sum(self._share.values()) / max(self._total, 1)

    def _note(self) -> str:
        texts = [f"{self._done} of {self._total} done", f"{time.monotonic() - self._start:.0f} s", self._metric]
        return ", ".join(filter(None, texts))
