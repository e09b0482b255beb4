"""``python -m pipeline``."""

import gc
import sys

from .cli import main
from .core import signals

if __name__ == "__main__":
    signals.interruptible()
    gc.set_threshold(10_000)  # With 700, the search for garbage among imports takes a quarter of a small command.
    code = main()
    gc.freeze()  # At the end the system takes all memory back anyway.
    sys.exit(code)
