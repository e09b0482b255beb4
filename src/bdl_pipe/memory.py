"""Memory settings of a process that trains."""

import contextlib
import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1  # option numbers of mallopt, from malloc.h
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Make glibc reuse large blocks instead of returning them to the kernel: training steps fault fewer pages."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
            for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
                ctypes.CDLL(None).mallopt(option, 2**30)
