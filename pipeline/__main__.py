"""``python -m pipeline``."""

import errno
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
        if sys.stdout is not None:  # It is None if the caller has closed it.
            sys.stdout.flush()
    except OSError as error:
        # A broken pipe: its reader, such as head, has closed it. Else the output goes to a file on a full disk.
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise
        if error.errno != errno.EPIPE:
            print(f"{' '.join(sys.argv[1:2])}: the output cannot be written: the disk is full", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # At the end the system takes all memory back anyway.
    sys.exit(code)
