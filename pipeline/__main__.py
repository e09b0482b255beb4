"""``python -m pipeline``."""

import gc
import os
import sys

from .cli import main
from .core import signals, terminal

if __name__ == "__main__":
    signals.interruptible()
    terminal.replace_what_it_lacks()
    gc.set_threshold(10_000)  # With 700, garbage collection during imports takes a quarter of a small command.
    code = 1
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # The reader of the pipe, such as head, has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # At the end the system takes all memory back anyway.
    sys.exit(code)
