"""The output of several stages at once: one live line for each on a terminal, prefixed lines elsewhere."""

import os
import sys
import threading
import time
from typing import Any, Self


class Lines:
    """A display of what running stages say; a context manager, called from several threads."""

    def __init__(self, total: int) -> None:
        self._total, self._ended = total, 0
        self._lock = threading.RLock()
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
        """Show that ``name`` has started."""
        with self._lock:
            self._running[name] = (time.monotonic(), "")
            if self._live is None:
                self._print(f"{name}: started")
            self.refresh()

    def say(self, name: str, text: str) -> None:
        """Show a line that ``name`` printed."""
        with self._lock:
            if name in self._running:
                self._running[name] = (self._running[name][0], text)
            if self._live is None:
                self._print(f"{name}: {text}")
            elif text.startswith("warning"):
                self._live.console.print(f"{name}: {text}", markup=False)
            self.refresh()

    def end(self, name: str, well: bool, seconds: float) -> None:
        """Show that ``name`` has ended, ``well`` or not, and how long it took."""
        with self._lock:
            self._running.pop(name, None)
            self._ended += 1
            how = "done" if well else "FAILED"
            text = f"[{self._ended}/{self._total}] {name}: {how}, {seconds:.0f} s"
            if self._live is None:
                self._print(text)
            else:
                self._live.console.print(text, markup=False)
            self.refresh()

    def skip(self, name: str) -> None:
        """Count ``name`` as done: what it is made from has not changed."""
        with self._lock:
            self._ended += 1
            text = f"[{self._ended}/{self._total}] {name}: is up to date"
            if self._live is None:
                self._print(text)
            else:
                self._live.console.print(text, markup=False)

    def refresh(self) -> None:
        """Draw the live lines anew; do nothing elsewhere than on a terminal."""
        if self._live is None:
            return
        from rich.text import Text

        now = time.monotonic()
        with self._lock:
            rows = [f"  {name}  {now - start:.0f} s  {text}" for name, (start, text) in self._running.items()]
        width = self._live.console.width
        self._live.update(Text("\n".join(row[: width - 1] for row in rows)))

    def _print(self, text: str) -> None:
        try:
            print(text, flush=True)
        except BrokenPipeError:  # nobody reads on: the work goes on unseen
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
