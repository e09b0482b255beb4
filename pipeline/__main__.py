"""``python -m pipeline``."""

import gc
import sys

from .cli import main

if __name__ == "__main__":
    gc.set_threshold(10_000)  # of 700: to look for garbage among what is imported takes a quarter of a small command
    code = main()
    gc.freeze()  # the same at the end, where the system takes all of it back
    sys.exit(code)
