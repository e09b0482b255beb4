"""The output of several stages at once: one live line for each on a terminal, prefixed lines in a log file."""

import os
import sys
import time
from typing import Any, Self


class Lines:
    """A display of what running stages print; a context manager."""

    def __init__(self, total: int) -> None:
        self._total, self._ended = total, 0
        self._running: dict[str, tuple[float, str]] = {}
        self._live: Any = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def start(self, name: str) -> None:
        """Show that the stage ``name`` has started."""
        self._running[name] = (time.monotonic(), "")
        if self._live is None:
            self._print(f"{name}: started")
        self.refresh()

    def say(self, name: str, text: str) -> None:
        """Show a line that the stage ``name`` printed."""
        if name in self._running:
            self._running[name] = (self._running[name][0], text)
        if self._live is None or text.startswith("warning"):
            self._print(f"{name}: {text}")
        self.refresh()

    def end(self, name: str, how: str) -> None:
        """Count the stage ``name`` as ended, and show how it ended."""
        self._running.pop(name, None)
        self._ended += 1
        self._print(f"[{self._ended}/{self._total}] {name}: {how}")
        self.refresh()

    def refresh(self) -> None:
        """Draw the live lines again; without a terminal there are none."""
        if self._live is None:
            return
        from rich.text import Text

        now = time.monotonic()
        lines = [f"  {name}  {now - start:.0f} s  {text}" for name, (start, text) in self._running.items()]
        width = self._live.console.width
        self._live.update(Text("\n".join(line[: width - 1] for line in lines)))

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False)
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:  # The reader of our output has ended; the work continues without output.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
